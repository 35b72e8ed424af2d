//! The locations of packed contents in the directory: finds the locations by reading the packs, and
//! removes the locations in deleted packs.

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
        // Skips ranges of a large content, since their order in packs is not certain. The next time
        // that the content is packed, their locations are recorded.
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

/// Removes the locations of contents whose pack no longer exists.
pub(super) fn forget_locations(context: &Context) -> Result<(), Error> {
    let packs = &context.packs;
    context
        .directory
        .retain_locations(|locations| locations.iter().all(|location| packs.contains(location)))?;
    context.directory.flush()
}
