//! Groups the file contents that a worker lacks into frames: small contents together, and large
//! contents in ranges. Each frame also has the old versions of its contents.

use std::ops::Range;

use super::matching::{Missing, Pause, each_piece};
use crate::Error;
use pierhead_bundle::patch::{Alignment, Anchor, Sampler};
use pierhead_bundle::{MAX_BASE, MAX_FRAME, Slice};
use pierhead_toc::Tree;
use pierhead_toc::{FileDigest, Source};

/// Size limits of the frames that planning makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Maximum number of uncompressed bytes of a frame.
    pub(crate) frame: u64,
    /// Maximum number of bytes of the bases (the old contents) of a frame.
    pub(crate) base: u64,
    /// Maximum number of members of a frame, and also of bases of a frame.
    pub(crate) members: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            frame: MAX_FRAME,
            base: MAX_BASE / 2,
            members: 4096,
        }
    }
}

/// Minimum size of a content that counts as large, in bytes.
const MIN_LARGE: u64 = 1 << 20;

/// Maximum number of anchors of one content: 16 MiB of memory. [`density`] aims at half as many.
/// Only a content that is crafted for an attack has more.
const MAX_ANCHORS: usize = 1 << 20;

/// Number of parts of a range. Each part has its own window in the old content.
const PARTS_OF_RANGE: u64 = 4;

/// The contents that will become one frame. The bases of this frame are contents of the old image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) members: Vec<Slice>,
    pub(crate) bases: Vec<Slice>,
    bytes: u64,
    base_bytes: u64,
}

impl Group {
    /// Returns the number of bytes of members and bases. The time to make the frame is proportional
    /// to this number.
    pub(crate) fn work(&self) -> u64 {
        self.bytes + self.base_bytes
    }

    /// Whether the group is one large content, or a range of a large content.
    pub(crate) fn is_range(&self) -> bool {
        self.members.len() == 1 && self.bytes >= MIN_LARGE
    }

    fn fits(&self, size: u64, base: u64, shape: &Shape) -> bool {
        self.bytes + size <= shape.frame
            && self.base_bytes + base <= shape.base
            && self.members.len() < shape.members
    }

    fn push(&mut self, member: Slice, base: Option<Slice>) {
        self.bytes += member.len;
        self.members.push(member);
        if let Some(base) = base
            && !self.bases.contains(&base)
        {
            self.base_bytes += base.len;
            self.bases.push(base);
        }
    }
}

/// Divides the missing contents into groups, in order. `missing` has the contents in the order of
/// sending, with extras (contents that only rebuilt layers need) last. No group mixes extras with
/// other contents.
pub(crate) fn groups(
    want: &Tree<'_>,
    base_image: &Tree<'_>,
    missing: &[Missing],
    shape: &Shape,
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<Vec<Group>, Error> {
    let mut groups = Vec::new();
    let mut open = Group::default();
    let mut extras = false;
    for one in missing {
        let base = one
            .base
            .and_then(|number| Some((number, base_image.content(number)?.1)));
        if one.file.is_none() != extras {
            extras = one.file.is_none();
            close(&mut groups, &mut open);
        }
        let whole = base.filter(|(_, size)| *size <= shape.base);
        if one.size > shape.frame || whole.is_none() && base.is_some() {
            // The group in progress stays open while the ranges of a large file are added. So the
            // large file is sent before some small files, but closing the group here would make
            // many short frames.
            ranges(want, base_image, one, shape, source, pause, &mut groups)?;
            continue;
        }
        if !open.fits(one.size, whole.map_or(0, |(_, size)| size), shape) {
            close(&mut groups, &mut open);
        }
        open.push(
            slice(one.content, 0..one.size),
            whole.map(|(number, size)| slice(number, 0..size)),
        );
    }
    close(&mut groups, &mut open);
    Ok(groups)
}

fn close(groups: &mut Vec<Group>, open: &mut Group) {
    if !open.members.is_empty() {
        groups.push(std::mem::take(open));
    }
}

/// Adds the groups of one large content. Each range gets the most similar part of the old version
/// as its base.
fn ranges(
    want: &Tree<'_>,
    base_image: &Tree<'_>,
    one: &Missing,
    shape: &Shape,
    source: &dyn Source,
    pause: &mut Pause<'_>,
    groups: &mut Vec<Group>,
) -> Result<(), Error> {
    let old = one
        .base
        .and_then(|number| Some((number, base_image.content(number)?)));
    let new = want.content(one.content);
    let aligned = match (old, new) {
        (Some((_, (content, size))), Some(_)) if size > shape.base => {
            let anchors = anchors(density(size), content, 0..size, source, pause)?;
            Some((Alignment::new(anchors, size, one.size), density(size)))
        }
        _ => None,
    };
    // All ranges have equal length, since otherwise the last range could have a few bytes and waste
    // a frame.
    let count = one.size.div_ceil(shape.frame).max(1);
    for at in 0..count {
        let range = one.size * at / count..one.size * (at + 1) / count;
        let bases = match (&aligned, old, new) {
            (Some((alignment, every)), Some((number, _)), Some((content, _))) => {
                let windows = windows(alignment, *every, content, &range, shape, source, pause)?;
                windows
                    .into_iter()
                    .map(|window| slice(number, window))
                    .collect()
            }
            (None, Some((number, (_, size))), _) => vec![slice(number, 0..size)],
            _ => Vec::new(),
        };
        let mut group = Group::default();
        group.push(slice(one.content, range), None);
        group.base_bytes = bases.iter().map(|base| base.len).sum();
        group.bases = bases;
        groups.push(group);
    }
    Ok(())
}

/// Returns the windows in the old content that match a range of the new content, ascending and
/// disjoint. Each part of the range has its own window, since the sections of a program move
/// independently.
fn windows(
    alignment: &Alignment,
    every: u32,
    content: FileDigest,
    range: &Range<u64>,
    shape: &Shape,
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<Vec<Range<u64>>, Error> {
    let mut windows: Vec<Range<u64>> = Vec::new();
    let len = range.end - range.start;
    for part in 0..PARTS_OF_RANGE {
        let part = range.start + len * part / PARTS_OF_RANGE
            ..range.start + len * (part + 1) / PARTS_OF_RANGE;
        let anchors = anchors(every, content, part.clone(), source, pause)?;
        windows.push(alignment.window(&part, &anchors, shape.base / PARTS_OF_RANGE));
    }
    windows.sort_by_key(|window| window.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for window in windows {
        match merged.last_mut() {
            Some(last) if window.start <= last.end => last.end = last.end.max(window.end),
            _ => merged.push(window),
        }
    }
    Ok(merged)
}

/// Returns the first [`MAX_ANCHORS`] anchors of a range of a content.
fn anchors(
    every: u32,
    content: FileDigest,
    part: Range<u64>,
    source: &dyn Source,
    pause: &mut Pause<'_>,
) -> Result<Vec<Anchor>, Error> {
    let mut anchors = Vec::new();
    let mut sampler = Sampler::new(every);
    each_piece(source, content, part, pause, |piece| {
        sampler.feed(piece, |anchor| {
            if anchors.len() < MAX_ANCHORS {
                anchors.push(anchor);
            }
        });
    })?;
    Ok(anchors)
}

/// Returns the average distance between anchors of a content of `size` bytes, as a power of two.
/// With this distance, a content has at most about half a million anchors (8 MiB of memory).
fn density(size: u64) -> u32 {
    (size >> 19)
        .max(1 << 8)
        .next_power_of_two()
        .trailing_zeros()
}

fn slice(content: u32, range: Range<u64>) -> Slice {
    Slice {
        content,
        offset: range.start,
        len: range.end - range.start,
    }
}
