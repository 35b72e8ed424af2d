//! What is asked for and lies on the disk alone is copied to the fast tier, if it is worth it.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use pierhead_oci::Digest;

use super::disk_idle::Patience;
use super::fill::PIECE;
use super::room::Room;
use super::tier_state::TierState;
use super::{Shared, count};
use crate::tier::{Blob, CHUNK, Staged, Trailer};

/// Blobs that wait to be copied.
const MOST: usize = 256;

impl Shared {
    pub(super) fn want(&self, digest: Digest, bytes: u64, priority: f64) {
        let need = self.footprint(bytes, None);
        let mut tier_state = self.tier_state.lock();
        let waits = tier_state.wanted.iter().any(|(it, _)| *it == digest);
        let is_here = tier_state.entries.contains_key(&digest);
        let failed = self.failed.load(Ordering::Relaxed);
        if waits || is_here || failed || !self.is_worth(&tier_state, need, priority) {
            return;
        }
        tier_state.wanted.push_back((digest, priority));
        if tier_state.wanted.len() > MOST {
            tier_state.wanted.pop_front();
        }
        drop(tier_state);
        self.changed.notify_all();
    }

    /// Whether a copy of so many bytes is worth more than what would leave for it, by a margin.
    fn is_worth(&self, tier_state: &TierState, need: u64, priority: f64) -> bool {
        let floor = tier_state.floor(need);
        // While there is room nothing leaves.
        let margin = if floor > 0.0 {
            self.options.margin
        } else {
            0.0
        };
        priority > floor + margin
    }

    /// Copies a blob, if it is worth more than what leaves for it. It is being drained, as far as others are changed.
    pub(super) fn promote(&self, digest: &Digest, priority: f64) -> io::Result<()> {
        // Of what became known to be hot in parts meanwhile, these parts are kept.
        match self.wanted(digest) {
            Some(_) => Ok(()),
            None => self.copy_whole(digest, priority),
        }
    }

    /// Copies a blob to the fast tier, unless what would have to leave is worth as much.
    pub(super) fn copy_whole(&self, digest: &Digest, priority: f64) -> io::Result<()> {
        let Some(slow) = self.slow.open(digest)? else {
            return Ok(());
        };
        let trailer = slow.trailer().clone();
        let need = self.footprint(trailer.size(), trailer.media_type());
        let room = {
            let tier_state = self.tier_state.lock();
            let is_free = tier_state.floor(need) == 0.0;
            let is_here = tier_state.entries.contains_key(digest);
            if is_here || !(is_free || self.is_worth(&tier_state, need, priority)) {
                return Ok(());
            }
            Room::new(&tier_state.accounts)
        };
        if !self.grow(&room, need) {
            return Ok(());
        }
        // What a crash left of an earlier one.
        drop(self.tier_state.lock().resume(digest));
        let mut staged = self.fast.stage(digest)?;
        let copied = staged.clear().and_then(|()| {
            let range = 0..trailer.size();
            let put = |bytes: &[u8]| staged.write(bytes);
            self.copy_from_disk(digest, &*slow, range, &mut Patience::default(), put)
        });
        if !matches!(copied, Ok(true)) {
            drop(staged);
            self.fast.discard(digest)?;
            return copied.map(drop);
        }
        let _guard = self.digest_locks.lock(*digest);
        let size = trailer.size();
        self.commit_copy(digest, staged, trailer)?;
        count(&self.counters.promoted, size);
        self.tier_state.lock().enter(*digest, room, priority, true);
        Ok(())
    }

    /// Commits a copy whose turn is held. One that failed may be there all the same, and nobody would count it.
    pub(super) fn commit_copy(
        &self,
        digest: &Digest,
        staged: Box<dyn Staged>,
        trailer: Trailer,
    ) -> io::Result<()> {
        let committed = staged.commit(trailer);
        if committed.is_err() {
            let _ = self.fast.discard(digest);
            let _ = self.fast.remove(digest);
        }
        committed.map(drop)
    }

    /// Hands a range of a blob to `put`, its checksums compared; `false` when somebody else needs its place, or the machine is short of
    /// something: nobody waits for it, and it would hold its room for as long as that is. The range ends with a chunk or with the blob.
    pub(super) fn copy_from_disk(
        &self,
        digest: &Digest,
        slow: &dyn Blob,
        range: Range<u64>,
        patience: &mut Patience,
        mut put: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut offset = range.start;
        let mut buffer = Vec::new();
        while offset < range.end {
            if self.should_rest() {
                return Ok(false);
            }
            self.give_way(digest, patience);
            if self.is_interrupted(digest) {
                return Ok(false);
            }
            let left = usize::try_from(range.end - offset).unwrap_or(PIECE);
            buffer.resize(left.min(PIECE), 0);
            slow.read_at(offset, &mut buffer)?;
            let mut chunks = (offset / CHUNK as u64..).zip(buffer.chunks(CHUNK));
            if !chunks.all(|(index, chunk)| slow.trailer().sums().check(index, chunk)) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            put(&buffer)?;
            offset += buffer.len() as u64;
        }
        Ok(true)
    }
}
