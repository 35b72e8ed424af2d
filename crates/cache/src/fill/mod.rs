//! Fills: a fill downloads one blob into the cache. The leader of a fill writes the blob to staging
//! and commits it, while the followers of the fill read the bytes.

pub(crate) mod blob_reader;
mod ingest;
mod reservation;
pub(crate) mod shared_fill;

use std::sync::Arc;

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Digest, MediaType, Repository};

use crate::blob::StoredBlob;
use crate::blocking::blocking;
use crate::error::Error;
use crate::fill::blob_reader::Readers;
use crate::fill::blob_reader::TailReader;
use crate::fill::ingest::Ingest;
use crate::fill::shared_fill::{Order, SharedFill, Terms};
use crate::origin::Origin;
use crate::store::Store;
use crate::store::small_blobs::MAX_SMALL_BLOB;

/// The leader's handle of a fill. If the handle is dropped without [`Fill::finish`], the fill ends
/// for its followers with [`Error::Abandoned`]. The staged bytes are kept, and the next leader
/// resumes after them.
///
/// The leader does these steps: fetch the content from [`Fill::offset`] on; call [`Fill::restart`]
/// if the upstream starts at byte 0 instead; call [`Fill::begin`], then [`Fill::write`] for each
/// piece, then [`Fill::finish`].
///
/// When the cache cannot store the blob (`begin`, `write` or `finish` returns an error with
/// [`Error::is_storage`]), all readers get that error. Each reader then streams the rest of the
/// blob from the upstream. After [`Error::WrongDigest`] with `resumed`, one retry from byte 0 may
/// succeed. A reader can retry only if it has sent no byte to its client; any other reader aborts
/// its response.
pub struct Fill {
    store: Arc<Store>,
    shared_fill: Arc<SharedFill>,
    media_type: Option<MediaType>,
    /// The registry of the fill, and the repository, once it is known that the repository has the
    /// blob.
    origin: Origin,
    offset: u64,
    position: u64,
    size: Option<u64>,
    terms: Terms,
    is_ended: bool,
}

impl Fill {
    /// Opens the staging file of a newly registered fill. If this panics, the fill ends as after an
    /// error. Blocks.
    pub(crate) fn lead(store: Arc<Store>, shared_fill: &Arc<SharedFill>) -> Result<Self, Error> {
        let panics = store.config.background.panics();
        let led = panics.catch(BackgroundTask::CacheFill, || {
            Self::open(&store, shared_fill)
        });
        led.unwrap_or_else(|| {
            let error = Error::Abandoned("opening its staging panicked".into());
            shared_fill.close();
            store.end_fill(shared_fill, None);
            shared_fill
                .progress
                .send_modify(|progress| progress.outcome = Some(Err(error.clone())));
            Err(error)
        })
    }

    fn open(store: &Arc<Store>, shared_fill: &Arc<SharedFill>) -> Result<Self, Error> {
        match store.stage(&shared_fill.digest, shared_fill.origin) {
            Ok((staged, reserved)) => {
                shared_fill.set_staged(&*staged, reserved);
                let fill = Self::new(store.clone(), shared_fill.clone(), staged.size());
                let ingest = Ingest::new(store.clone(), shared_fill, staged);
                shared_fill.start(Box::new(ingest));
                Ok(fill)
            }
            Err(error) => {
                shared_fill.close();
                shared_fill
                    .progress
                    .send_modify(|progress| progress.outcome = Some(Err(error.clone())));
                Err(error)
            }
        }
    }

    /// Creates the handle. `offset` is the number of staged bytes.
    fn new(store: Arc<Store>, shared_fill: Arc<SharedFill>, offset: u64) -> Self {
        Self {
            store,
            origin: shared_fill.origin,
            shared_fill,
            media_type: None,
            offset,
            position: offset,
            size: None,
            terms: Terms::default(),
            is_ended: false,
        }
    }

    /// Creates a new reader of this fill.
    pub(crate) fn tail(&self) -> TailReader {
        TailReader::new(self.shared_fill.clone())
    }

    /// Waits until the fill has no reader. A reader may come later. Cancel safe.
    pub async fn unread(&self) {
        self.shared_fill.progress.closed().await;
    }

    /// Returns a value that tells whether this fill still has readers.
    pub fn readers(&self) -> Readers {
        Readers::of(&self.shared_fill)
    }

    pub(crate) fn set_media_type(&mut self, media_type: MediaType) {
        self.media_type = Some(media_type);
    }

    /// Sets the repository that has the blob, according to the registry of this fill.
    pub fn set_repository(&mut self, repository: &Repository) {
        self.origin = self.origin.in_repository(repository);
    }

    /// Sets the estimated number of seconds for which a client waits for a fetch of this blob. The
    /// policy uses this cost to rank the blob. The leader calls this before [`Fill::begin`]. The
    /// default is an estimate for a distant registry.
    pub fn set_cost(&mut self, seconds: f32) {
        self.terms.cost = Some(seconds).filter(|it| it.is_finite() && *it >= 0.0);
    }

    /// Skips the admission filter, for a blob that must be stored. The leader calls this before
    /// [`Fill::begin`].
    pub fn insist(&mut self) {
        self.terms.always = true;
    }

    /// Returns the digest of the blob.
    pub fn digest(&self) -> Digest {
        self.shared_fill.digest
    }

    /// Returns the number of bytes that an earlier fill staged. The leader fetches the content from
    /// this offset on. The offset is a multiple of 64 KiB. If the staged bytes are valid, the
    /// offset is less than the size of the content.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Announces the size of the whole content, before the first write. Reserves the first step of
    /// disk space and evicts blobs for this step; `write` reserves further steps as bytes arrive.
    /// Refuses a size that can never fit, and a blob that the admission filter rejects. Each reader
    /// that has joined before this call counts as one request for the admission filter. Readers see
    /// no bytes before this call.
    ///
    /// # Errors
    /// [`Error::NoRoom`], [`Error::TooLarge`] or [`Error::NotAdmitted`]: the readers then stream
    /// the blob from the upstream. [`Error::WrongSize`] when more bytes than `size` are staged.
    /// After each of these errors, the fill has ended.
    pub async fn begin(&mut self, size: Option<u64>) -> Result<(), Error> {
        if let Some(expected) = size
            && expected < self.position
        {
            let error = Error::WrongSize {
                digest: self.digest(),
                expected,
                actual: self.position,
            };
            return Err(self.fail(error).await);
        }
        let (store, shared_fill) = (self.store.clone(), self.shared_fill.clone());
        let need = Store::need(size.unwrap_or(self.position), self.media_type.as_ref());
        let mut terms = self.terms;
        terms.small = self.media_type.is_some() || size.is_some_and(|size| size <= MAX_SMALL_BLOB);
        let reserved =
            blocking(move || reservation::announce(&store, &shared_fill, size, need, terms)).await;
        if let Err(error) = reserved {
            // The blob may be admitted tomorrow, when the daily write budget starts anew. Therefore
            // the staged bytes are kept, and a later fill can resume them.
            let keep = matches!(error, Error::NotAdmitted { .. }) && self.position > 0;
            return Err(self.end(error, keep).await);
        }
        self.size = size;
        self.shared_fill
            .progress
            .send_modify(|progress| progress.size = Some(size));
        Ok(())
    }

    /// Deletes the staged bytes, because the upstream cannot resume the download. The leader calls
    /// [`Fill::begin`] next. Readers that have already read staged bytes get [`Error::Restarted`],
    /// because the new bytes may differ from the staged bytes.
    ///
    /// # Errors
    /// [`Error::Io`], after which the fill has ended.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let mut progress = self.shared_fill.progress.subscribe();
        let before = progress.borrow().generation;
        self.shared_fill.order(Order::Clear);
        let cleared = progress
            .wait_for(|progress| progress.generation > before || progress.outcome.is_some())
            .await;
        if !cleared.is_ok_and(|progress| progress.outcome.is_none()) {
            return Err(self.shared_fill.failure().await);
        }
        (self.offset, self.position, self.size) = (0, 0, None);
        Ok(())
    }

    /// Queues the next bytes of the content for the disk and returns. At most 1 MiB is queued; if
    /// the queue is full, waits. Cancel safe: a cancelled call has queued nothing.
    ///
    /// # Errors
    /// [`Error::WrongSize`] when more bytes than announced were written. Also [`Error::Io`],
    /// [`Error::NoRoom`] or [`Error::TooLarge`]. After each of these errors, the fill has ended.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let actual = self.position + bytes.len() as u64;
        if let Some(expected) = self.size
            && actual > expected
        {
            let error = Error::WrongSize {
                digest: self.digest(),
                expected,
                actual,
            };
            return Err(self.fail(error).await);
        }
        self.shared_fill.push(bytes).await?;
        self.position = actual;
        Ok(())
    }

    /// Sets a call that gets the error of this fill before any reader gets it. A reader may claim
    /// the digest again as soon as it has the error, so the leader must record by then which
    /// address sent wrong bytes. The call runs on a blocking thread. It does not run if the fill
    /// succeeds, or if its worker panics.
    pub fn before_failure(&self, call: impl FnOnce(&Error) + Send + 'static) {
        self.shared_fill.set_on_failure(Box::new(call));
    }

    /// Verifies length and digest, gives the last piece to the readers, and commits the blob
    /// durably. If the future is dropped, the commit continues.
    ///
    /// # Errors
    /// [`Error::WrongDigest`] or [`Error::WrongSize`]: the staged bytes are deleted, and the
    /// readers get the error. [`Error::Io`]: the readers have the whole verified content, but the
    /// blob is not stored.
    pub async fn finish(mut self) -> Result<StoredBlob, Error> {
        if let Some(expected) = self.size
            && self.position != expected
        {
            let error = Error::WrongSize {
                digest: self.digest(),
                expected,
                actual: self.position,
            };
            return Err(self.fail(error).await);
        }
        self.is_ended = true;
        self.shared_fill
            .order(Order::Finish(self.media_type.take(), self.origin));
        Ok(StoredBlob::new(self.shared_fill.outcome().await?))
    }

    /// Ends the fill. The readers get the reason `why`. The staged bytes are kept for the next
    /// leader.
    pub fn abandon(mut self, why: &str) {
        self.is_ended = true;
        self.shared_fill.order(Order::Abandon {
            why: Error::Abandoned(why.into()),
            keep: true,
        });
    }

    /// Ends the fill with an error, and deletes the staged bytes.
    async fn fail(&mut self, why: Error) -> Error {
        self.end(why, false).await
    }

    async fn end(&mut self, why: Error, keep: bool) -> Error {
        self.is_ended = true;
        self.shared_fill.order(Order::Abandon { why, keep });
        self.shared_fill.failure().await
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.is_ended {
            let why = Error::Abandoned("the fetch was cancelled".into());
            self.shared_fill.order(Order::Abandon { why, keep: true });
        }
    }
}
