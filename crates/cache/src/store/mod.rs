//! The store of blobs: opens, stages, commits and removes blobs, and keeps the index in memory
//! consistent with the blobs on the tier. All methods block.

pub(crate) mod admission;
pub(crate) mod blocks;
pub(crate) mod catalog;
pub(crate) mod data_folder;
mod disk_space;
pub(crate) mod image_counts;
pub(crate) mod maintenance;
pub(crate) mod origins;
pub(crate) mod partials;
pub(crate) mod pins;
pub(crate) mod placer;
pub(crate) mod policy_clock;
pub(crate) mod policy_state;
pub(crate) mod ranking;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod small_blobs;
pub(crate) mod stat;
pub(crate) mod state;
pub(crate) mod tag_store;

use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pierhead_host::KeyedLock;
use pierhead_oci::{Digest, Hasher, MediaType};

use crate::blob::StoredBlob;
use crate::blob::buffer::{BUFFER, Pool};
use crate::blob::open_blob::{BlobOwner, OpenBlob};
use crate::blob::verified_chunks::{Identity, VerifiedChunks};
use crate::clock::now;
use crate::config::Config;
use crate::error::Error;
use crate::fill::shared_fill::SharedFill;
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::store::blocks::footprint;
use crate::store::data_folder::DataFolder;
use crate::store::origins::Origins;
use crate::store::partials::Partial;
use crate::store::placer::Placer;
use crate::store::small_blobs::SmallBlob;
use crate::store::state::State;
use crate::tier::{Blob, CHUNK, Staged, Tier, Trailer, is_damage};

/// Lock order: `reclaim`, then the lock of a digest, then the index of tags, then `state`. Async
/// threads take only the lock `state`, and no thread waits for anything while it holds `state`.
pub(crate) struct Store {
    pub(crate) config: Config,
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) state: Mutex<State>,
    pub(crate) pool: Pool,
    pub(crate) metrics: Metrics,
    pub(crate) verified: VerifiedChunks,
    pub(crate) origins: Origins,
    /// Ensures that one eviction runs at a time: two simultaneous evictions would evict more than
    /// needed.
    pub(crate) reclaim: Mutex<()>,
    /// Locks a digest while it is opened, committed or deleted.
    pub(crate) digest_locks: KeyedLock<Digest>,
    /// Whether a fill is doing an early sync.
    pub(crate) syncing: AtomicBool,
    /// Applies the placement rules. `None` without a fast tier.
    pub(crate) placer: Option<Placer>,
    /// The lock of the data folder. The lock is held until [`Store::unlock`].
    folder: Mutex<Option<DataFolder>>,
}

/// A registered fill without staged bytes. If a panic drops this value, the fill is removed.
struct FillRegistration<'a> {
    store: &'a Store,
    digest: Digest,
    /// The partial fill that this fill resumes.
    partial: Option<Partial>,
}

impl FillRegistration<'_> {
    fn remove(&self) {
        let mut state = self.store.state.lock();
        state.fills.remove(&self.digest);
        if let Some(partial) = self.partial {
            // The file of the partial fill still exists, so the partial fill still counts as used
            // space and can be evicted.
            state.partials.insert(self.digest, partial);
        }
    }
}

impl Drop for FillRegistration<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.remove();
        }
    }
}

impl BlobOwner for Store {
    fn buffers(&self) -> &Pool {
        &self.pool
    }

    fn verified_chunks(&self) -> &VerifiedChunks {
        &self.verified
    }

    fn blob_error(&self, action: &'static str, digest: &Digest, source: io::Error) -> Error {
        self.io_error(action, self.tier.blob_file(digest), source)
    }

    fn staged_error(&self, action: &'static str, digest: &Digest, source: io::Error) -> Error {
        self.io_error(action, self.tier.staged_file(digest), source)
    }

    fn remove_damaged(&self, digest: &Digest, handle: u64, at: Option<u64>) {
        self.remove_damaged(digest, handle, at);
    }

    fn closed(&self, digest: &Digest, handle: u64) {
        self.state.lock().handle_closed(digest, handle);
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("data", &self.config.data)
            .finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn new(
        config: Config,
        (tier, placer): (Arc<dyn Tier>, Option<Placer>),
        state: State,
        (folder, origins): (DataFolder, Origins),
    ) -> Self {
        Self {
            config,
            tier,
            state: Mutex::new(state),
            pool: Pool::default(),
            metrics: Metrics::default(),
            verified: VerifiedChunks::default(),
            origins,
            reclaim: Mutex::new(()),
            digest_locks: KeyedLock::default(),
            syncing: AtomicBool::new(false),
            placer,
            folder: Mutex::new(Some(folder)),
        }
    }

    /// Releases the lock of the data folder.
    pub(crate) fn unlock(&self) {
        self.folder.lock().take();
    }

    /// Creates an [`Error::Io`] with this file, or with the data folder if the tier has no file for
    /// the digest.
    fn io_error(&self, action: &'static str, file: Option<PathBuf>, source: io::Error) -> Error {
        let file = file.unwrap_or_else(|| self.config.data.clone());
        Error::io(action, file, source)
    }

    /// Opens a committed blob for a request. `None` when the blob is absent, or was damaged and has
    /// been removed.
    pub(crate) fn open(self: &Arc<Self>, digest: &Digest) -> Result<Option<Arc<OpenBlob>>, Error> {
        self.open_for(digest, true)
    }

    /// Opens a committed blob like [`Self::open`]. The open counts as an access for the fast tier
    /// only if it is for a request.
    pub(crate) fn open_for(
        self: &Arc<Self>,
        digest: &Digest,
        is_request: bool,
    ) -> Result<Option<Arc<OpenBlob>>, Error> {
        // The digest stays locked until a damaged blob is removed. Without the lock, the removal
        // could delete a new copy that was committed in between.
        let _guard = self.digest_locks.lock(*digest);
        {
            let state = self.state.lock();
            if !state.index.contains_key(digest) {
                return Ok(None);
            }
            if let Some(open) = state.open.get(digest).and_then(|(_, open)| open.upgrade()) {
                return Ok(Some(open));
            }
        }
        match self.tier.open(digest) {
            Ok(Some(blob)) => {
                if is_request && let Some(placer) = &self.placer {
                    placer.count_request(digest, blob.trailer().size(), &self.state);
                }
                Ok(Some(self.register(digest, blob, |_| ())))
            }
            Ok(None) => {
                self.remove_unusable(digest);
                Ok(None)
            }
            Err(error) if is_damage(&error) => {
                tracing::warn!(%digest, %error, "a stored blob cannot be opened");
                self.remove_unusable(digest);
                Ok(None)
            }
            Err(error) => Err(self.blob_error("open", digest, error)),
        }
    }

    /// Opens a committed blob like [`Store::open`]. Also reads and verifies a small blob and puts
    /// it into memory.
    pub(crate) fn load(self: &Arc<Self>, digest: &Digest) -> Result<Option<StoredBlob>, Error> {
        let Some(open) = self.open(digest)? else {
            return Ok(None);
        };
        match self.load_small(&open) {
            Ok(Some(small)) => Ok(Some(StoredBlob::small(small))),
            Ok(None) => Ok(Some(StoredBlob::new(open))),
            Err(error) if is_damage(&error) => {
                tracing::warn!(%digest, %error, "a stored blob cannot be read");
                self.remove_damaged(digest, open.handle, None);
                Ok(None)
            }
            Err(error) => Err(self.blob_error("read", digest, error)),
        }
    }

    /// Reads and verifies a small blob, and puts it into memory. `None` for a larger blob.
    fn load_small(&self, open: &OpenBlob) -> io::Result<Option<Arc<SmallBlob>>> {
        let trailer = open.blob.trailer();
        let size = match usize::try_from(trailer.size()) {
            Ok(size) if self.state.lock().memory.accepts(trailer.size()) => size,
            _ => return Ok(None),
        };
        let mut bytes = vec![0; size];
        open.blob.read_at(0, &mut bytes)?;
        if size > 0 && !trailer.sums().check(0, &bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "checksum does not match",
            ));
        }
        let small = Arc::new(SmallBlob {
            digest: open.digest,
            media_type: trailer.media_type().cloned(),
            bytes: bytes.into(),
        });
        self.state.lock().put_in_memory(small.clone(), open.handle);
        Ok(Some(small))
    }

    /// Registers an open handle. Calls `before` under the same lock of the state.
    fn register(
        self: &Arc<Self>,
        digest: &Digest,
        blob: Arc<dyn Blob>,
        before: impl FnOnce(&mut State),
    ) -> Arc<OpenBlob> {
        let mut state = self.state.lock();
        before(&mut state);
        let handle = state.next_handle();
        let open = Arc::new(OpenBlob {
            digest: *digest,
            handle,
            blob,
            owner: self.clone(),
        });
        state.register_open(&open);
        open
    }

    /// Commits staged bytes and inserts the blob into the index. `reserved` is the disk space in
    /// bytes that was reserved for the blob.
    pub(crate) fn commit(
        self: &Arc<Self>,
        shared_fill: &SharedFill,
        staged: Box<dyn Staged>,
        trailer: Trailer,
        reserved: u64,
    ) -> Result<Arc<OpenBlob>, Error> {
        let digest = &shared_fill.digest;
        let _guard = self.digest_locks.lock(*digest);
        let (size, media_type) = (trailer.size(), trailer.media_type().cloned());
        let origin = trailer.origin();
        if let Some(placer) = &self.placer {
            placer.measure_link(size, shared_fill.start, self.metrics.written_bytes.get());
        }
        let started_at = Instant::now();
        match staged.commit(trailer) {
            Ok(blob) => {
                self.metrics
                    .commit_seconds
                    .observe(started_at.elapsed().as_secs_f64());
                // The fill has hashed these bytes, so they count as verified chunks.
                if let Some(identity) = blob.extent(0).as_ref().and_then(Identity::of) {
                    let (chunks, now) = (0..size.div_ceil(CHUNK as u64), Instant::now());
                    self.verified.add(digest, identity, size, chunks, now);
                }
                self.origins.clear(digest, shared_fill.origin);
                let open = self.register(digest, blob, |state| {
                    state.reserved -= reserved;
                    // No reader can join after this point, because the fill is removed under the
                    // same lock.
                    let asked = (
                        shared_fill.cost(),
                        shared_fill.followers.load(Ordering::Relaxed),
                    );
                    state.insert(*digest, (size, media_type, origin), asked, now());
                    state.fills.remove(digest);
                    state.release_budget(shared_fill);
                });
                // The blob is read from the page cache, so that the next reader finds it in memory.
                // An error is ignored here, because the next read of the blob returns the same
                // error.
                let _ = self.load_small(&open);
                Ok(open)
            }
            Err(error) => {
                // A failed commit may already have renamed the file over an older blob.
                let older = {
                    let state = self.state.lock();
                    state.index.contains_key(digest) || state.is_unreadable(digest)
                };
                for cleanup in [
                    self.tier.discard(digest),
                    if older {
                        Ok(())
                    } else {
                        self.tier.remove(digest)
                    },
                ] {
                    if let Err(error) = cleanup {
                        tracing::warn!(%digest, %error, "cannot clean up after a failed commit");
                    }
                }
                self.origins.clear(digest, shared_fill.origin);
                Err(self.blob_error("commit", digest, error))
            }
        }
    }

    /// Opens the staged bytes of a registered fill, with their reservation. First deletes staged
    /// bytes that another registry sent. After an error, the fill is no longer registered.
    pub(crate) fn stage(
        &self,
        digest: &Digest,
        origin: Origin,
    ) -> Result<(Box<dyn Staged>, u64), Error> {
        let _guard = self.digest_locks.lock(*digest);
        let mut registration = FillRegistration {
            store: self,
            digest: *digest,
            partial: self.state.lock().partials.remove(digest),
        };
        if let Some(placer) = &self.placer {
            placer.choose_tier(digest, &self.state);
        }
        let own = match registration.partial {
            Some(other) if !other.origin.is_same_registry(&origin) => {
                self.tier.discard(digest).map(|()| {
                    self.origins.clear(digest, other.origin);
                    self.release(other.bytes);
                    registration.partial = None;
                })
            }
            _ => Ok(()),
        };
        let reserved = registration.partial.map_or(0, |partial| partial.bytes);
        let staged = own.and_then(|()| self.tier.stage(digest));
        let staged = staged.and_then(|mut staged| {
            // An eviction has released the reservation of these bytes and was about to delete them.
            if reserved == 0 && staged.size() > 0 {
                staged.clear()?;
            }
            Ok(staged)
        });
        staged.map(|staged| (staged, reserved)).map_err(|error| {
            registration.remove();
            if registration.partial.is_none()
                && let Err(error) = self.tier.discard(digest)
            {
                tracing::warn!(%digest, %error, "cannot delete what is staged");
            }
            self.staged_error("stage", digest, error)
        })
    }

    /// Ends a fill without a commit. The reservation of the fill becomes the reservation of the
    /// partial fill. If the blob is already committed, does nothing, because the bytes then belong
    /// to the blob.
    pub(crate) fn end_fill(&self, shared_fill: &SharedFill, partial: Option<Partial>) {
        let mut state = self.state.lock();
        if !state.is_running_fill(shared_fill) {
            return;
        }
        state.release_budget(shared_fill);
        state.reserved -= shared_fill.reserved.load(Ordering::Relaxed);
        if let Some(partial) = partial {
            state.reserved += partial.bytes;
            state.partials.insert(shared_fill.digest, partial);
        }
        state.fills.remove(&shared_fill.digest);
    }

    /// Deletes the damaged copy of a blob that was read through the open handle `handle`. `at` is
    /// the position of the damage in bytes, if known. If the tier has another copy, the next reader
    /// opens that copy. Does nothing if the blob was replaced after `handle` was opened.
    pub(crate) fn remove_damaged(&self, digest: &Digest, handle: u64, at: Option<u64>) {
        let _guard = self.digest_locks.lock(*digest);
        let is_current = {
            let state = self.state.lock();
            let current = state.open.get(digest);
            current.is_some_and(|(current, _)| *current == handle)
        };
        if !is_current {
            return;
        }
        let multi_tier = self.tier.multi_tier();
        if multi_tier.is_some_and(|it| it.fall_back(digest, at).unwrap_or(false)) {
            self.metrics.corrupt.inc();
            tracing::warn!(%digest, "one copy of a stored blob is damaged: removed, the other is used");
            self.state.lock().forget_open(digest);
            return;
        }
        self.remove_unusable(digest);
    }

    /// Removes a damaged or lost blob from the index and deletes it. The caller must hold the lock
    /// of the digest.
    fn remove_unusable(&self, digest: &Digest) {
        let taken = self.state.lock().remove(digest);
        if taken.is_none() {
            return;
        }
        self.metrics.corrupt.inc();
        tracing::error!(%digest, "a stored blob is damaged: removed, it will be fetched again");
        match self.tier.remove(digest) {
            Ok(()) => self.state.lock().file_deleted(digest),
            Err(error) => {
                tracing::warn!(%digest, %error, "cannot delete; its bytes stay counted until a restart")
            }
        }
    }

    /// Reads a whole blob and checks its digest. If the blob is corrupt, removes it and returns
    /// `false`. The read counts neither as an access nor as a hit.
    pub(crate) fn verify(self: &Arc<Self>, digest: &Digest) -> Result<bool, Error> {
        let known = self.state.lock().index.contains_key(digest);
        // Opening a blob verifies its trailer, and removes the blob if the trailer is damaged.
        let Some(open) = self.open_for(digest, false)? else {
            return Ok(!known);
        };
        let mut hasher = Hasher::new(digest.algorithm());
        let (mut offset, size) = (0, open.blob.trailer().size());
        let mut buffer = self.pool.take(BUFFER);
        while offset < size {
            let len = usize::try_from(size - offset).unwrap_or(BUFFER).min(BUFFER);
            let bytes = &mut buffer.as_mut()[..len];
            match open.blob.read_at(offset, bytes) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => break,
                Err(error) => return Err(self.blob_error("read", digest, error)),
            }
            hasher.update(bytes);
            offset += len as u64;
        }
        let verified_len = offset == size && hasher.finish() == *digest;
        if !verified_len {
            self.remove_damaged(digest, open.handle, None);
        }
        Ok(verified_len)
    }

    /// Returns the bytes on disk that a blob of this size and media type needs.
    pub(crate) fn need(size: u64, media_type: Option<&MediaType>) -> u64 {
        footprint(size, media_type)
    }
}
