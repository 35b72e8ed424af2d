//! Slows copies between the tiers down: for readers of the disk, for requests that need the CPU,
//! and while background work is paused.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_host::BackgroundWork;
use pierhead_oci::Digest;

use super::fast_copies::FastCopies;
use super::slow_disk::SlowDisk;
use super::tier_state::TierState;
use crate::tier::{Blob, CHUNK};

/// Size of one copy step in bytes.
pub(super) const PIECE: usize = 1 << 20;

/// Maximum time that one piece waits for the CPU.
const MAX_CPU_WAIT: Duration = Duration::from_secs(1);

/// How often a pause checks whether to end.
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Remaining time for which the work on one blob yields to readers of the disk. Only time spent
/// yielding counts, not time spent on a slow disk or a rate limit.
pub(super) struct YieldBudget(Duration);

impl Default for YieldBudget {
    /// Bounds the delay by readers that never pause.
    fn default() -> Self {
        Self(Duration::from_secs(10))
    }
}

impl YieldBudget {
    /// Until when to yield to a reader, at most until `quiet`; `None` when the time is used up.
    fn until(&self, now: Instant, quiet: Instant) -> Option<Instant> {
        let most = now.checked_add(self.0)?;
        (!self.0.is_zero()).then_some(most.min(quiet))
    }

    fn spend(&mut self, waited: Duration) {
        self.0 = self.0.saturating_sub(waited);
    }
}

pub(super) struct CopyPacer {
    pub(super) fast: Arc<FastCopies>,
    pub(super) disk: Arc<SlowDisk>,
    pub(super) background: BackgroundWork,
    /// Maximum bytes per second of write-back; 0: unlimited.
    pub(super) write_back_rate: u64,
}

impl CopyPacer {
    /// Whether a copy that no caller waits for must stop.
    pub(super) fn should_pause(&self) -> bool {
        self.background.is_paused() && self.fast.state.lock().has_room()
    }

    /// Waits while background work is paused and `may` holds.
    pub(super) fn pause_while(&self, may: impl Fn(&TierState) -> bool) {
        while self.background.is_paused() && may(&self.fast.state.lock()) {
            let _paused = self.background.count_pause();
            self.fast
                .wait_until(Instant::now() + PAUSE_CHECK_INTERVAL, &may);
        }
    }

    /// Yields the CPU to requests for a while, unless a caller waits for this blob or for room.
    fn yield_cpu(&self, digest: &Digest) {
        let mut left = MAX_CPU_WAIT;
        while let Some(wait) = self.background.cpu_wait(false)
            && !left.is_zero()
        {
            let wait = wait.min(left).min(PAUSE_CHECK_INTERVAL);
            let may = |state: &TierState| {
                !state.is_stopped
                    && state.flush_waiters == 0
                    && state.has_room()
                    && !state.is_blocked(digest)
            };
            if !may(&self.fast.state.lock()) {
                return;
            }
            self.fast.wait_until(Instant::now() + wait, may);
            left -= wait;
        }
    }

    /// Yields the disk to its readers, unless half of the fast tier is dirty.
    pub(super) fn yield_disk(&self, digest: &Digest, yield_budget: &mut YieldBudget) {
        self.pause_while(|state| state.has_room() && !state.is_blocked(digest));
        self.yield_cpu(digest);
        while let Some(quiet) = self.disk.quiet_at() {
            let now = Instant::now();
            let calm = {
                let state = self.fast.state.lock();
                state.has_room() && !state.is_blocked(digest)
            };
            let Some(until) = yield_budget.until(now, quiet).filter(|_| calm) else {
                return;
            };
            self.fast.wait_until(until, |state| {
                !state.is_stopped && state.flush_waiters == 0 && !state.is_blocked(digest)
            });
            yield_budget.spend(now.elapsed());
        }
    }

    /// Waits until the rate limit allows `bytes` bytes since `begun`, or until a flush waits.
    pub(super) fn pace(&self, digest: &Digest, begun: Instant, bytes: u64) {
        let due = match self.write_back_rate {
            0 => Duration::ZERO,
            #[expect(clippy::cast_precision_loss, reason = "a pause")]
            rate => Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or_default(),
        };
        let due = begun.checked_add(due).unwrap_or(begun);
        self.fast.wait_until(due, |state| {
            !state.is_stopped && !state.is_blocked(digest) && state.flush_waiters == 0
        });
    }

    /// Reads a range of a blob from the disk, verifies it, and passes it to `put`. `false` when
    /// another operation needs the blob, or background work is paused: no caller waits for the
    /// copy, and it must not keep its room reserved. The range ends at a chunk boundary or at the
    /// end of the blob.
    pub(super) fn copy_from_disk(
        &self,
        digest: &Digest,
        slow: &dyn Blob,
        range: Range<u64>,
        yield_budget: &mut YieldBudget,
        mut put: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut offset = range.start;
        let mut buffer = Vec::new();
        while offset < range.end {
            if self.should_pause() {
                return Ok(false);
            }
            self.yield_disk(digest, yield_budget);
            if self.fast.is_interrupted(digest) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_yield_is_bounded() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut yield_budget = YieldBudget::default();
        assert_eq!(yield_budget.until(now, now + second), Some(now + second));
        yield_budget.spend(9 * second);
        assert_eq!(
            yield_budget.until(now, now + 5 * second),
            Some(now + second)
        );
        yield_budget.spend(2 * second);
        assert_eq!(yield_budget.until(now, now + second), None);
    }
}
