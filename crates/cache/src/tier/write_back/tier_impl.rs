//! Implements [`Tier`] for the fast tier and the disk together: chooses the tier of each fill (the
//! download of a blob into the cache) and the copy that a reader opens.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::fill::{DiskFill, FastFill};
use super::open::FastBlob;
use super::room::Room;
use super::{Hint, WriteBack, count};
use crate::tier::copy_key::CopyKey;
use crate::tier::placement::Destination;
use crate::tier::{Blob, MultiTier, Staged, Tier, TierEntry};

impl WriteBack {
    /// Opens staging for a fill on the fast tier. `None` when the fast tier has no room or fails.
    fn stage_fast(&self, digest: &Digest, hint: Hint) -> Option<Box<dyn Staged>> {
        let key = CopyKey::whole(digest);
        let cut = self.fast.state.lock().take_partial(&key);
        let room = cut.unwrap_or_else(|| Room::new(&self.fast.state.lock().totals));
        let expected = self.fast.footprint(hint.bytes, None).max(1);
        let staged = match self.fast.grow(&room, expected.max(room.bytes())) {
            true => self.fast.medium.stage(digest),
            false => Err(io::ErrorKind::StorageFull.into()),
        };
        match staged {
            Ok(staged) => {
                let tiers = (self.fast.clone(), self.disk.clone());
                Some(Box::new(FastFill::new(tiers, *digest, hint, staged, room)))
            }
            Err(error) => {
                tracing::debug!(%digest, %error, "staged on the disk");
                let _ = self.fast.medium.discard(digest);
                None
            }
        }
    }
}

impl Tier for WriteBack {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let (hint, there, cut) = {
            let mut state = self.fast.state.lock();
            let default = Hint {
                destination: self.options.default_destination,
                ..Hint::default()
            };
            let hint = state.take_hint(digest).unwrap_or(default);
            let there = state.on_disk.contains(digest) || state.has(&CopyKey::whole(digest));
            (hint, there, state.has_partial(digest))
        };
        let fast = !there && (cut || hint.destination == Destination::Fast);
        let fast = fast && !self.fast.has_failed();
        // If the blob is on the disk, its new fill is written to the disk.
        if fast
            && (cut || !self.disk.has(digest))
            && let Some(staged) = self.stage_fast(digest, hint)
        {
            return Ok(staged);
        }
        Ok(Box::new(DiskFill::new(&self.fast, &self.disk, *digest)?))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        let key = CopyKey::whole(digest);
        let _hold = self.fast.block_write_back(digest);
        let _guard = self.fast.key_locks.lock(key);
        let (room, on_disk) = {
            let mut state = self.fast.state.lock();
            (state.take_partial(&key), state.on_disk.remove(digest))
        };
        if room.is_some() {
            self.fast.medium.discard(digest)?;
        }
        if on_disk {
            self.disk.tier.discard(digest)?;
        }
        Ok(())
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let (whole, part) = {
            let state = self.fast.state.lock();
            (state.has_whole(digest), state.has(&CopyKey::hot(digest)))
        };
        let counters = &self.fast.counters;
        if whole && let Some(copy) = self.fast.open(&CopyKey::whole(digest))? {
            count(&counters.hits, 1);
            return Ok(Some(FastBlob::of(&self.fast, copy)));
        }
        match self.disk.open(digest)? {
            Some(blob) if part => self.hot.open(digest, blob).map(Some),
            blob => {
                if blob.is_some() {
                    count(&counters.disk_hits, 1);
                }
                Ok(blob)
            }
        }
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        let _hold = self.fast.block_write_back(digest);
        {
            let key = CopyKey::whole(digest);
            let _guard = self.fast.key_locks.lock(key);
            self.fast.remove(&key);
        }
        self.hot.remove(digest);
        self.disk.tier.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        let mut seen = HashSet::new();
        self.fast.medium.scan(&mut |found| {
            if self.fast.state.lock().has_whole(&found.digest) && seen.insert(found.digest) {
                visit(found);
            }
        })?;
        self.disk.tier.scan(&mut |found| {
            if !seen.contains(&found.digest) {
                visit(found);
            }
        })
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.fast.medium.scan_staged(&mut |found| {
            if self.fast.state.lock().has_partial(&found.digest) {
                visit(found);
            }
        })?;
        // Other staged bytes on the disk are incomplete copies from the fast tier, and not fills.
        self.disk.tier.scan_staged(&mut |found| {
            if self.fast.state.lock().on_disk.contains(&found.digest) {
                visit(found);
            }
        })
    }

    /// Returns the number of free bytes of the disk, minus the bytes of dirty blobs, because these
    /// bytes still have to be written to the disk.
    fn free(&self) -> io::Result<u64> {
        let dirty = self.fast.state.lock().totals.dirty();
        Ok(self.disk.tier.free()?.saturating_sub(dirty))
    }

    /// Returns the file on the disk: a fill whose writes fail on the fast tier moves to the disk.
    fn staged_file(&self, digest: &Digest) -> Option<PathBuf> {
        self.disk.tier.staged_file(digest)
    }

    fn blob_file(&self, digest: &Digest) -> Option<PathBuf> {
        let is_fast = self.fast.state.lock().has_whole(digest);
        match is_fast {
            true => self.fast.medium.blob_file(digest),
            false => self.disk.tier.blob_file(digest),
        }
    }

    fn multi_tier(&self) -> Option<&dyn MultiTier> {
        Some(self)
    }
}

impl MultiTier for WriteBack {
    fn fall_back(&self, digest: &Digest, at: Option<u64>) -> io::Result<bool> {
        if self.hot.is_cold(digest, at) {
            return Ok(false);
        }
        let _hold = self.fast.block_write_back(digest);
        let whole = {
            let key = CopyKey::whole(digest);
            let _guard = self.fast.key_locks.lock(key);
            self.fast.remove(&key)
        };
        // If the fast tier has only hot ranges of the blob, the disk has the whole blob.
        let Some(is_clean) = whole.or_else(|| self.hot.remove_damaged(digest)) else {
            return Ok(false);
        };
        count(&self.fast.counters.damaged, 1);
        count(&self.fast.counters.corrupt, 1);
        self.fast.has_failed();
        Ok(is_clean)
    }

    fn close(&self) {
        self.fast.state.lock().is_stopped = true;
        self.fast.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // An error means that the thread panicked. The panic was logged when it happened.
            let _ = thread.join();
        }
    }
}
