//! The locations of packed contents in the directory: finds them in the packs, and removes those of
//! deleted packs.

use super::context::Context;
use crate::Error;
use crate::directory::Directory;
use crate::pack::{self, FrameIndex as _, Packs};

/// Finds the location of each content in the packs.
pub(super) fn find_locations(
    packs: &Packs,
    directory: &Directory,
    pause: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    packs.scan(&mut |frame| {
        pause()?;
        // Skips ranges of a large content, whose order in packs is not certain. The next packing of
        // the content records them.
        match &frame.members[..] {
            // An optimized frame takes precedence over a fast one.
            members
                if pack::is_fast(frame.location.pack)
                    && !directory.get(&members[0].content)?.is_empty() =>
            {
                Ok(())
            }
            members if pack::are_whole(members) => members
                .iter()
                .try_for_each(|part| directory.put(&part.content, &[frame.location])),
            _ => Ok(()),
        }
    })
}

/// Removes the locations of contents whose pack is gone.
pub(super) fn forget_locations(context: &Context) -> Result<(), Error> {
    let packs = &context.packs;
    context
        .directory
        .retain_locations(|locations| locations.iter().all(|location| packs.contains(location)))?;
    context.directory.flush()
}
