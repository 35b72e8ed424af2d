//! The two as one [`Tier`]: where a fill goes, and which copy is opened.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::fill::{DiskFill, FastFill};
use super::open::SlowBlob;
use super::room::Room;
use super::{Hint, Shared, WriteBack, count, hot_copy};
use crate::tier::placement::Destination;
use crate::tier::{Blob, Found, Staged, Tier};

impl Shared {
    /// One that the disk cannot read is none: it is stored anew.
    fn is_on_disk(&self, digest: &Digest) -> bool {
        matches!(self.slow.open(digest), Ok(Some(_)))
    }

    fn stage_fast(self: &Arc<Self>, digest: &Digest, hint: Hint) -> Option<Box<dyn Staged>> {
        let cut = self.tier_state.lock().resume(digest);
        let room = cut.unwrap_or_else(|| Room::new(&self.tier_state.lock().accounts));
        let expected = self.footprint(hint.bytes, None).max(1);
        let staged = match self.grow(&room, expected.max(room.bytes())) {
            true => self.fast.stage(digest),
            false => Err(io::ErrorKind::StorageFull.into()),
        };
        match staged {
            Ok(staged) => Some(Box::new(FastFill::new(
                self.clone(),
                *digest,
                hint,
                staged,
                room,
            ))),
            Err(error) => {
                tracing::debug!(%digest, %error, "staged on the disk");
                let _ = self.fast.discard(digest);
                None
            }
        }
    }
}

impl Tier for WriteBack {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let shared = &self.shared;
        let (hint, there, cut) = {
            let mut tier_state = shared.tier_state.lock();
            let default = Hint {
                destination: shared.options.unhinted,
                ..Hint::default()
            };
            let hint = tier_state.take_hint(digest).unwrap_or(default);
            let there =
                tier_state.on_disk.contains(digest) || tier_state.entries.contains_key(digest);
            (hint, there, tier_state.is_cut(digest))
        };
        let fast = !there && (cut || hint.destination == Destination::Fast);
        let fast = fast && !shared.has_failed();
        // A blob is replaced where it will stay.
        if fast
            && (cut || !shared.is_on_disk(digest))
            && let Some(staged) = shared.stage_fast(digest, hint)
        {
            return Ok(staged);
        }
        Ok(Box::new(DiskFill::new(shared.clone(), *digest)?))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        let _hold = self.shared.hold(digest);
        let _guard = self.shared.digest_locks.lock(*digest);
        let (room, on_disk) = {
            let mut tier_state = self.shared.tier_state.lock();
            (tier_state.resume(digest), tier_state.on_disk.remove(digest))
        };
        if room.is_some() {
            self.shared.fast.discard(digest)?;
        }
        if on_disk {
            self.shared.slow.discard(digest)?;
        }
        Ok(())
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let shared = &self.shared;
        let (whole, part) = {
            let tier_state = shared.tier_state.lock();
            let part = tier_state.entries.contains_key(&hot_copy::key(digest));
            (tier_state.has_whole(digest), part)
        };
        if whole && let Some(blob) = shared.open_fast(digest)? {
            count(&shared.counters.hits, 1);
            return Ok(Some(blob));
        }
        let slow = shared.slow.open(digest)?;
        let slow = slow.map(|blob| -> Arc<dyn Blob> { Arc::new(SlowBlob::new(shared, blob)) });
        match slow {
            Some(blob) if part => shared.open_hot(digest, blob).map(Some),
            blob => {
                if blob.is_some() {
                    count(&shared.counters.disk_hits, 1);
                }
                Ok(blob)
            }
        }
    }

    fn fall_back(&self, digest: &Digest, at: Option<u64>) -> io::Result<bool> {
        if self.shared.is_cold(digest, at) {
            return Ok(false);
        }
        let _hold = self.shared.hold(digest);
        let whole = {
            let _guard = self.shared.digest_locks.lock(*digest);
            self.shared.drop_fast(digest)
        };
        // Of a copy in parts the disk has all.
        let Some(is_clean) = whole.or_else(|| self.shared.give_up_hot(digest)) else {
            return Ok(false);
        };
        count(&self.shared.counters.damaged, 1);
        count(&self.shared.counters.corrupt, 1);
        self.shared.has_failed();
        Ok(is_clean)
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        let _hold = self.shared.hold(digest);
        {
            let _guard = self.shared.digest_locks.lock(*digest);
            self.shared.drop_fast(digest);
        }
        self.shared.drop_hot(digest);
        self.shared.slow.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()> {
        let mut seen = HashSet::new();
        let shared = &self.shared;
        shared.fast.scan(&mut |found| {
            if shared.tier_state.lock().has_whole(&found.digest) && seen.insert(found.digest) {
                visit(found);
            }
        })?;
        shared.slow.scan(&mut |found| {
            if !seen.contains(&found.digest) {
                visit(found);
            }
        })
    }

    fn leftovers(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()> {
        let shared = &self.shared;
        shared.fast.leftovers(&mut |found| {
            if shared.tier_state.lock().is_cut(&found.digest) {
                visit(found);
            }
        })?;
        // What is there besides is half a copy.
        shared.slow.leftovers(&mut |found| {
            if shared.tier_state.lock().on_disk.contains(&found.digest) {
                visit(found);
            }
        })
    }

    /// Of the disk, less what it has still to take.
    fn free(&self) -> io::Result<u64> {
        let dirty = self.shared.tier_state.lock().accounts.dirty();
        Ok(self.shared.slow.free()?.saturating_sub(dirty))
    }

    fn close(&self) {
        self.shared.tier_state.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
