//! Makes the frames of an update from one image to another: patches from contents of the old image
//! to contents of the new image.

use super::Expected;
use super::groups::{Shape, groups};
use super::matching::{Missing, match_similar, missing, read, similar_work};
use crate::Error;
use pierhead_bundle::patch::{Coded, Effort, Encoder};
use pierhead_bundle::{BaseSlice, Coding, Frame, Slice};
use pierhead_toc::Source;
use pierhead_toc::TocView;
use pierhead_toc::Tree;

/// Makes a frame for each group of contents that `want` has and `base_image` lacks, in the expected
/// order of use, and passes each frame to `emit`. No frame mixes contents of visible files with
/// extras (contents that only rebuilt layers need), which come last. The bases of all frames are
/// contents of `base_image`.
///
/// When the work would exceed the limit of `effort`, makes no frame and returns `false`.
///
/// The work takes memory for the paths of both images, one frame with its bases, and the tables of
/// zstd (80 MiB at level 19).
///
/// # Errors
/// [`Error::Missing`] when a content no longer exists; errors of `emit` and of `pause`, which is
/// called with the number of bytes that were read or compressed, at most 20 MiB per call.
pub fn prepare(
    want: TocView<'_>,
    base_image: TocView<'_>,
    expected: &Expected,
    source: &dyn Source,
    effort: Effort,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    emit: &mut dyn FnMut(&Frame, &Coded) -> Result<(), Error>,
) -> Result<bool, Error> {
    let (want, base_image) = (Tree::of(want)?, Tree::of(base_image)?);
    let mut missing = missing(&want, &base_image);
    let read = similar_work(&want, &base_image, &missing);
    if !effort.affords(work(&base_image, &missing), read) {
        return Ok(false);
    }
    match_similar(&want, &base_image, &mut missing, source, pause)?;
    // This sort is stable, so contents without an expected rank stay in the order of their paths,
    // in which neighbours are similar.
    missing.sort_by_key(|one| (one.file.is_none(), expected.rank(one.content)));
    let groups = groups(
        &want,
        &base_image,
        &missing,
        &Shape::default(),
        source,
        pause,
    )?;
    let work = |ranges: bool| {
        let these = groups.iter().filter(|group| group.is_range() == ranges);
        these.map(super::groups::Group::work).sum()
    };
    let (small, large) = effort.levels(work(false), work(true));
    for group in groups {
        let level = if group.is_range() { large } else { small };
        let prefix = concatenated(&base_image, &group.bases, source)?;
        let data = concatenated(&want, &group.members, source)?;
        let coded = Encoder::new(level).encode(&prefix, &data)?;
        let bases = match coded.coding {
            Coding::Patch => group.bases,
            _ => Vec::new(),
        };
        let bases = bases.into_iter();
        let frame = Frame {
            members: group.members,
            bases: bases.map(|slice| BaseSlice { image: 0, slice }).collect(),
            coding: coded.coding,
        };
        emit(&frame, &coded)?;
        pause(prefix.len() as u64 + data.len() as u64)?;
    }
    Ok(true)
}

/// Returns the number of bytes of the missing contents (which are compressed) and of their old
/// versions (which zstd reads as a prefix).
fn work(base_image: &Tree<'_>, missing: &[Missing]) -> u64 {
    let base = |one: &Missing| base_image.content(one.base?).map(|(_, size)| size);
    missing.iter().fold(0, |sum: u64, one| {
        let base = base(one).unwrap_or(0);
        sum.saturating_add(one.size).saturating_add(base)
    })
}

/// Reads slices of contents and concatenates them in one buffer.
fn concatenated(tree: &Tree<'_>, slices: &[Slice], source: &dyn Source) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for slice in slices {
        let start = bytes.len();
        let len = usize::try_from(slice.len).unwrap_or(usize::MAX);
        let (content, _) = tree
            .content(slice.content)
            .ok_or_else(|| Error::Missing(format!("content {}", slice.content)))?;
        bytes.resize(start + len, 0);
        read(source, content, slice.offset, &mut bytes[start..])?;
    }
    Ok(bytes)
}
