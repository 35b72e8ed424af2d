//! Plans a bundle without patches, if there are none for the two images: the worker copies chunks
//! of files from its base images, and receives only the other bytes.
//!
//! The input is the fresh plan: the bundle plan for workers without base images. When the worker
//! already has a large part of a frame's bytes, the frame is split into copied parts and sent
//! parts. All other frames are sent as they are stored in the packs.

use std::collections::HashMap;

use pierhead_oci::Digest;

use super::bundle_header::{TocSizes, is_set};
use super::context::Context;
use super::frame_writer::FrameWriter;
use super::plan_file::{Draft, PlanFile, PlanRecord};
use super::plan_input::PlanInput;
use crate::Error;
use crate::pack::RecordLocation;
use crate::pack::decode;
use pierhead_bundle::format::MAX_FRAMES;
use pierhead_bundle::{BaseSlice, Frame, RECORD_HEAD, Slice};
use pierhead_toc::TocView;
use pierhead_toc::layer::{CHUNKED_FROM, Chunk, LayerIndex};
use pierhead_toc::{FileDigest, ImageToc};

/// Maximum number of chunks of base images in memory. Each chunk takes 100 bytes of memory.
const MAX_CHUNKS: usize = 1 << 18;

/// Maximum number of copies and literal ranges in one plan, so that the number of frames stays
/// below [`MAX_FRAMES`].
const MAX_PIECES: usize = MAX_FRAMES / 4;

/// A frame is split when the worker has at least 1/`MIN_REUSE` of its bytes. For a smaller part,
/// the lower compression of the split frame costs more than the split saves.
const MIN_REUSE: u64 = 16;

/// The chunks of the base images, by the digest of each chunk.
type BaseChunks = HashMap<FileDigest, BaseSlice>;

/// A part of a frame: a copy from a base image, or literal bytes.
struct Part {
    slice: Slice,
    /// Offset of the part in the bytes of the frame.
    at: u64,
    copy: Option<BaseSlice>,
}

/// A frame of the fresh plan that has needed contents, and so may be split.
struct Candidate {
    nth: u32,
    frame: Frame,
    location: Option<RecordLocation>,
    /// The parts of the frame that the worker needs. The list is empty when the frame is sent as it
    /// is packed.
    parts: Vec<Part>,
    /// Number of bytes of the frame's record.
    record: u64,
    /// The part of the record's bytes that the needed members take.
    share: u64,
    /// Number of bytes that the server saves if it splits the frame.
    saved: u64,
    /// Whether a split saves at least 1/[`MIN_REUSE`] of the frame.
    is_worth_it: bool,
    /// Number of bytes that the server must decode and compress to split the frame.
    work: u64,
}

/// Makes the frames of a bundle: the frames of `fresh` that have needed contents, without the
/// chunks that the worker already has. When this takes longer than
/// [`super::Config::delta_timeout`], the other frames are whole.
pub(super) fn reuse_chunks(
    input: &PlanInput<'_>,
    fresh: &PlanFile,
    draft: &mut Draft,
) -> Result<Vec<Frame>, Error> {
    let context = input.context;
    let mut candidates = candidates(input, fresh)?;
    choose(&mut candidates, context.config.recompress_budget);
    let mut out = FrameWriter::new(draft)?;
    for candidate in candidates {
        if context.queue.is_stopped() {
            return Err(Error::Stopped);
        }
        input.deadline.check()?;
        match candidate.location {
            Some(location) if !candidate.parts.is_empty() && input.deadline.allows_delta() => {
                write_parts(context, fresh, candidate, &location, &mut out)?
            }
            _ => out.whole(fresh, candidate.nth, candidate.frame)?,
        }
    }
    out.flush()?;
    Ok(out.frames)
}

/// Returns the number of bytes that the changed files take in packs. [`max_plan_bytes`] derives the
/// limit of a plan from this number.
pub(super) fn changed_bytes(
    fresh: &PlanFile,
    toc: &ImageToc,
    needed: &[bool],
) -> Result<u64, Error> {
    let sizes = TocSizes {
        want: toc,
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
        if let Some(PlanRecord::InPack(location)) = fresh.record(nth) {
            sum += u64::from(location.len) * of_it / all.max(1);
        }
    }
    Ok(sum)
}

fn candidates(input: &PlanInput<'_>, fresh: &PlanFile) -> Result<Vec<Candidate>, Error> {
    let (toc, needed) = (input.toc, input.needed);
    let sizes = TocSizes {
        want: toc,
        base_images: &[],
    };
    let is_large = |size: Option<u64>| size.is_some_and(|size| size >= CHUNKED_FROM);
    let is_chunked = |number| is_set(needed, number) && is_large(toc.contents().size(number));
    let old = match (0..toc.contents().len()).any(is_chunked) {
        true => base_chunks(input),
        false => BaseChunks::new(),
    };
    let new = match old.is_empty() {
        true => HashMap::new(),
        false => chunks_of(input, input.want, toc, &is_chunked),
    };
    let mut candidates = Vec::new();
    for (nth, frame) in (0..).zip(fresh.header()?.frames.cursor(&sizes)?) {
        let frame = frame?;
        let is_needed = |member: &Slice| is_set(needed, member.content);
        if !frame.members.iter().any(is_needed) {
            continue;
        }
        let location = match fresh.record(nth) {
            Some(PlanRecord::InPack(location)) => Some(location),
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
        let record = location.map_or(0, |location| u64::from(location.len));
        let copied = at - literal;
        let needed: u64 = (frame.members.iter().filter(|it| is_needed(it)))
            .map(|member| member.len)
            .sum();
        candidates.push(Candidate {
            nth,
            location,
            record,
            share: record * needed / at.max(1),
            saved: record * copied / at.max(1),
            is_worth_it: copied >= at / MIN_REUSE,
            work: if literal == 0 { 0 } else { at + literal },
            frame,
            parts,
        });
    }
    Ok(candidates)
}

/// Returns the chunks of those contents that the worker has and the wanted image lacks, by digest.
fn base_chunks(input: &PlanInput<'_>) -> BaseChunks {
    let mut old = BaseChunks::new();
    for (image, base) in (0..).zip(input.base_images) {
        let Some(toc) = &base.toc else { continue };
        let view = TocView {
            toc,
            contents: base.contents(),
        };
        let gone = view.lacking(&[TocView::with_layers(input.toc)]);
        let chunks = chunks_of(input, &base.request.manifest, toc, &|number| {
            is_set(&gone, number)
        });
        // The chunks are sorted by number, so that the same request always gives the same plan.
        let mut chunks: Vec<_> = chunks.into_iter().collect();
        chunks.sort_unstable_by_key(|(number, _)| *number);
        for (content, chunks) in chunks {
            for chunk in chunks {
                if old.len() >= MAX_CHUNKS {
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

/// Returns the chunks of some contents of an image, by content number. Skips contents whose layer
/// index is unreadable. When [`super::Config::delta_timeout`] is over, skips the other contents.
fn chunks_of(
    input: &PlanInput<'_>,
    image: &Digest,
    toc: &ImageToc,
    is_selected: &dyn Fn(u32) -> bool,
) -> HashMap<u32, Vec<Chunk>> {
    let context = input.context;
    // Skips the first blob, which is the config of the image.
    let blobs = context.images.blobs(image).into_iter().skip(1);
    let (mut found, mut count) = (HashMap::new(), 0);
    for (layer, blob) in toc.layers().zip(blobs) {
        let (Ok(layer), Ok(index)) = (layer, LayerIndex::open(&context.paths.layer(&blob))) else {
            continue;
        };
        for number in layer.files {
            let contents = toc.contents();
            let is_large = contents
                .size(number)
                .is_some_and(|size| size >= CHUNKED_FROM);
            if !is_large || !is_selected(number) || found.contains_key(&number) {
                continue;
            }
            let Some(content) = contents.content(number) else {
                continue;
            };
            if let Ok(chunks) = index.chunks(&content) {
                count += chunks.len();
                found.insert(number, chunks);
            }
            if count >= MAX_CHUNKS || !input.deadline.allows_delta() {
                return found;
            }
        }
    }
    found
}

/// Writes those parts of a frame that the worker needs.
fn write_parts(
    context: &Context,
    fresh: &PlanFile,
    candidate: Candidate,
    location: &RecordLocation,
    out: &mut FrameWriter<'_>,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    if candidate.work > 0 {
        let mut payload = Vec::new();
        let head = context.packs.read(location, &mut payload)?;
        let len = candidate
            .frame
            .members
            .iter()
            .map(|member| member.len)
            .sum();
        decode(head.coding, &payload, len, &mut bytes)?;
    }
    let literal = |part: &Part| {
        let start = usize::try_from(part.at).unwrap_or(usize::MAX);
        let len = usize::try_from(part.slice.len).unwrap_or(usize::MAX);
        let bytes = start.checked_add(len).and_then(|end| bytes.get(start..end));
        bytes.ok_or_else(|| Error::malformed("frame", "it ends too early"))
    };
    let parts = || candidate.parts.iter().filter(|part| part.copy.is_none());
    let sum: u64 = parts().map(|part| part.slice.len).sum();
    if sum > bytes.len() as u64 / 2 {
        // This function compresses at a lower level than packing. So even without a small part, a
        // frame can become longer than the packed frame.
        let mut all = Vec::new();
        for part in parts() {
            all.extend_from_slice(literal(part)?);
        }
        if out.compressed_len(&all)? + RECORD_HEAD as u64 >= candidate.record {
            return out.whole(fresh, candidate.nth, candidate.frame);
        }
    }
    for part in &candidate.parts {
        match part.copy {
            Some(piece) => out.copy(part.slice, piece)?,
            None => out.literal(part.slice, literal(part)?)?,
        }
    }
    Ok(())
}

/// Chooses the frames to split: first the frames whose split saves the most bytes, within the
/// budget of work. If the bundle is still longer than the changed files, chooses more frames beyond
/// this budget.
fn choose(candidates: &mut [Candidate], mut work: u64) {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(candidates[*at].saved));
    let mut pieces = MAX_PIECES;
    let mut is_split = vec![false; candidates.len()];
    for &at in &order {
        let candidate = &candidates[at];
        let left_if_split = work
            .checked_sub(candidate.work)
            .zip(pieces.checked_sub(candidate.pieces()));
        if let Some(left) = left_if_split.filter(|_| candidate.is_worth_it && candidate.saved > 0) {
            (work, pieces) = left;
            is_split[at] = true;
        }
    }
    let whole: u64 = candidates.iter().map(|candidate| candidate.share).sum();
    // Fast compression makes a split frame a little longer than its share of the packed frame. So
    // `most` adds 1/200 for this difference.
    let most = whole + whole / 200;
    let sent = |(candidate, is_split): (&Candidate, &bool)| match is_split {
        true => candidate.record - candidate.saved,
        false => candidate.record,
    };
    let mut all: u64 = candidates.iter().zip(&is_split).map(sent).sum();
    for at in order {
        let candidate = &mut candidates[at];
        if all > most && !is_split[at] && candidate.saved > 0 && candidate.location.is_some() {
            match pieces.checked_sub(candidate.pieces()) {
                Some(left) => pieces = left,
                None => candidate.without_copies(),
            }
            is_split[at] = true;
            all -= candidate.saved.min(all);
        }
        if !is_split[at] {
            candidate.parts.clear();
        }
    }
}

/// Returns the maximum number of bytes of the records of a plan whose changed files take `whole`
/// bytes in packs.
pub(super) const fn max_plan_bytes(whole: u64) -> u64 {
    whole.saturating_add(whole / 50)
}

impl Candidate {
    /// Changes the candidate so that the server sends all needed bytes, and the worker copies none.
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

/// Cuts a needed member of a frame into parts. `at` is the offset of the member in the frame.
/// `chunks` cover the content from its first byte on.
fn cut(member: &Slice, at: u64, chunks: &[Chunk], old: &BaseChunks) -> Vec<Part> {
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

/// Whether a part of the old content starts where the previous part, of `len` bytes, ends.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pierhead_testkit::images;
    use pierhead_testkit::source::MemoryBlobs;
    use pierhead_testkit::wait::until;

    use super::*;
    use crate::server::plan_deadline::PlanDeadline;
    use crate::server::toc_access::load_toc;
    use crate::{BundleServer, Config, Image, State};

    #[test]
    fn without_time_no_more_chunks_are_read() {
        let mut tar = tar::Builder::new(Vec::new());
        for nth in 0..3 {
            let bytes = images::random_bytes(nth, 300 << 10).to_vec();
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, format!("large-{nth}"), &bytes[..])
                .unwrap();
        }
        let image = images::Image::of_tars("amd64", &[tar.into_inner().unwrap()]);
        let (folder, blobs) = (tempfile::tempdir().unwrap(), MemoryBlobs::default());
        blobs.put_image(&image);
        let config = Config::new(folder.path(), 64 << 20, 16 << 20);
        let server = BundleServer::open(config, Arc::new(blobs)).unwrap();
        server.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
        until("indexed", || server.state(&image.root) == State::Ready);
        let context = &*server.context;
        let toc = load_toc(context, &image.root).unwrap();
        let read_within = |delta_timeout| {
            let mut config = context.config.clone();
            config.delta_timeout = delta_timeout;
            let input = PlanInput {
                context,
                want: &image.root,
                toc: &toc,
                base_images: &[],
                needed: &[],
                deadline: PlanDeadline::start(&config),
            };
            chunks_of(&input, &image.root, &toc, &|_| true).len()
        };
        assert_eq!(read_within(Duration::from_secs(600)), 3);
        assert_eq!(read_within(Duration::ZERO), 1);
        server.close();
    }
}
