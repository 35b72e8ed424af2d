//! What is asked for and lies on the disk alone is copied to the fast tier, if it is worth it; and the disk is left to readers first.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::fill::PIECE;
use super::ledger::Ledger;
use super::room::Room;
use super::{Shared, count};
use crate::lock;
use crate::tier::{Blob, CHUNK, Staged, Trailer};

/// Blobs that wait to be copied.
const MOST: usize = 256;
/// After a read that waited for the disk it is left alone so long: between two reads of one client there is less.
const QUIET: Duration = Duration::from_millis(30);
/// Work on one blob gives way for so long in all: readers that never pause hold nothing up for ever.
const PATIENCE: Duration = Duration::from_secs(10);

impl Shared {
    pub(super) fn want(&self, digest: Digest, bytes: u64, priority: f64) {
        let need = self.footprint(bytes, None);
        let mut ledger = lock(&self.ledger);
        let waits = ledger.wanted.iter().any(|(it, _)| *it == digest);
        let is_here = ledger.entries.contains_key(&digest);
        if waits || is_here || !self.is_worth(&ledger, need, priority) {
            return;
        }
        ledger.wanted.push_back((digest, priority));
        if ledger.wanted.len() > MOST {
            ledger.wanted.pop_front();
        }
        drop(ledger);
        self.told.notify_all();
    }

    /// Whether a copy of so many bytes is worth more than what would leave for it, by a margin.
    fn is_worth(&self, ledger: &Ledger, need: u64, priority: f64) -> bool {
        let floor = ledger.floor(need);
        // While there is room nothing leaves.
        let margin = if floor > 0.0 {
            self.options.margin
        } else {
            0.0
        };
        priority > floor + margin
    }

    /// Copies a blob, if it is worth more than what leaves for it. It is being drained, as far as others are told.
    pub(super) fn promote(&self, digest: &Digest, priority: f64) -> io::Result<()> {
        // Of what became known to be hot in parts meanwhile, these parts are kept.
        if self.wanted(digest).is_some() {
            return Ok(());
        }
        let Some(slow) = self.slow.open(digest)? else {
            return Ok(());
        };
        let trailer = slow.trailer().clone();
        let need = self.footprint(trailer.size(), trailer.media_type());
        let room = {
            let ledger = lock(&self.ledger);
            let is_here = ledger.entries.contains_key(digest);
            if is_here || !self.is_worth(&ledger, need, priority) {
                return Ok(());
            }
            Room::new(&ledger.accounts)
        };
        if !self.grow(&room, need) {
            return Ok(());
        }
        // What a crash left of an earlier one.
        drop(lock(&self.ledger).resume(digest));
        let mut staged = self.fast.stage(digest)?;
        let copied = staged.clear().and_then(|()| {
            let range = 0..trailer.size();
            self.copy_from_disk(digest, &*slow, range, |bytes| staged.write(bytes))
        });
        if !matches!(copied, Ok(true)) {
            drop(staged);
            self.fast.discard(digest)?;
            return copied.map(drop);
        }
        let _turn = self.turns.take(*digest);
        let size = trailer.size();
        self.commit_copy(digest, staged, trailer)?;
        count(&self.counters.promoted, size);
        lock(&self.ledger).enter(*digest, room, priority, true);
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

    /// Hands a range of a blob to `put`, its checksums compared; `false` when somebody else needs its place. The range ends with a
    /// chunk or with the blob.
    pub(super) fn copy_from_disk(
        &self,
        digest: &Digest,
        slow: &dyn Blob,
        range: Range<u64>,
        mut put: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let (begun, mut offset) = (Instant::now(), range.start);
        let mut buffer = Vec::new();
        while offset < range.end {
            self.give_way(digest, begun);
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

    /// Somebody waited for the disk.
    pub(super) fn was_read(&self) {
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        // 0 is never.
        self.read.store(millis.max(1), Ordering::Relaxed);
    }

    /// When the disk was left alone for long enough; `None` when it is.
    fn quiet_at(&self) -> Option<Instant> {
        let read = self.read.load(Ordering::Relaxed);
        let quiet = self.begun + Duration::from_millis(read) + QUIET;
        (read > 0 && quiet > Instant::now()).then_some(quiet)
    }

    /// Leaves the disk to those who read from it, unless the fast tier is filling up with what the disk lacks.
    pub(super) fn give_way(&self, digest: &Digest, begun: Instant) {
        while begun.elapsed() < PATIENCE
            && let Some(quiet) = self.quiet_at()
        {
            let calm = {
                let ledger = lock(&self.ledger);
                ledger.accounts.owed() <= ledger.limit / 2
                    && ledger.hurries == 0
                    && !ledger.stopped
                    && !ledger.is_held(digest)
            };
            if !calm {
                return;
            }
            self.wait_until(quiet, |ledger| {
                !ledger.stopped && ledger.hurries == 0 && !ledger.is_held(digest)
            });
        }
    }
}
