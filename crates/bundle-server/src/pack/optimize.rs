//! Better frames in place of quick ones: the same members, coded at a higher level.

use std::collections::HashMap;

use crate::pack::RecordLocation;
use pierhead_toc::Error;

use super::{Encoder, FrameIndex, Packs, decode, is_fast};

/// How often what was done is made durable, in bytes that were compressed: half a minute of work at most is lost.
const SYNC: u64 = 64 << 20;

/// Makes a frame at `level` of each quick one of `places`, in the order in which they lie, and notes it as the place of
/// its members. Returns where each of them is now. Stopped or killed, it goes on behind the last frame that it noted;
/// the quick frames stay.
///
/// `pause` is told the bytes that were compressed; `flush` makes what `known` was told durable.
/// Memory: two frames and the zstd context.
///
/// # Errors
/// [`Error::Missing`] and [`Error::Malformed`] when a quick frame is lost; those of the packs, of `known`, of `pause`.
pub fn optimize(
    places: &[RecordLocation],
    packs: &Packs,
    known: &dyn FrameIndex,
    level: i32,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    flush: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<HashMap<RecordLocation, RecordLocation>, Error> {
    let mut fast: Vec<_> = places.iter().filter(|it| is_fast(it.pack)).collect();
    fast.sort_by_key(|place| (place.pack, place.offset));
    fast.dedup();
    let mut encoder = Encoder::new(level)?;
    let mut writer = packs.writer();
    let mut made = HashMap::with_capacity(fast.len());
    let (mut payload, mut bytes, mut since) = (Vec::new(), Vec::new(), 0);
    for place in fast {
        pause(0)?;
        let frame = packs.frame(place)?;
        let mut compressed = 0;
        let better = match better(&frame.members, packs, known)? {
            Some(found) => found,
            None => {
                let head = packs.read(place, &mut payload)?;
                let len = frame.members.iter().map(|part| part.len).sum();
                decode(head.coding, &payload, len, &mut bytes)?;
                let (coding, payload) = encoder.encode(&bytes)?;
                let made = writer.append(&frame.members, coding, payload)?;
                compressed = len;
                made
            }
        };
        for part in &frame.members {
            let mut places = known.get(&part.content)?;
            match places.iter_mut().find(|it| *it == place) {
                Some(found) => *found = better,
                // Packed again elsewhere, or forgotten: a small content needs no more than this frame.
                None if part.offset == 0 && frame.members.len() > 1 => places = vec![better],
                None => continue,
            }
            known.put(&part.content, &places)?;
        }
        made.insert(*place, better);
        // Not before it is noted: a stop loses nothing.
        pause(compressed)?;
        since += compressed;
        if since >= SYNC {
            writer.sync()?;
            flush()?;
            since = 0;
        }
    }
    writer.sync()?;
    flush()?;
    Ok(made)
}

/// A frame of these members that was made before.
fn better(
    members: &[super::ContentRange],
    packs: &Packs,
    known: &dyn FrameIndex,
) -> Result<Option<RecordLocation>, Error> {
    let Some(first) = members.first() else {
        return Ok(None);
    };
    for place in known.get(&first.content)? {
        if is_fast(place.pack) {
            continue;
        }
        match packs.frame(&place) {
            Ok(frame) if frame.members == members => return Ok(Some(place)),
            Ok(_) | Err(Error::Missing(_) | Error::Malformed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
