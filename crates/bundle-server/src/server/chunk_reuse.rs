//! What is answered for a pair that nobody has prepared: copies of chunks that the worker has, and the rest anew.
//!
//! Frames for whoever has nothing are the source. One is taken apart where the worker has much of it; frames that
//! are needed whole leave as they are packed.

use std::collections::HashMap;

use pierhead_oci::Digest;

use super::bundle_header::{LoadedBase, TocSizes, is_set};
use super::context::Context;
use super::frame_writer::FrameWriter;
use super::plan_file::{Draft, PlanFile, PlanRecord};
use crate::pack::RecordLocation;
use crate::pack::decode;
use pierhead_bundle::format::MAX_FRAMES;
use pierhead_bundle::{BaseSlice, Frame, RECORD_HEAD, Slice};
use pierhead_toc::TocView;
use pierhead_toc::layer::{CHUNKED_FROM, Chunk, LayerIndex};
use pierhead_toc::{Error, FileDigest, ImageToc};

/// Chunks of old contents that are held, 100 bytes each.
const CHUNKS: usize = 1 << 18;

/// Copies and literal ranges of one answer: the list of frames has a bound.
const PIECES: usize = MAX_FRAMES / 4;

/// A frame is taken apart when at least such a part of it need not be sent: packing compresses better than there is time for here.
const WORTH: u64 = 16;

/// Where the chunks of old contents are.
type Old = HashMap<FileDigest, BaseSlice>;

/// A part of a frame: from the worker's own, or literally.
struct Part {
    slice: Slice,
    /// Where in the frame's bytes it lies.
    at: u64,
    copy: Option<BaseSlice>,
}

/// A frame of which something is needed.
struct Candidate {
    nth: u32,
    frame: Frame,
    place: Option<RecordLocation>,
    /// What is needed of it; empty when it is to leave as it is.
    parts: Vec<Part>,
    /// Bytes of its record, and how many of them its needed members take.
    record: u64,
    share: u64,
    /// Bytes that are not sent when it is taken apart.
    saved: u64,
    /// Whether that is worth it by itself.
    is_worth: bool,
    /// Bytes to decode and to compress for that.
    work: u64,
}

/// The frames of `fresh` that hold anything that is needed, less what the worker has.
pub(super) fn reuse_chunks(
    context: &Context,
    fresh: &PlanFile,
    want: &Digest,
    table: &ImageToc,
    bases: &[LoadedBase],
    needed: &[bool],
    draft: &mut Draft,
) -> Result<Vec<Frame>, Error> {
    let mut candidates = candidates(context, fresh, want, table, bases, needed)?;
    choose(&mut candidates, context.config.recompress_budget);
    let mut out = FrameWriter::new(draft)?;
    for one in candidates {
        if context.queue.is_stopped() {
            return Err(Error::Stopped);
        }
        match one.place {
            Some(place) if !one.parts.is_empty() => {
                write_parts(context, fresh, one, &place, &mut out)?
            }
            _ => out.whole(fresh, one.nth, one.frame)?,
        }
    }
    out.flush()?;
    Ok(out.frames)
}

/// Bytes that the changed files take as they are packed: what an answer is measured against.
pub(super) fn changed_bytes(
    fresh: &PlanFile,
    table: &ImageToc,
    needed: &[bool],
) -> Result<u64, Error> {
    let sizes = TocSizes {
        want: table,
        base_images: &[],
    };
    let mut sum = 0;
    for (nth, frame) in (0..).zip(fresh.header()?.frames.cursor(&sizes)?) {
        let (mut all, mut of_it) = (0, 0);
        for member in &frame?.members {
            all += member.len;
            if is_set(needed, member.content) {
                of_it += member.len;
            }
        }
        if let Some(PlanRecord::InPack(place)) = fresh.record(nth) {
            sum += u64::from(place.len) * of_it / all.max(1);
        }
    }
    Ok(sum)
}

fn candidates(
    context: &Context,
    fresh: &PlanFile,
    want: &Digest,
    table: &ImageToc,
    bases: &[LoadedBase],
    needed: &[bool],
) -> Result<Vec<Candidate>, Error> {
    let sizes = TocSizes {
        want: table,
        base_images: &[],
    };
    let is_large = |size: Option<u64>| size.is_some_and(|size| size >= CHUNKED_FROM);
    let is_chunked = |number| is_set(needed, number) && is_large(table.contents().size(number));
    let old = match (0..table.contents().len()).any(is_chunked) {
        true => base_chunks(context, table, bases),
        false => Old::new(),
    };
    let new = match old.is_empty() {
        true => HashMap::new(),
        false => chunks_of(context, want, table, &is_chunked),
    };
    let mut candidates = Vec::new();
    for (nth, frame) in (0..).zip(fresh.header()?.frames.cursor(&sizes)?) {
        let frame = frame?;
        let is_needed = |member: &Slice| is_set(needed, member.content);
        if !frame.members.iter().any(is_needed) {
            continue;
        }
        let place = match fresh.record(nth) {
            Some(PlanRecord::InPack(place)) => Some(place),
            _ => None,
        };
        let mut parts = Vec::new();
        let (mut at, mut literal) = (0, 0);
        for member in &frame.members {
            if is_needed(member) {
                let chunks = new.get(&member.content).map_or(&[][..], Vec::as_slice);
                parts.extend(cut(member, at, chunks, &old));
            }
            at += member.len;
        }
        for part in parts.iter().filter(|part| part.copy.is_none()) {
            literal += part.slice.len;
        }
        let record = place.map_or(0, |place| u64::from(place.len));
        let had = at - literal;
        let needed: u64 = (frame.members.iter().filter(|it| is_needed(it)))
            .map(|member| member.len)
            .sum();
        candidates.push(Candidate {
            nth,
            place,
            record,
            share: record * needed / at.max(1),
            saved: record * had / at.max(1),
            is_worth: had >= at / WORTH,
            work: if literal == 0 { 0 } else { at + literal },
            frame,
            parts,
        });
    }
    Ok(candidates)
}

/// Chunks of what the worker has and the wanted image has not.
fn base_chunks(context: &Context, want: &ImageToc, bases: &[LoadedBase]) -> Old {
    let mut old = Old::new();
    for (image, base) in (0..).zip(bases) {
        let Some(table) = &base.table else { continue };
        let view = TocView {
            table,
            contents: base.contents(),
        };
        let gone = view.lacking(&[TocView::with_layers(want)]);
        let chunks = chunks_of(context, &base.have.manifest, table, &|number| {
            is_set(&gone, number)
        });
        // In order of their numbers: the same question has the same answer.
        let mut chunks: Vec<_> = chunks.into_iter().collect();
        chunks.sort_unstable_by_key(|(number, _)| *number);
        for (content, chunks) in chunks {
            for chunk in chunks {
                if old.len() >= CHUNKS {
                    return old;
                }
                old.entry(chunk.content).or_insert(BaseSlice {
                    image,
                    slice: Slice {
                        content,
                        offset: chunk.offset,
                        len: chunk.len.into(),
                    },
                });
            }
        }
    }
    old
}

/// The chunks of some contents of an image, by their numbers; without those that cannot be told any more.
fn chunks_of(
    context: &Context,
    image: &Digest,
    table: &ImageToc,
    is_meant: &dyn Fn(u32) -> bool,
) -> HashMap<u32, Vec<Chunk>> {
    // The first blob is the config.
    let blobs = context.images.blobs(image).into_iter().skip(1);
    let (mut found, mut count) = (HashMap::new(), 0);
    for (layer, blob) in table.layers().zip(blobs) {
        let (Ok(layer), Ok(index)) = (layer, LayerIndex::open(&context.paths.layer(&blob))) else {
            continue;
        };
        for number in layer.files {
            let contents = table.contents();
            let is_large = contents
                .size(number)
                .is_some_and(|size| size >= CHUNKED_FROM);
            if !is_large || !is_meant(number) || found.contains_key(&number) {
                continue;
            }
            let Some(content) = contents.content(number) else {
                continue;
            };
            if let Ok(chunks) = index.chunks(&content) {
                count += chunks.len();
                found.insert(number, chunks);
            }
            if count >= CHUNKS {
                return found;
            }
        }
    }
    found
}

/// Hands on the parts of a frame that are needed.
fn write_parts(
    context: &Context,
    fresh: &PlanFile,
    one: Candidate,
    place: &RecordLocation,
    out: &mut FrameWriter<'_>,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    if one.work > 0 {
        let mut payload = Vec::new();
        let head = context.packs.read(place, &mut payload)?;
        let len = one.frame.members.iter().map(|member| member.len).sum();
        decode(head.coding, &payload, len, &mut bytes)?;
    }
    let literal = |part: &Part| {
        let start = usize::try_from(part.at).unwrap_or(usize::MAX);
        let len = usize::try_from(part.slice.len).unwrap_or(usize::MAX);
        let bytes = start.checked_add(len).and_then(|end| bytes.get(start..end));
        bytes.ok_or_else(|| Error::malformed("frame", "it ends too early"))
    };
    let parts = || one.parts.iter().filter(|part| part.copy.is_none());
    let sum: u64 = parts().map(|part| part.slice.len).sum();
    if sum > bytes.len() as u64 / 2 {
        // Packing had more time: without a little of it a frame may be longer than with it.
        let mut all = Vec::new();
        for part in parts() {
            all.extend_from_slice(literal(part)?);
        }
        if out.coded(&all)? + RECORD_HEAD as u64 >= one.record {
            return out.whole(fresh, one.nth, one.frame);
        }
    }
    for part in &one.parts {
        match part.copy {
            Some(piece) => out.copy(part.slice, piece)?,
            None => out.literal(part.slice, literal(part)?)?,
        }
    }
    Ok(())
}

/// Takes those apart that save most, while there is time; then those that must be, since more would be sent than the
/// changed files are, whatever time it takes.
fn choose(candidates: &mut [Candidate], mut work: u64) {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(candidates[*at].saved));
    let mut pieces = PIECES;
    let mut is_apart = vec![false; candidates.len()];
    for &at in &order {
        let one = &candidates[at];
        let affords = work
            .checked_sub(one.work)
            .zip(pieces.checked_sub(one.pieces()));
        if let Some(left) = affords.filter(|_| one.is_worth && one.saved > 0) {
            (work, pieces) = left;
            is_apart[at] = true;
        }
    }
    let whole: u64 = candidates.iter().map(|one| one.share).sum();
    // What is compressed in haste is a little longer than its share: the rest of `most` is for that.
    let most = whole + whole / 200;
    let sent = |(one, is_apart): (&Candidate, &bool)| match is_apart {
        true => one.record - one.saved,
        false => one.record,
    };
    let mut all: u64 = candidates.iter().zip(&is_apart).map(sent).sum();
    for at in order {
        let one = &mut candidates[at];
        if all > most && !is_apart[at] && one.saved > 0 && one.place.is_some() {
            match pieces.checked_sub(one.pieces()) {
                Some(left) => pieces = left,
                None => one.without_copies(),
            }
            is_apart[at] = true;
            all -= one.saved.min(all);
        }
        if !is_apart[at] {
            one.parts.clear();
        }
    }
}

/// What may be sent where the changed files alone are so many bytes, as they are packed.
pub(super) const fn most(whole: u64) -> u64 {
    whole.saturating_add(whole / 50)
}

impl Candidate {
    /// Sends all of it that is needed.
    fn without_copies(&mut self) {
        for part in &mut self.parts {
            part.copy = None;
        }
        self.parts.dedup_by(|next, last| {
            let follows = last.slice.content == next.slice.content
                && last.slice.offset + last.slice.len == next.slice.offset;
            if follows {
                last.slice.len += next.slice.len;
            }
            follows
        });
        let literal: u64 = self.parts.iter().map(|part| part.slice.len).sum();
        self.saved = self.record - self.share;
        self.work = self.work.max(literal);
    }

    fn pieces(&self) -> usize {
        self.parts.iter().filter(|part| part.copy.is_some()).count() * 2
    }
}

/// A member that is needed, in parts; `at` is where it lies in its frame. Chunks follow each other from the content's start.
fn cut(member: &Slice, at: u64, chunks: &[Chunk], old: &Old) -> Vec<Part> {
    let end = member.offset + member.len;
    let mut parts: Vec<Part> = Vec::new();
    let mut push = |start: u64, until: u64, copy: Option<BaseSlice>| {
        let len = until - start;
        match parts.last_mut() {
            Some(last) if follows(last.copy.as_ref(), last.slice.len, copy.as_ref()) => {
                last.slice.len += len;
                if let Some(copy) = &mut last.copy {
                    copy.slice.len += len;
                }
            }
            _ => parts.push(Part {
                slice: Slice {
                    content: member.content,
                    offset: start,
                    len,
                },
                at: at + (start - member.offset),
                copy,
            }),
        }
    };
    let mut done = member.offset;
    let first = chunks.partition_point(|chunk| chunk.offset + u64::from(chunk.len) <= done);
    for chunk in &chunks[first..] {
        let until = (chunk.offset + u64::from(chunk.len)).min(end);
        if chunk.offset > done || until <= done {
            break;
        }
        let skip = done - chunk.offset;
        let copy = old.get(&chunk.content);
        let copy = copy.filter(|piece| piece.slice.len == u64::from(chunk.len));
        let copy = copy.map(|piece| BaseSlice {
            slice: Slice {
                offset: piece.slice.offset + skip,
                len: until - done,
                ..piece.slice
            },
            ..*piece
        });
        push(done, until, copy);
        done = until;
    }
    if done < end {
        push(done, end, None);
    }
    parts
}

/// Whether a part goes on where the last one, of `len` bytes, ends.
fn follows(last: Option<&BaseSlice>, len: u64, next: Option<&BaseSlice>) -> bool {
    match (last, next) {
        (None, None) => true,
        (Some(last), Some(next)) => {
            (last.image, last.slice.content, last.slice.offset + len)
                == (next.image, next.slice.content, next.slice.offset)
        }
        _ => false,
    }
}
