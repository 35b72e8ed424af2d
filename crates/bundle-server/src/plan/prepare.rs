//! Makes the frames of a pair of images ahead of time.

use super::Expected;
use super::groups::{Shape, groups};
use super::matching::{Missing, match_similar, missing, read, similar_work};
use pierhead_bundle::patch::{Coded, Effort, Encoder};
use pierhead_bundle::{BaseSlice, Coding, Frame, Slice};
use pierhead_toc::TocView;
use pierhead_toc::Tree;
use pierhead_toc::{Error, Source};

/// Makes each frame of what `have` lacks of `want`, in the order in which they are expected to be used, and hands it on.
/// No frame mixes visible contents with extras, which come last. Bases are of the first image that the worker has.
///
/// `false`, and no frame, when that is more than the effort affords.
///
/// Memory: the paths of both images, one frame, its bases, and zstd's tables (80 MiB at level 19).
///
/// # Errors
/// [`Error::Missing`] when a content is no longer here; those of `pause`, which is told the bytes that were
/// read, compressed or read against, at most 20 MiB at once; those of `emit`.
pub fn prepare(
    want: TocView<'_>,
    have: TocView<'_>,
    expected: &Expected,
    source: &dyn Source,
    effort: Effort,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    emit: &mut dyn FnMut(&Frame, &Coded) -> Result<(), Error>,
) -> Result<bool, Error> {
    let (want, have) = (Tree::of(want)?, Tree::of(have)?);
    let mut missing = missing(&want, &have);
    let read = similar_work(&want, &have, &missing);
    if !effort.affords(work(&have, &missing), read) {
        return Ok(false);
    }
    match_similar(&want, &have, &mut missing, source, pause)?;
    // Stable: what is not expected stays in path order, where neighbours are alike.
    missing.sort_by_key(|one| (one.file.is_none(), expected.rank(one.content)));
    let groups = groups(&want, &have, &missing, &Shape::default(), source, pause)?;
    let work = |ranges: bool| {
        let these = groups.iter().filter(|group| group.is_range() == ranges);
        these.map(super::groups::Group::work).sum()
    };
    let (small, large) = effort.levels(work(false), work(true));
    for group in groups {
        let level = if group.is_range() { large } else { small };
        let prefix = concatenated(&have, &group.bases, source)?;
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

/// Bytes that are compressed, with those of the old versions.
fn work(have: &Tree<'_>, missing: &[Missing]) -> u64 {
    let base = |one: &Missing| have.content(one.base?).map(|(_, size)| size);
    missing.iter().fold(0, |sum: u64, one| {
        let base = base(one).unwrap_or(0);
        sum.saturating_add(one.size).saturating_add(base)
    })
}

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
