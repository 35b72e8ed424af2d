//! Readers of blobs. One type reads both committed blobs and blobs whose fill is still running.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::watch;

use crate::blob::StoredBlob;
use crate::blob::buffer::BUFFER;
use crate::blocking::blocking;
use crate::error::Error;
use crate::fill::shared_fill::{Progress, SharedFill};
use crate::origin::Origin;

/// Reads a blob, which is committed or being filled.
#[derive(Clone)]
pub enum BlobReader {
    /// The blob is already committed.
    Stored(StoredBlob),
    /// The blob is being filled.
    Tail(TailReader),
}

/// Reads the blob of a running fill. A clone costs little. Dropping a reader cancels nothing.
pub struct TailReader {
    shared_fill: Arc<SharedFill>,
    progress: watch::Receiver<Progress>,
    /// 1 + the generation (number of restarts) of the fill at the last read. 0 before the first
    /// read.
    seen: AtomicU64,
}

impl Clone for TailReader {
    fn clone(&self) -> Self {
        let seen = AtomicU64::new(self.seen.load(Ordering::Relaxed));
        Self {
            shared_fill: self.shared_fill.clone(),
            progress: self.progress.clone(),
            seen,
        }
    }
}

impl BlobReader {
    /// Returns the readers of the running fill, or `None` for a committed blob.
    pub fn readers(&self) -> Option<Readers> {
        match self {
            Self::Stored(_) => None,
            Self::Tail(tail) => Some(tail.readers()),
        }
    }

    /// Whether all bytes come from the registry of `origin`. Returns `false` for a committed blob,
    /// of which [`Cache::has_origin`](crate::Cache::has_origin) knows the registries.
    pub fn is_fill_from(&self, origin: &Origin) -> bool {
        match self {
            Self::Stored(_) => false,
            Self::Tail(tail) => tail.shared_fill.origin.is_same_registry(origin),
        }
    }

    /// Returns the size of the blob in bytes. For a running fill, waits until the upstream has
    /// announced the size. `None` if the upstream announces no size.
    ///
    /// # Errors
    /// The same errors as [`BlobReader::read_at`].
    pub async fn size(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Stored(stored) => Ok(Some(stored.size())),
            Self::Tail(tail) => tail.size().await,
        }
    }

    /// Reads up to `max` bytes (at most 128 KiB) from `offset`. An empty result means the end of
    /// the content. For a running fill, waits until at least one byte is available. A running fill
    /// returns its last piece, and the end, only once the digest matches. Cancel safe. If the bytes
    /// are not in the page cache, a blocking thread reads them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a committed blob. For a running fill, the error that ended the fill.
    /// If [`Error::is_storage`] is `true` for this error, the caller can stream the rest of the
    /// blob from the upstream.
    pub async fn read_at(&self, offset: u64, max: usize) -> Result<Bytes, Error> {
        match self {
            Self::Stored(stored) => stored.read_at(offset, max).await,
            Self::Tail(tail) => tail.read_at(offset, max).await,
        }
    }
}

/// Tells whether one fill still has readers. The default value belongs to no fill and has no
/// readers. This value does not keep the fill alive.
#[derive(Clone, Debug, Default)]
pub struct Readers(Weak<watch::Sender<Progress>>);

impl Readers {
    pub(crate) fn of(shared_fill: &SharedFill) -> Self {
        Self(Arc::downgrade(&shared_fill.progress))
    }

    /// Whether the fill has no reader. The call costs one atomic load.
    pub fn is_empty(&self) -> bool {
        // Each reader has one receiver of the channel. The fill itself has a receiver only while it
        // ends.
        self.0.upgrade().is_none_or(|it| it.receiver_count() == 0)
    }
}

impl TailReader {
    /// Returns the readers of this fill, including this reader.
    pub fn readers(&self) -> Readers {
        Readers::of(&self.shared_fill)
    }

    pub(crate) fn new(shared_fill: Arc<SharedFill>) -> Self {
        let progress = shared_fill.progress.subscribe();
        Self {
            shared_fill,
            progress,
            seen: AtomicU64::new(0),
        }
    }

    /// Waits until `ready` returns a value. Returns the error of the fill if the fill fails first.
    async fn wait<T>(&self, mut ready: impl FnMut(&Progress) -> Option<T>) -> Result<T, Error> {
        let mut check = |progress: &Progress| match &progress.outcome {
            Some(Err(error)) if !progress.verified => Some(Err(error.clone())),
            _ => ready(progress).map(Ok),
        };
        if let Some(done) = check(&self.progress.borrow()) {
            return done;
        }
        let mut progress = self.progress.clone();
        loop {
            if let Some(done) = check(&progress.borrow_and_update()) {
                return done;
            }
            if progress.changed().await.is_err() {
                return Err(crate::fill::shared_fill::fill_ended());
            }
        }
    }

    /// Returns the size of the blob: see [`BlobReader::size`].
    ///
    /// # Errors
    /// The error that ended the fill.
    pub async fn size(&self) -> Result<Option<u64>, Error> {
        self.wait(|progress| progress.size).await
    }

    /// Reads bytes of the blob: see [`BlobReader::read_at`].
    ///
    /// # Errors
    /// The error that ended the fill.
    pub async fn read_at(&self, offset: u64, max: usize) -> Result<Bytes, Error> {
        let (generation, available) = self
            .wait(|progress| {
                let available = progress.visible().saturating_sub(offset);
                (available > 0 || progress.verified || max == 0)
                    .then_some((progress.generation, available))
            })
            .await?;
        let seen = self.seen.swap(generation + 1, Ordering::Relaxed);
        if seen != 0 && seen != generation + 1 {
            self.seen.store(seen, Ordering::Relaxed);
            return Err(Error::Restarted);
        }
        let len = usize::try_from(available)
            .unwrap_or(BUFFER)
            .min(max)
            .min(BUFFER);
        let Some(reader) = self.shared_fill.reader.get().filter(|_| len > 0) else {
            return Ok(Bytes::new());
        };
        let mut buffer = self.shared_fill.owner.buffers().take(len);
        let read = match reader.try_read_at(offset, buffer.as_mut()) {
            Ok(read) if read > 0 => Ok(buffer.freeze(0, read)),
            _ => {
                let reader = reader.clone();
                let read =
                    blocking(move || reader.read_at(offset, buffer.as_mut()).map(|()| buffer))
                        .await;
                read.map(|buffer| buffer.freeze(0, len))
            }
        };
        // The leader may have restarted the fill during the read. In that case, it is unknown
        // whether these bytes are from before or after the restart.
        if self.progress.borrow().generation != generation {
            return Err(Error::Restarted);
        }
        read.map_err(|error| {
            self.shared_fill
                .owner
                .staged_error("read", &self.shared_fill.digest, error)
        })
    }

    /// Waits for the end of the fill and returns the committed blob.
    ///
    /// # Errors
    /// The error that ended the fill.
    pub async fn committed(&self) -> Result<StoredBlob, Error> {
        Ok(StoredBlob::new(self.shared_fill.outcome().await?))
    }
}
