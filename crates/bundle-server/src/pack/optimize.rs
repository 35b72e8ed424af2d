//! Recompresses packed frames: from a fast frame (compressed at a low zstd level), makes an
//! optimized frame (with the same contents at a higher level).

use std::collections::HashMap;

use crate::Error;
use crate::pack::RecordLocation;

use super::{Encoder, FrameIndex, Packs, decode, is_fast};

/// Interval between two syncs of the optimized frames to disk, in bytes before compression. A
/// crash loses at most half a minute of work.
const SYNC_INTERVAL: u64 = 64 << 20;

/// Compresses each fast frame of `locations` at `level`, in the order of the packs, and records the
/// new location of its members in `frame_index`. Returns the new location of each fast frame. The
/// fast frames are not deleted. After a shutdown or a kill, the next call continues after the last
/// recorded frame.
///
/// The function `pause` is called with the number of bytes that were compressed. The function
/// `flush` makes `frame_index` durable. The work takes memory for two frames and the zstd context.
///
/// # Errors
/// [`Error::Missing`] and [`Error::Malformed`] when a fast frame is lost; errors of the packs, of
/// `frame_index` and of `pause`.
pub fn optimize(
    locations: &[RecordLocation],
    packs: &Packs,
    frame_index: &dyn FrameIndex,
    level: i32,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    flush: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<HashMap<RecordLocation, RecordLocation>, Error> {
    let mut fast: Vec<_> = locations.iter().filter(|it| is_fast(it.pack)).collect();
    fast.sort_by_key(|location| (location.pack, location.offset));
    fast.dedup();
    let mut encoder = Encoder::new(level)?;
    let mut writer = packs.writer();
    let mut made = HashMap::with_capacity(fast.len());
    let (mut payload, mut bytes, mut since) = (Vec::new(), Vec::new(), 0);
    for location in fast {
        pause(0)?;
        let frame = packs.frame(location)?;
        let mut compressed = 0;
        let optimized = match optimized(&frame.members, packs, frame_index)? {
            Some(found) => found,
            None => {
                let head = packs.read(location, &mut payload)?;
                let len = frame.members.iter().map(|part| part.len).sum();
                decode(head.coding, &payload, len, &mut bytes)?;
                let (coding, payload) = encoder.encode(&bytes)?;
                let made = writer.append(&frame.members, coding, payload)?;
                compressed = len;
                made
            }
        };
        for part in &frame.members {
            let mut locations = frame_index.get(&part.content)?;
            match locations.iter_mut().find(|it| *it == location) {
                Some(found) => *found = optimized,
                // The content was packed again, or removed from the index. The second case matters
                // only for small contents, which are in this frame only.
                None if part.offset == 0 && frame.members.len() > 1 => locations = vec![optimized],
                None => continue,
            }
            frame_index.put(&part.content, &locations)?;
        }
        made.insert(*location, optimized);
        // The location of the new frame is recorded by now, so a shutdown at this pause loses no
        // work.
        pause(compressed)?;
        since += compressed;
        if since >= SYNC_INTERVAL {
            writer.sync()?;
            flush()?;
            since = 0;
        }
    }
    writer.sync()?;
    flush()?;
    Ok(made)
}

/// Returns an optimized frame with the same members, if an earlier call made such a frame.
fn optimized(
    members: &[super::ContentRange],
    packs: &Packs,
    frame_index: &dyn FrameIndex,
) -> Result<Option<RecordLocation>, Error> {
    let Some(first) = members.first() else {
        return Ok(None);
    };
    for location in frame_index.get(&first.content)? {
        if is_fast(location.pack) {
            continue;
        }
        match packs.frame(&location) {
            Ok(frame) if frame.members == members => return Ok(Some(location)),
            Ok(_) | Err(Error::Missing(_) | Error::Malformed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
