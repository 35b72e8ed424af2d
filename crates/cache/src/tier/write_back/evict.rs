//! Room on the fast tier: what leaves for it, and when.

use super::room::Room;
use super::tier_state::{Entry, Victim};
use super::{Shared, count};

impl Shared {
    /// Lets leave what must for `more` bytes; `false` when that cannot be had, and then nothing has left for it.
    pub(super) fn make_room(&self, more: u64) -> bool {
        // Nothing is asked for: what can leave leaves.
        let mut is_sure = more == 0;
        loop {
            let victim = {
                let tier_state = self.tier_state.lock();
                if tier_state.fits(more) {
                    return true;
                }
                // Once: it looks at all that could leave.
                is_sure = is_sure || tier_state.can_fit(more);
                match tier_state.victim() {
                    Some(victim) if is_sure => victim,
                    _ => return false,
                }
            };
            self.evict(&victim);
        }
    }

    fn evict(&self, victim: &Victim) {
        let (Victim::Partial(digest) | Victim::Blob(digest, _)) = victim;
        let _guard = self.digest_locks.lock(*digest);
        let removed = match victim {
            Victim::Partial(digest) => {
                // Gone on with meanwhile.
                let Some(room) = self.tier_state.lock().resume(digest) else {
                    return;
                };
                let removed = self.fast.discard(digest);
                drop(room);
                removed
            }
            Victim::Blob(digest, number) => {
                let entry = {
                    let mut tier_state = self.tier_state.lock();
                    let same = |entry: &Entry| entry.number == *number;
                    match tier_state.entries.get(digest).is_some_and(same) {
                        true => tier_state.leave(digest),
                        false => return,
                    }
                };
                let removed = self.fast.remove(digest);
                drop(entry);
                count(&self.counters.evicted, 1);
                removed
            }
        };
        if let Err(error) = removed {
            tracing::warn!(%digest, %error, "cannot delete on the fast tier");
        }
    }

    /// Room for `bytes` in all, if they can be had.
    pub(super) fn grow(&self, room: &Room, bytes: u64) -> bool {
        loop {
            let more = bytes.saturating_sub(room.bytes());
            if !self.make_room(more) {
                return false;
            }
            let tier_state = self.tier_state.lock();
            // Another may have taken it meanwhile.
            if tier_state.fits(more) {
                room.resize(bytes.max(room.bytes()));
                return true;
            }
        }
    }

    /// A reader has let go of what it read. What was kept over the bound for it leaves, by the draining thread: whoever lets
    /// go may hold locks, and must not wait for the medium.
    pub(super) fn let_go(&self) {
        let mut tier_state = self.tier_state.lock();
        if tier_state.accounts.used() > tier_state.limit {
            tier_state.is_over = true;
            drop(tier_state);
            self.changed.notify_all();
        }
    }
}
