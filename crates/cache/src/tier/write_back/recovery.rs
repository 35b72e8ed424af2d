//! Recovery of the write-back tier at the start of pierhead: finds the copies on the fast tier and
//! on the disk, and registers or deletes each of them.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use super::fast_copies::FastCopies;
use super::hot_copy;
use super::room::Room;
use super::tier_state::TierState;
use crate::tier::copy_key::{CopyKey, CopyKind};
use crate::tier::{Tier, TierEntry};

/// Registers the usable copies, and deletes all other copies.
pub(super) fn recover(fast: &FastCopies, disk: &dyn Tier, is_volatile: bool) -> io::Result<()> {
    let (mut copies, mut slow) = (Vec::new(), HashSet::new());
    for kind in [CopyKind::Whole, CopyKind::Hot] {
        let tier = fast.copies(kind);
        tier.scan(&mut |found| copies.push((found, CopyKey::new(kind, &found.digest))))?;
    }
    disk.scan(&mut |found| {
        slow.insert(found.digest);
    })?;
    copies.sort_unstable_by_key(|(found, key)| (found.modified, *key));
    let mut state = fast.state.lock();
    disk.scan_staged(&mut |found| {
        state.on_disk.insert(found.digest);
    })?;
    for (found, key) in copies {
        let is_clean = slow.contains(&found.digest);
        match key.kind {
            CopyKind::Hot => {
                let spans = hot_copy::read_spans(&*fast.hot_copies, &found.digest);
                match spans.filter(|_| is_clean) {
                    Some(spans) => {
                        let room = room_of(fast, &state, &found);
                        state.insert_hot(key, room, 0.0, spans);
                    }
                    None => fast.hot_copies.remove(&found.digest)?,
                }
            }
            CopyKind::Whole if is_volatile && !is_clean => fast.medium.remove(&found.digest)?,
            CopyKind::Whole => {
                // The staged bytes of this blob on the disk are an incomplete write-back.
                if state.on_disk.remove(&found.digest) {
                    disk.discard(&found.digest)?;
                }
                let room = room_of(fast, &state, &found);
                room.set_dirty(found.bytes);
                state.insert(key, room, 0.0, is_clean);
            }
        }
    }
    let mut partials = Vec::new();
    fast.medium.scan_staged(&mut |found| partials.push(found))?;
    for found in partials {
        // If both tiers have a partial fill of one digest, the partial fill on the disk is newer.
        let useless = is_volatile || state.on_disk.contains(&found.digest);
        if useless {
            fast.medium.discard(&found.digest)?;
            continue;
        }
        let room = room_of(fast, &state, &found);
        room.set_dirty(found.bytes);
        state.insert_partial(CopyKey::whole(&found.digest), room);
    }
    // A copy of hot chunks is always made from its start.
    let mut partials = Vec::new();
    fast.hot_copies
        .scan_staged(&mut |found| partials.push(found.digest))?;
    for digest in partials {
        fast.hot_copies.discard(&digest)?;
    }
    Ok(())
}

/// Reserves the space of a copy or partial fill that the medium already has.
fn room_of(fast: &FastCopies, state: &TierState, found: &TierEntry) -> Arc<Room> {
    let room = Room::new(&state.totals);
    room.resize(fast.medium.footprint(found.bytes));
    room
}
