//! Tier and state kept in step: opening, reserving, evicting, removing. All methods block.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pierhead_oci::{Digest, MediaType};

use crate::buffer::Pool;
use crate::checked::{Checked, Identity};
use crate::folder::Folder;
use crate::memory::Small;
use crate::metrics::Metrics;
use crate::object::{Object, OpenBlob};
use crate::state::{State, Victim, footprint};
use crate::tier::{Blob, CHUNK, Staged, Tier, Trailer, is_damage};
use crate::turns::Turns;
use crate::{Config, Error, lock, now};

/// Locks are always taken in this order: `reclaim`, a turn, `state`. Only `state` is taken on async
/// threads, and nothing is waited for while it is held.
pub(crate) struct Store {
    pub(crate) config: Config,
    pub(crate) tier: Arc<dyn Tier>,
    pub(crate) state: Mutex<State>,
    pub(crate) pool: Pool,
    pub(crate) metrics: Metrics,
    pub(crate) checked: Checked,
    /// One eviction run at a time: two would both free what one needs.
    reclaim: Mutex<()>,
    /// Opening, committing and deleting one digest exclude one another.
    turns: Turns<Digest>,
    /// Whether some fill is being synced early.
    pub(crate) syncing: AtomicBool,
    /// Held for its lock.
    folder: Mutex<Option<Folder>>,
}

/// Runs `work` off the async threads. Cancelling the future does not stop the work.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down: whoever waits is about to be dropped.
        Err(_) => std::future::pending().await,
    }
}

impl Store {
    pub(crate) fn new(config: Config, tier: Arc<dyn Tier>, state: State, folder: Folder) -> Self {
        Self {
            config,
            tier,
            state: Mutex::new(state),
            pool: Pool::default(),
            metrics: Metrics::default(),
            checked: Checked::default(),
            reclaim: Mutex::new(()),
            turns: Turns::default(),
            syncing: AtomicBool::new(false),
            folder: Mutex::new(Some(folder)),
        }
    }

    /// Gives the data folder back.
    pub(crate) fn unlock(&self) {
        lock(&self.folder).take();
    }

    /// An [`Error::Io`] that names the blob's file.
    pub(crate) fn io(&self, action: &'static str, digest: &Digest, source: io::Error) -> Error {
        let path: PathBuf = [
            self.config.data.as_os_str(),
            "blobs".as_ref(),
            digest.algorithm().as_str().as_ref(),
        ]
        .iter()
        .collect();
        Error::io(action, path.join(digest.hex()), source)
    }

    /// Opens a committed blob; `None` when it is not there, or was damaged and is now removed.
    pub(crate) fn open(self: &Arc<Self>, digest: &Digest) -> Result<Option<Arc<OpenBlob>>, Error> {
        let turn = self.turns.take(*digest);
        {
            let state = lock(&self.state);
            if !state.index.contains_key(digest) {
                return Ok(None);
            }
            if let Some(open) = state.open.get(digest).and_then(|(_, open)| open.upgrade()) {
                return Ok(Some(open));
            }
        }
        match self.tier.open(digest) {
            Ok(Some(blob)) => Ok(Some(self.register(digest, blob, |_| ()))),
            Ok(None) => {
                drop(turn);
                self.remove_damaged(digest, None);
                Ok(None)
            }
            Err(error) if is_damage(&error) => {
                tracing::warn!(%digest, %error, "a stored blob cannot be opened");
                drop(turn);
                self.remove_damaged(digest, None);
                Ok(None)
            }
            Err(error) => Err(self.io("open", digest, error)),
        }
    }

    /// Opens a committed blob, as [`Store::open`]; a small one is read and checked at once, and held in memory.
    pub(crate) fn load(self: &Arc<Self>, digest: &Digest) -> Result<Option<Object>, Error> {
        let Some(open) = self.open(digest)? else {
            return Ok(None);
        };
        match self.hold(&open) {
            Ok(Some(small)) => Ok(Some(Object::small(small))),
            Ok(None) => Ok(Some(Object::new(open))),
            Err(error) if is_damage(&error) => {
                tracing::warn!(%digest, %error, "a stored blob cannot be read");
                self.remove_damaged(digest, Some(open.handle));
                Ok(None)
            }
            Err(error) => Err(self.io("read", digest, error)),
        }
    }

    /// Reads, checks and holds a blob that is small enough; `None` when it is not.
    fn hold(&self, open: &OpenBlob) -> io::Result<Option<Arc<Small>>> {
        let trailer = open.blob.trailer();
        let size = match usize::try_from(trailer.size()) {
            Ok(size) if lock(&self.state).memory.takes(trailer.size()) => size,
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
        let small = Arc::new(Small {
            digest: open.digest,
            media_type: trailer.media_type().cloned(),
            bytes: bytes.into(),
        });
        lock(&self.state).hold(small.clone(), open.handle);
        Ok(Some(small))
    }

    /// Makes a handle known; `before` runs under the same lock.
    fn register(
        self: &Arc<Self>,
        digest: &Digest,
        blob: Arc<dyn Blob>,
        before: impl FnOnce(&mut State),
    ) -> Arc<OpenBlob> {
        let mut state = lock(&self.state);
        before(&mut state);
        let handle = state.next_handle();
        let open = Arc::new(OpenBlob {
            digest: *digest,
            handle,
            blob,
            store: self.clone(),
        });
        state.open.insert(*digest, (handle, Arc::downgrade(&open)));
        open
    }

    /// Commits staged bytes and enters them into the index; `reserved` bytes were set aside for them.
    pub(crate) fn commit(
        self: &Arc<Self>,
        digest: &Digest,
        staged: Box<dyn Staged>,
        trailer: Trailer,
        reserved: u64,
    ) -> Result<Arc<OpenBlob>, Error> {
        let _turn = self.turns.take(*digest);
        let (size, media_type) = (trailer.size(), trailer.media_type().cloned());
        let begun = Instant::now();
        match staged.commit(trailer) {
            Ok(blob) => {
                self.metrics
                    .commit_seconds
                    .observe(begun.elapsed().as_secs_f64());
                // Its digest was checked, over the bytes that were written.
                if let Some(identity) = blob.file().and_then(Identity::of) {
                    let (chunks, now) = (0..size.div_ceil(CHUNK as u64), Instant::now());
                    self.checked.add(digest, identity, size, chunks, now);
                }
                let open = self.register(digest, blob, |state| {
                    state.reserved -= reserved;
                    state.insert(*digest, size, media_type, now());
                    state.fills.remove(digest);
                });
                // From the page cache: who asks next finds it in memory. Should that fail, a reader will see.
                let _ = self.hold(&open);
                Ok(open)
            }
            Err(error) => {
                // Half a commit may have given it its name already.
                let older = lock(&self.state).index.contains_key(digest);
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
                Err(self.io("commit", digest, error))
            }
        }
    }

    fn free(&self) -> u64 {
        self.tier.free().unwrap_or(u64::MAX)
    }

    /// Refuses a content of `size` bytes that may not be stored, or whose `more` bytes on disk cannot be had even
    /// if all that may leave did. Evicts nothing.
    pub(crate) fn admit(&self, size: u64, more: u64) -> Result<(), Error> {
        let limit = self.config.max_blob;
        if limit > 0 && size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        if more == 0 {
            return Ok(());
        }
        let free = self.free();
        let state = lock(&self.state);
        if self.short(&state, free, more) > state.evictable() {
            return Err(Error::NoRoom { needed: more });
        }
        Ok(())
    }

    /// How much must leave before `bytes` more can be set aside.
    fn short(&self, state: &State, free: u64, bytes: u64) -> u64 {
        // What an upstream says of a length may be anything.
        let total = state.total().saturating_add(bytes);
        let wanted = self
            .config
            .min_free
            .saturating_add(state.pending())
            .saturating_add(bytes);
        total
            .saturating_sub(state.capacity)
            .max(wanted.saturating_sub(free))
    }

    /// Sets `bytes` aside, evicting for them down to the low watermark.
    ///
    /// # Errors
    /// [`Error::NoRoom`]; nothing is evicted when that could not help.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Error> {
        enum Next {
            Sample,
            Reclaim,
            Delete(Victim),
        }
        let mut reclaim = None;
        let mut spared = Vec::new();
        let mut evicting = false;
        // A figure of before a deletion will do to go on deleting, not to stop.
        let (mut free, mut fresh) = (self.free(), true);
        let outcome = loop {
            let next = {
                let mut state = lock(&self.state);
                let short = self.short(&state, free, bytes);
                let total = state.total().saturating_add(bytes);
                // Once at it, a little more: so that not every fill has to wait for a deletion.
                let slack = (state.capacity / 64).min(64 << 20);
                let enough = !evicting || total.saturating_add(slack) <= state.capacity;
                let scarce = short > total.saturating_sub(state.capacity);
                if !fresh && (scarce || (short == 0 && enough)) {
                    Next::Sample
                } else if short == 0 && enough {
                    state.reserved += bytes;
                    break Ok(());
                } else if reclaim.is_none() {
                    Next::Reclaim
                } else if short > state.evictable() {
                    break Err(Error::NoRoom { needed: bytes });
                } else {
                    evicting = true;
                    match state.victim(Some(&mut spared)) {
                        Some(victim) => Next::Delete(victim),
                        None if short > 0 => break Err(Error::NoRoom { needed: bytes }),
                        None if fresh => {
                            state.reserved += bytes;
                            break Ok(());
                        }
                        None => Next::Sample,
                    }
                }
            };
            match next {
                Next::Sample => (free, fresh) = (self.free(), true),
                Next::Reclaim => reclaim = Some(lock(&self.reclaim)),
                Next::Delete(victim) => {
                    self.delete(victim);
                    fresh = false;
                }
            }
        };
        if !spared.is_empty() {
            lock(&self.state).spare(spared);
        }
        outcome
    }

    /// Evicts until no more is used and reserved than the capacity, as far as pins and readers allow.
    pub(crate) fn shrink(&self) {
        self.evict_while(|state| state.total() > state.capacity, true);
    }

    /// Evicts until at most `target` bytes are used, also what is being read (those bytes are free when
    /// the last reader leaves); says how many were evicted.
    pub(crate) fn prune(&self, target: u64) -> u64 {
        self.evict_while(|state| state.used + state.partials.bytes() > target, false)
    }

    fn evict_while(&self, over: impl Fn(&State) -> bool, spare_open: bool) -> u64 {
        let _reclaim = lock(&self.reclaim);
        let (mut evicted, mut spared) = (0, Vec::new());
        loop {
            let victim = {
                let mut state = lock(&self.state);
                if !over(&state) {
                    break;
                }
                state.victim(spare_open.then_some(&mut spared))
            };
            let Some(victim) = victim else { break };
            let (Victim::Blob(_, bytes) | Victim::Partial(_, bytes)) = victim;
            evicted += bytes;
            self.delete(victim);
        }
        lock(&self.state).spare(spared);
        evicted
    }

    /// Gives back bytes that were set aside.
    pub(crate) fn release(&self, bytes: u64) {
        lock(&self.state).reserved -= bytes;
    }

    /// Deletes the file of a victim and frees its bytes.
    pub(crate) fn delete(&self, victim: Victim) {
        let (Victim::Blob(digest, bytes) | Victim::Partial(digest, bytes)) = victim;
        let _turn = self.turns.take(digest);
        let removed = match victim {
            // Committed again meanwhile: then the rename has deleted the old file.
            Victim::Blob(..) if lock(&self.state).index.contains_key(&digest) => Ok(()),
            Victim::Blob(..) => self.tier.remove(&digest),
            // Claimed again meanwhile: then [`Store::stage`] empties it.
            Victim::Partial(..) if lock(&self.state).fills.contains_key(&digest) => Ok(()),
            Victim::Partial(..) => self.tier.discard(&digest),
        };
        if let Err(error) = removed {
            // The bytes are still there, so they stay counted.
            tracing::warn!(%digest, %error, "cannot delete; its bytes stay counted until a restart");
            return;
        }
        match victim {
            Victim::Blob(..) => {
                self.metrics.evictions.inc();
                self.metrics.evicted_bytes.inc_by(bytes);
                lock(&self.state).gone(&digest, bytes);
            }
            Victim::Partial(..) => self.release(bytes),
        }
    }

    /// Opens the staged bytes of a digest whose flight is entered, with the bytes that are reserved for them.
    /// After an error the flight is entered no more.
    pub(crate) fn stage(&self, digest: &Digest) -> Result<(Box<dyn Staged>, u64), Error> {
        let _turn = self.turns.take(*digest);
        let partial = lock(&self.state).partials.remove(digest);
        let reserved = partial.map_or(0, |partial| partial.bytes);
        let staged = self.tier.stage(digest).and_then(|mut staged| {
            // Its bytes were about to be deleted, and are counted no more.
            if reserved == 0 && !staged.is_empty() {
                staged.clear()?;
            }
            Ok(staged)
        });
        staged.map(|staged| (staged, reserved)).map_err(|error| {
            let mut state = lock(&self.state);
            state.fills.remove(digest);
            if let Some(partial) = partial {
                // The file is still there, so it stays counted, and can be deleted for room.
                state.partials.insert(*digest, partial);
            }
            drop(state);
            if partial.is_none()
                && let Err(error) = self.tier.discard(digest)
            {
                tracing::warn!(%digest, %error, "cannot delete what is staged");
            }
            self.io("stage", digest, error)
        })
    }

    /// Takes a damaged blob out and deletes it, unless it has been replaced since `handle` was opened.
    pub(crate) fn remove_damaged(&self, digest: &Digest, handle: Option<u64>) {
        let _turn = self.turns.take(*digest);
        let taken = {
            let mut state = lock(&self.state);
            match (handle, state.open.get(digest)) {
                (Some(ours), Some((current, _))) if ours != *current => None,
                (Some(_), None) => None,
                _ => state.take(digest),
            }
        };
        let Some(bytes) = taken else { return };
        self.metrics.rot.inc();
        tracing::error!(%digest, "a stored blob is damaged: removed, it will be fetched again");
        match self.tier.remove(digest) {
            Ok(()) => lock(&self.state).gone(digest, bytes),
            Err(error) => {
                tracing::warn!(%digest, %error, "cannot delete; its bytes stay counted until a restart")
            }
        }
    }

    /// Bytes that a blob of that size needs on disk.
    pub(crate) fn need(size: u64, media_type: Option<&MediaType>) -> u64 {
        footprint(size, media_type)
    }
}
