//! What an earlier process left on both.

use std::collections::HashSet;
use std::io;

use super::room::Room;
use super::{Shared, hot_copy};

impl Shared {
    /// Enters what can be kept, and deletes what cannot.
    pub(super) fn recover(&self) -> io::Result<()> {
        let (mut fast, mut slow, mut cut) = (Vec::new(), HashSet::new(), Vec::new());
        self.fast.scan(&mut |found| fast.push(found))?;
        self.slow.scan(&mut |found| {
            slow.insert(found.digest);
        })?;
        self.fast.leftovers(&mut |found| cut.push(found))?;
        fast.sort_unstable_by_key(|found| (found.modified, found.digest));
        let mut tier_state = self.tier_state.lock();
        self.slow.leftovers(&mut |found| {
            tier_state.on_disk.insert(found.digest);
        })?;
        for found in fast {
            let is_clean = slow.contains(&found.digest);
            if !is_clean && let Some(spans) = self.found_hot(&found) {
                match spans.filter(|_| slow.contains(&hot_copy::key(&found.digest))) {
                    Some(spans) => {
                        let room = Room::new(&tier_state.accounts);
                        room.resize(self.fast.footprint(found.bytes));
                        tier_state.enter_hot(found.digest, room, 0.0, spans);
                    }
                    None => self.fast.remove(&found.digest)?,
                }
                continue;
            }
            if self.options.volatile && !is_clean {
                self.fast.remove(&found.digest)?;
                continue;
            }
            // Half a copy of it.
            if tier_state.on_disk.remove(&found.digest) {
                self.slow.discard(&found.digest)?;
            }
            let room = Room::new(&tier_state.accounts);
            room.resize(self.fast.footprint(found.bytes));
            room.set_dirty(found.bytes);
            tier_state.enter(found.digest, room, 0.0, is_clean);
        }
        for found in cut {
            // Both have one: the disk's is the later.
            let useless = self.options.volatile || tier_state.on_disk.contains(&found.digest);
            if useless {
                self.fast.discard(&found.digest)?;
                continue;
            }
            let room = Room::new(&tier_state.accounts);
            room.resize(self.fast.footprint(found.bytes));
            room.set_dirty(found.bytes);
            tier_state.cut(found.digest, room);
        }
        Ok(())
    }
}
