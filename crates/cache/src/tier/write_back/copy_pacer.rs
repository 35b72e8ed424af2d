//! Slows down copies between the tiers while a reader uses the disk, while requests need the CPU,
//! and while background work is paused. Also limits the rate of the write-back.

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

/// Maximum time that the copy of one piece waits for the CPU.
const MAX_CPU_WAIT: Duration = Duration::from_secs(1);

/// How often a paused copy checks whether the pause must end.
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Remaining time for which the copy of one blob yields to readers of the disk. Time that a copy
/// spends on a slow disk or on a rate limit does not reduce this remaining time.
pub(super) struct YieldBudget(Duration);

impl Default for YieldBudget {
    /// The default is a fixed time, because readers that never pause would otherwise delay the copy
    /// forever.
    fn default() -> Self {
        Self(Duration::from_secs(10))
    }
}

impl YieldBudget {
    /// Returns the time until which the copy yields to a reader. The result is at most `quiet`, the
    /// time at which the disk is free again. `None` when the budget is used up.
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
    /// Maximum bytes per second of the write-back. The value 0 means no maximum.
    pub(super) write_back_rate: u64,
}

impl CopyPacer {
    /// Whether background work is paused. During a pause, a copy must stop if no caller waits for
    /// the copy.
    pub(super) fn should_pause(&self) -> bool {
        self.background.is_paused() && self.fast.state.lock().has_room()
    }

    /// Waits while background work is paused and `may` returns `true`.
    pub(super) fn pause_while(&self, may: impl Fn(&TierState) -> bool) {
        while self.background.is_paused() && may(&self.fast.state.lock()) {
            let _paused = self.background.count_pause();
            self.fast
                .wait_until(Instant::now() + PAUSE_CHECK_INTERVAL, &may);
        }
    }

    /// Yields the CPU to requests for a while, unless a caller waits for the write-back of this
    /// blob or for room on the fast tier.
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

    /// Waits while readers use the disk, unless at least half of the fast tier is dirty (not
    /// written back yet).
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

    /// Waits until the rate limit allows that `bytes` bytes were written since `started_at`. Stops
    /// waiting if a caller waits for a flush.
    pub(super) fn pace(&self, digest: &Digest, started_at: Instant, bytes: u64) {
        let due = match self.write_back_rate {
            0 => Duration::ZERO,
            #[expect(clippy::cast_precision_loss, reason = "a pause")]
            rate => Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or_default(),
        };
        let due = started_at.checked_add(due).unwrap_or(started_at);
        self.fast.wait_until(due, |state| {
            !state.is_stopped && !state.is_blocked(digest) && state.flush_waiters == 0
        });
    }

    /// Reads a range of a blob from the disk, verifies it, and passes it to `put`. Returns `false`
    /// when another operation needs the blob, or when background work is paused. During a pause the
    /// copy is ended, because no caller waits for it, and because a waiting copy would keep its
    /// space reserved. The range ends at a chunk boundary or at the end of the blob.
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
