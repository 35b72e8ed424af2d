//! The disk is left to those who read from it: what is done behind their backs gives way, for a while.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::Shared;
use super::tier_state::TierState;

/// After a read that waited for the disk it is left alone so long: between two reads of one client there is less.
const QUIET: Duration = Duration::from_millis(30);

/// How long one piece waits for processor time that others are served with.
const CROWDED: Duration = Duration::from_secs(1);

/// While it rests, whether it still should is asked this often.
const NAP: Duration = Duration::from_millis(200);

/// How long work on one blob has still to give way. Of the time that it takes only that counts in which it stood back for somebody: a
/// drain that is paced, or a disk that is slow, has given nothing.
pub(super) struct Patience(Duration);

impl Default for Patience {
    /// Readers that never pause hold nothing up for ever.
    fn default() -> Self {
        Self(Duration::from_secs(10))
    }
}

impl Patience {
    /// Until when it gives way, if somebody wants it to until `quiet`; `None` when it does not any more.
    fn until(&self, now: Instant, quiet: Instant) -> Option<Instant> {
        let most = now.checked_add(self.0)?;
        (!self.0.is_zero()).then_some(most.min(quiet))
    }

    fn spend(&mut self, waited: Duration) {
        self.0 = self.0.saturating_sub(waited);
    }
}

impl Shared {
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

    /// Whether what nobody waits for should stop.
    pub(super) fn should_rest(&self) -> bool {
        self.rest.is_paused() && self.tier_state.lock().has_room()
    }

    /// Rests for as long as that is due and `may` says so.
    pub(super) fn rest_while(&self, may: impl Fn(&TierState) -> bool) {
        while self.rest.is_paused() && may(&self.tier_state.lock()) {
            let _resting = self.rest.count_pause();
            self.wait_until(Instant::now() + NAP, &may);
        }
    }

    /// Leaves the processor to those who are served, for a while, and as long as nobody waits for this blob or for room.
    fn leave_room(&self, digest: &Digest) {
        let mut left = CROWDED;
        while let Some(wait) = self.rest.cpu_wait(false)
            && !left.is_zero()
        {
            let wait = wait.min(left).min(NAP);
            let may = |tier_state: &TierState| {
                !tier_state.stopped
                    && tier_state.flush_waiters == 0
                    && tier_state.has_room()
                    && !tier_state.is_held(digest)
            };
            if !may(&self.tier_state.lock()) {
                return;
            }
            self.wait_until(Instant::now() + wait, may);
            left -= wait;
        }
    }

    /// Leaves the disk to those who read from it, unless the fast tier is filling up with what the disk lacks.
    pub(super) fn give_way(&self, digest: &Digest, patience: &mut Patience) {
        self.rest_while(|tier_state| tier_state.has_room() && !tier_state.is_held(digest));
        self.leave_room(digest);
        while let Some(quiet) = self.quiet_at() {
            let now = Instant::now();
            let calm = {
                let tier_state = self.tier_state.lock();
                tier_state.has_room() && !tier_state.is_held(digest)
            };
            let Some(until) = patience.until(now, quiet).filter(|_| calm) else {
                return;
            };
            self.wait_until(until, |tier_state| {
                !tier_state.stopped && tier_state.flush_waiters == 0 && !tier_state.is_held(digest)
            });
            patience.spend(now.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_way_for_so_long_in_all() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut patience = Patience::default();
        assert_eq!(patience.until(now, now + second), Some(now + second));
        patience.spend(9 * second);
        assert_eq!(patience.until(now, now + 5 * second), Some(now + second));
        patience.spend(2 * second);
        assert_eq!(patience.until(now, now + second), None);
    }
}
