//! The worker of one fill (the download of a blob into the cache): writes the bytes to the staging
//! file, makes them visible to readers and hashes them. At the end, the worker verifies the digest
//! and commits the blob.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Hasher, MediaType};

use crate::blob::buffer::BUFFER;
use crate::blob::open_blob::BlobOwner as _;
use crate::clock::now;
use crate::error::Error;
use crate::fill::reservation;
use crate::fill::shared_fill::{FillWorker, Order, SharedFill, Work, fill_ended};
use crate::origin::Origin;
use crate::store::Store;
use crate::store::blocks::blocks;
use crate::store::partials::Partial;
use crate::tier::placement::SYNC_INTERVAL;
use crate::tier::{CHUNK, ReadAt, Staged, Sums, Trailer};

/// Maximum number of bytes per write to the medium, and per wake-up of the readers. A single piece
/// that is larger is written in one write.
const BATCH_BYTES: usize = 256 * 1024;

/// Number of bytes of a fill after which the worker starts an early sync to the disk. Thus the
/// commit of a large blob waits only for the last bytes, and a fast fill does not fill the memory
/// with pages that are not on the disk.
const EARLY_SYNC_INTERVAL: u64 = 32 << 20;

/// The only permit for an early sync ([`Store::syncing`]). Dropping this value releases the permit.
struct SyncPermit(Arc<Store>);

impl Drop for SyncPermit {
    fn drop(&mut self) {
        self.0.syncing.store(false, Ordering::Relaxed);
    }
}

fn hasher(shared_fill: &SharedFill) -> Hasher {
    Hasher::new(shared_fill.digest.algorithm())
}

pub(crate) struct Ingest {
    store: Arc<Store>,
    staged: Box<dyn Staged>,
    reader: Arc<dyn ReadAt>,
    hasher: Hasher,
    sums: Sums,
    /// Number of hashed bytes. After a resume, this number is less than the number of staged bytes
    /// until the staged bytes are read and hashed.
    hashed: u64,
    /// Whether an earlier fill staged some of the bytes.
    resumed: bool,
    /// Whether a file in `origins/` records which registry sent the staged bytes.
    has_origin: bool,
    /// Number of bytes staged since the last [`Staged::early_sync`].
    unsynced: u64,
}

/// Ends a fill whose worker panicked. If the fill did not end, its readers and all later claims of
/// the digest would wait forever.
struct EndOnPanic {
    store: Weak<Store>,
    shared_fill: Weak<SharedFill>,
}

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Some(shared_fill) = self.shared_fill.upgrade() else {
            return;
        };
        shared_fill.close();
        if let Some(store) = self.store.upgrade() {
            // The staged bytes still exist after the panic, so they become a partial fill.
            let partial = Partial {
                bytes: shared_fill.reserved.load(Ordering::Relaxed),
                modified: now(),
                origin: shared_fill.origin,
            };
            store.end_fill(&shared_fill, Some(partial));
        }
        shared_fill
            .progress
            .send_modify(|progress| progress.outcome = Some(Err(fill_ended())));
    }
}

impl FillWorker for Ingest {
    fn run(mut self: Box<Self>, shared_fill: Arc<SharedFill>) {
        // Guards are dropped in reverse order, so the panic is counted before the readers get the
        // error.
        let _guard = EndOnPanic {
            store: Arc::downgrade(&self.store),
            shared_fill: Arc::downgrade(&shared_fill),
        };
        let panics = self.store.config.background.panics();
        let _watch = panics.watch(BackgroundTask::CacheFill);
        if let Err(error) = self.rehash(&shared_fill) {
            return self.fail(&shared_fill, error, false);
        }
        loop {
            let Some((ingest, work)) = shared_fill.next(self) else {
                return;
            };
            self = ingest;
            match work {
                Work::Pieces(pieces) => {
                    if let Err(error) = self.take(&shared_fill, pieces) {
                        return self.fail(&shared_fill, error, false);
                    }
                }
                Work::Order(Order::Clear) => {
                    if let Err(error) = self.clear(&shared_fill) {
                        return self.fail(&shared_fill, error, false);
                    }
                }
                Work::Order(Order::Abandon { why, keep }) => {
                    return self.fail(&shared_fill, why, keep);
                }
                Work::Order(Order::Finish(media_type, origin)) => {
                    return self.finish(shared_fill, media_type, origin);
                }
            }
        }
    }
}

impl Ingest {
    pub(crate) fn new(
        store: Arc<Store>,
        shared_fill: &SharedFill,
        staged: Box<dyn Staged>,
    ) -> Self {
        Self {
            store,
            reader: staged.reader(),
            hasher: hasher(shared_fill),
            sums: Sums::default(),
            hashed: 0,
            resumed: staged.size() > 0,
            has_origin: staged.size() > 0,
            unsynced: 0,
            staged,
        }
    }

    /// Reads and hashes the bytes that an earlier fill staged, unless the leader has ordered the
    /// worker to delete them.
    fn rehash(&mut self, shared_fill: &SharedFill) -> Result<(), Error> {
        let len = self.staged.size();
        if self.hashed == len {
            return Ok(());
        }
        let mut buffer = self.store.pool.take(BUFFER);
        while self.hashed < len && !shared_fill.is_interrupted() {
            let now = usize::try_from(len - self.hashed)
                .unwrap_or(BUFFER)
                .min(BUFFER);
            let bytes = &mut buffer.as_mut()[..now];
            self.reader.read_at(self.hashed, bytes).map_err(|error| {
                self.store
                    .staged_error("read again", &shared_fill.digest, error)
            })?;
            self.sums.update(self.hashed, bytes);
            self.hasher.update(bytes);
            self.hashed += now as u64;
            self.show(shared_fill);
        }
        Ok(())
    }

    fn take(&mut self, shared_fill: &Arc<SharedFill>, pieces: Vec<Bytes>) -> Result<(), Error> {
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().position(|piece| {
                bytes += piece.len();
                bytes >= BATCH_BYTES
            });
            let (batch, later) = rest.split_at(count.map_or(rest.len(), |last| last + 1));
            rest = later;
            self.take_batch(shared_fill, batch, bytes)?;
        }
        Ok(())
    }

    fn take_batch(
        &mut self,
        shared_fill: &Arc<SharedFill>,
        batch: &[Bytes],
        bytes: usize,
    ) -> Result<(), Error> {
        let len = bytes as u64;
        let size = self.staged.size() + len;
        self.store.check_room(size, 0)?;
        self.store.spend(shared_fill, len)?;
        reservation::extend(&self.store, shared_fill, Store::need(size, None))?;
        self.record_origin(shared_fill, size)?;
        let slices: Vec<&[u8]> = batch.iter().map(|piece| &piece[..]).collect();
        self.staged
            .write(&slices)
            .map_err(|error| self.store.staged_error("write", &shared_fill.digest, error))?;
        let mut position = self.hashed;
        self.hashed += len;
        // The bytes become visible before they are hashed, so that readers can continue on other
        // cores during the hashing.
        self.show(shared_fill);
        self.sync_early(shared_fill, len);
        for piece in batch {
            self.sums.update(position, piece);
            self.hasher.update(piece);
            position += piece.len() as u64;
        }
        self.store.metrics.written_bytes.inc_by(len);
        shared_fill.count_written(bytes);
        Ok(())
    }

    /// Records the registry of the fill before more than one chunk is staged. A fill resumes staged
    /// bytes only if there is more than one chunk, so a small blob needs no file in `origins/`.
    fn record_origin(&mut self, shared_fill: &SharedFill, size: u64) -> Result<(), Error> {
        if self.has_origin || size <= CHUNK as u64 {
            return Ok(());
        }
        let digest = &shared_fill.digest;
        self.store.origins.set(digest, shared_fill.origin)?;
        self.has_origin = true;
        Ok(())
    }

    /// Starts an early sync. Only one fill does an early sync at a time, so that a slow disk does
    /// not block all threads.
    fn sync_early(&mut self, shared_fill: &SharedFill, len: u64) {
        self.unsynced += len;
        let enough = match self.store.placer {
            // With a fast tier, data is synced more often, because the write-back of a layer should
            // finish before the last layer arrives. On a hard disk, these syncs cost 1/6 of the
            // throughput.
            Some(_) => SYNC_INTERVAL,
            None => EARLY_SYNC_INTERVAL,
        };
        if self.unsynced < enough {
            return;
        }
        if self.store.syncing.swap(true, Ordering::Relaxed) {
            return;
        }
        // Dropping the value releases the permit, even when the work panics or never runs.
        let permit = SyncPermit(self.store.clone());
        self.unsynced = 0;
        if let Some(sync) = self.staged.early_sync() {
            let watch = self
                .store
                .config
                .background
                .panics()
                .watch(BackgroundTask::CacheFill);
            drop(shared_fill.runtime.spawn_blocking(move || {
                let _watch = watch;
                sync();
                drop(permit);
            }));
        }
    }

    fn show(&self, shared_fill: &SharedFill) {
        shared_fill.staged.store(self.hashed, Ordering::Relaxed);
        shared_fill
            .progress
            .send_modify(|progress| progress.written = self.hashed);
    }

    fn clear(&mut self, shared_fill: &SharedFill) -> Result<(), Error> {
        self.staged
            .clear()
            .map_err(|error| self.store.staged_error("empty", &shared_fill.digest, error))?;
        (self.hasher, self.sums) = (hasher(shared_fill), Sums::default());
        (self.hashed, self.resumed) = (0, false);
        shared_fill.staged.store(0, Ordering::Relaxed);
        shared_fill.progress.send_modify(|progress| {
            progress.generation += 1;
            progress.size = None;
            progress.written = 0;
        });
        Ok(())
    }

    fn finish(
        mut self: Box<Self>,
        shared_fill: Arc<SharedFill>,
        media_type: Option<MediaType>,
        origin: Origin,
    ) {
        let actual = self.hasher.clone().finish();
        if actual != shared_fill.digest {
            let error = Error::WrongDigest {
                expected: shared_fill.digest,
                actual: Box::new(actual),
                resumed: self.resumed,
            };
            return self.fail(&shared_fill, error, false);
        }
        let size = self.hashed;
        shared_fill.progress.send_modify(|progress| {
            progress.size = Some(Some(size));
            progress.verified = true;
        });
        let trailer = Trailer::new(size, media_type, std::mem::take(&mut self.sums));
        let trailer = trailer.with_origin(origin);
        // A fill of unknown length has not reserved space for its trailer yet.
        let need = Store::need(size, trailer.media_type());
        if let Err(error) = reservation::extend(&self.store, &shared_fill, need) {
            return self.fail(&shared_fill, error, false);
        }
        let reserved = shared_fill.reserved.load(Ordering::Relaxed);
        let outcome = self
            .store
            .commit(&shared_fill, self.staged, trailer, reserved);
        let outcome = outcome.map(|open| {
            // The result is ignored: no other code sets `committed`, so setting it succeeds.
            let _ = shared_fill.committed.set(open);
        });
        if let Err(error) = &outcome {
            tracing::warn!(digest = %shared_fill.digest, %error, "cannot commit a verified fill");
            self.store.end_fill(&shared_fill, None);
        }
        // The worker drops its handles first: when callers learn the outcome, only readers may have
        // handles of the blob.
        let progress = shared_fill.progress.clone();
        drop((shared_fill, self.store));
        progress.send_modify(|progress| progress.outcome = Some(outcome));
    }

    fn fail(self: Box<Self>, shared_fill: &Arc<SharedFill>, mut error: Error, keep: bool) {
        // If the disk is full, the partial file must be deleted before the fill is closed.
        shared_fill.close();
        let len = self.staged.size();
        drop(self.staged);
        let keep = keep && len > 0;
        if !keep && let Err(source) = self.store.tier.discard(&shared_fill.digest) {
            tracing::warn!(digest = %shared_fill.digest, error = %source, "cannot delete a failed fill");
            if !matches!(source.kind(), io::ErrorKind::NotFound) && !error.is_storage() {
                error = self
                    .store
                    .staged_error("delete", &shared_fill.digest, source);
            }
        }
        let partial = keep.then(|| Partial {
            bytes: blocks(len),
            modified: now(),
            origin: shared_fill.origin,
        });
        if !keep {
            self.store
                .origins
                .clear(&shared_fill.digest, shared_fill.origin);
        }
        self.store.end_fill(shared_fill, partial);
        if !matches!(error, Error::NotAdmitted { .. }) {
            self.store.metrics.failed_fills.inc();
        }
        shared_fill.publish_failure(error);
    }
}
