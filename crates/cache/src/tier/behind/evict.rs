//! Room on the fast tier: what leaves for it, and when.

use super::ledger::{Entry, Victim};
use super::room::Room;
use super::{Shared, count};
use crate::lock;

impl Shared {
    /// Lets leave what must for `more` bytes; `false` when that cannot be had, and then nothing has left for it.
    pub(super) fn make_room(&self, more: u64) -> bool {
        // Nothing is asked for: what can leave leaves.
        let mut is_sure = more == 0;
        loop {
            let victim = {
                let ledger = lock(&self.ledger);
                if ledger.fits(more) {
                    return true;
                }
                // Once: it looks at all that could leave.
                is_sure = is_sure || ledger.can_fit(more);
                match ledger.victim() {
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
                let Some(room) = lock(&self.ledger).resume(digest) else {
                    return;
                };
                let removed = self.fast.discard(digest);
                drop(room);
                removed
            }
            Victim::Blob(digest, number) => {
                let entry = {
                    let mut ledger = lock(&self.ledger);
                    let same = |entry: &Entry| entry.number == *number;
                    match ledger.entries.get(digest).is_some_and(same) {
                        true => ledger.leave(digest),
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
            let ledger = lock(&self.ledger);
            // Another may have taken it meanwhile.
            if ledger.fits(more) {
                room.resize(bytes.max(room.bytes()));
                return true;
            }
        }
    }

    /// A reader has let go of what it read. What was kept over the bound for it leaves, by the draining thread: whoever lets
    /// go may hold locks, and must not wait for the medium.
    pub(super) fn let_go(&self) {
        let mut ledger = lock(&self.ledger);
        if ledger.accounts.used() > ledger.limit {
            ledger.is_over = true;
            drop(ledger);
            self.told.notify_all();
        }
    }
}
