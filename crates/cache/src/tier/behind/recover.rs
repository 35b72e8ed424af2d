//! What an earlier process left on both.

use std::collections::HashSet;
use std::io;

use super::room::Room;
use super::{Shared, hot};
use crate::lock;

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
        let mut ledger = lock(&self.ledger);
        self.slow.leftovers(&mut |found| {
            ledger.on_disk.insert(found.digest);
        })?;
        for found in fast {
            let drained = slow.contains(&found.digest);
            if !drained && let Some(spans) = self.found_hot(&found) {
                match spans.filter(|_| slow.contains(&hot::key(&found.digest))) {
                    Some(spans) => {
                        let room = Room::new(&ledger.accounts);
                        room.resize(self.fast.footprint(found.bytes));
                        ledger.enter_hot(found.digest, room, 0.0, spans);
                    }
                    None => self.fast.remove(&found.digest)?,
                }
                continue;
            }
            if self.options.volatile && !drained {
                self.fast.remove(&found.digest)?;
                continue;
            }
            // Half a copy of it.
            if ledger.on_disk.remove(&found.digest) {
                self.slow.discard(&found.digest)?;
            }
            let room = Room::new(&ledger.accounts);
            room.resize(self.fast.footprint(found.bytes));
            room.owe(found.bytes);
            ledger.enter(found.digest, room, 0.0, drained);
        }
        for found in cut {
            // Both have one: the disk's is the later.
            let useless = self.options.volatile || ledger.on_disk.contains(&found.digest);
            if useless {
                self.fast.discard(&found.digest)?;
                continue;
            }
            let room = Room::new(&ledger.accounts);
            room.resize(self.fast.footprint(found.bytes));
            room.owe(found.bytes);
            ledger.cut(found.digest, room);
        }
        Ok(())
    }
}
