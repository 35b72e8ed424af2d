//! Maintains the locations of packed contents in the image database: finds all locations by reading
//! the packs (files of compressed file contents), and removes the locations that are in deleted
//! packs.

use super::context::Context;
use crate::Error;
use crate::image_database::ImageDatabase;
use crate::pack::{self, FrameIndex as _, Packs};

/// Finds the location of each content in the packs.
pub(super) fn find_locations(
    packs: &Packs,
    database: &ImageDatabase,
    pause: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    packs.scan(&mut |frame| {
        pause()?;
        // Skips ranges of a large content, since their order in packs is not certain. The next time
        // that the content is packed, the locations of its ranges are recorded.
        match &frame.members[..] {
            // The location of an optimized frame takes precedence over the location of a fast
            // frame.
            members
                if pack::is_fast(frame.location.pack)
                    && !database.get(&members[0].content)?.is_empty() =>
            {
                Ok(())
            }
            members if pack::are_whole(members) => members
                .iter()
                .try_for_each(|part| database.put(&part.content, &[frame.location])),
            _ => Ok(()),
        }
    })
}

/// Removes the locations of contents whose pack no longer exists.
pub(super) fn forget_locations(context: &Context) -> Result<(), Error> {
    let packs = &context.packs;
    context
        .image_database
        .retain_locations(|locations| locations.iter().all(|location| packs.contains(location)))?;
    context.image_database.flush()
}
