//! Recovery of the write-back tier at the start of pierhead: finds the copies on the fast tier and
//! on the disk, and registers or deletes each of them.

use std::collections::HashSet;
use std::io;

use super::copy_key::CopyKey;
use super::fast_copies::FastCopies;
use super::hot_copy;
use super::room::Room;
use crate::tier::Tier;

/// Registers the usable copies, and deletes all other copies.
pub(super) fn recover(fast: &FastCopies, disk: &dyn Tier, is_volatile: bool) -> io::Result<()> {
    let (mut copies, mut slow, mut cut) = (Vec::new(), HashSet::new(), Vec::new());
    fast.medium.scan(&mut |found| copies.push(found))?;
    disk.scan(&mut |found| {
        slow.insert(found.digest);
    })?;
    fast.medium.scan_staged(&mut |found| cut.push(found))?;
    copies.sort_unstable_by_key(|found| (found.modified, found.digest));
    let mut state = fast.state.lock();
    disk.scan_staged(&mut |found| {
        state.on_disk.insert(found.digest);
    })?;
    for found in copies {
        let key = CopyKey::found(found.digest);
        let is_clean = slow.contains(&found.digest);
        if !is_clean && let Some(spans) = hot_copy::recognize(&*fast.medium, &found) {
            match spans.filter(|_| slow.contains(&key.as_hot())) {
                Some(spans) => {
                    let room = Room::new(&state.totals);
                    room.resize(fast.medium.footprint(found.bytes));
                    state.insert_hot(key, room, 0.0, spans);
                }
                None => fast.medium.remove(&found.digest)?,
            }
            continue;
        }
        if is_volatile && !is_clean {
            fast.medium.remove(&found.digest)?;
            continue;
        }
        // The staged bytes of this blob on the disk are an incomplete write-back.
        if state.on_disk.remove(&found.digest) {
            disk.discard(&found.digest)?;
        }
        let room = Room::new(&state.totals);
        room.resize(fast.medium.footprint(found.bytes));
        room.set_dirty(found.bytes);
        state.insert(key, room, 0.0, is_clean);
    }
    for found in cut {
        // If both tiers have a partial fill of one digest, the partial fill on the disk is newer.
        let useless = is_volatile || state.on_disk.contains(&found.digest);
        if useless {
            fast.medium.discard(&found.digest)?;
            continue;
        }
        let room = Room::new(&state.totals);
        room.resize(fast.medium.footprint(found.bytes));
        room.set_dirty(found.bytes);
        state.insert_partial(CopyKey::found(found.digest), room);
    }
    Ok(())
}
