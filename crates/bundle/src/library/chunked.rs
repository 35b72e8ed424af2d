//! What is answered for a pair that nobody has prepared: copies of chunks that the worker has, and the rest anew.
//!
//! Frames for whoever has nothing are the source. One is taken apart where the worker has much of it; frames that
//! are needed whole leave as they are packed.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::kept::{Draft, Kept, Lies};
use super::planning::{Base, Tables, is_set};
use super::{Inner, lock};
use crate::format::MAX_FRAMES;
use crate::layer::{CHUNKED_FROM, Chunk, LayerIndex};
use crate::pack::{Encoder, decode};
use crate::plan::Image;
use crate::{Base as Piece, Coding, Content, Error, Frame, MAX_FRAME, Place, Slice, Table};

/// Bytes that are decoded and compressed again for one answer: about a second.
const WORK: u64 = 256 << 20;

/// Chunks of old contents that are held, 100 bytes each.
const CHUNKS: usize = 1 << 18;

/// Copies and literal ranges of one answer: the list of frames has a bound.
const PIECES: usize = MAX_FRAMES / 4;

/// A frame is taken apart when at least such a part of it need not be sent: packing compresses better than there is time for here.
const WORTH: u64 = 16;

/// As a frame of several members may have.
const MEMBERS: usize = 4096;

/// Where the chunks of old contents are.
type Old = HashMap<Content, Piece>;

/// A part of a frame: from the worker's own, or literally.
struct Part {
    slice: Slice,
    /// Where in the frame's bytes it lies.
    at: u64,
    copy: Option<Piece>,
}

/// A frame of which something is needed.
struct Candidate {
    nth: u32,
    frame: Frame,
    place: Option<Place>,
    /// What is needed of it; empty when it is to leave as it is.
    parts: Vec<Part>,
    /// Bytes that are not sent when it is taken apart.
    saved: u64,
    /// Bytes to decode and to compress for that.
    work: u64,
}

impl Inner {
    /// The frames of `fresh` that hold anything that is needed, less what the worker has.
    pub(super) fn chunked(
        &self,
        fresh: &Kept,
        want: &pierhead_oci::Digest,
        table: &Table,
        bases: &[Base],
        needed: &[bool],
        draft: &mut Draft,
    ) -> Result<Vec<Frame>, Error> {
        let mut candidates = self.candidates(fresh, want, table, bases, needed)?;
        // Those that save most first, while there is time.
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(candidates[*at].saved));
        let (mut work, mut pieces) = (WORK, PIECES);
        for at in order {
            let one = &mut candidates[at];
            let affords = work
                .checked_sub(one.work)
                .zip(pieces.checked_sub(one.pieces()));
            match affords {
                Some(left) if one.saved > 0 => (work, pieces) = left,
                _ => one.parts.clear(),
            }
        }
        let mut out = Out {
            draft,
            frames: Vec::new(),
            encoder: Encoder::new(crate::patch::Level::FAST.number().into())?,
            members: Vec::new(),
            bytes: Vec::new(),
        };
        for one in candidates {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            match one.place {
                Some(place) if !one.parts.is_empty() => self.apart(one, &place, &mut out)?,
                _ => out.whole(fresh, one)?,
            }
        }
        out.flush()?;
        Ok(out.frames)
    }

    fn candidates(
        &self,
        fresh: &Kept,
        want: &pierhead_oci::Digest,
        table: &Table,
        bases: &[Base],
        needed: &[bool],
    ) -> Result<Vec<Candidate>, Error> {
        let sizes = Tables {
            want: table,
            haves: &[],
        };
        let is_large = |size: Option<u64>| size.is_some_and(|size| size >= CHUNKED_FROM);
        let is_chunked = |number| is_set(needed, number) && is_large(table.contents().size(number));
        let old = match (0..table.contents().len()).any(is_chunked) {
            true => self.old(table, bases),
            false => Old::new(),
        };
        let new = match old.is_empty() {
            true => HashMap::new(),
            false => self.chunks_of(want, table, &is_chunked),
        };
        let mut candidates = Vec::new();
        for (nth, frame) in (0..).zip(fresh.header()?.frames.cursor(&sizes)?) {
            let frame = frame?;
            let is_needed = |member: &Slice| is_set(needed, member.content);
            if !frame.members.iter().any(is_needed) {
                continue;
            }
            let place = match fresh.record(nth) {
                Some(Lies::Packed(place)) => Some(place),
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
            candidates.push(Candidate {
                nth,
                place,
                saved: match had >= at / WORTH && at > 0 {
                    true => record * had / at,
                    false => 0,
                },
                work: if literal == 0 { 0 } else { at + literal },
                frame,
                parts,
            });
        }
        Ok(candidates)
    }

    /// Chunks of what the worker has and the wanted image has not.
    fn old(&self, want: &Table, bases: &[Base]) -> Old {
        let mut old = Old::new();
        for (have, base) in (0..).zip(bases) {
            let Some(table) = &base.table else { continue };
            let image = Image {
                table,
                contents: base.contents(),
            };
            let gone = image.lacking(&[Image::with_layers(want)]);
            let chunks =
                self.chunks_of(&base.have.manifest, table, &|number| is_set(&gone, number));
            // In order of their numbers: the same question has the same answer.
            let mut chunks: Vec<_> = chunks.into_iter().collect();
            chunks.sort_unstable_by_key(|(number, _)| *number);
            for (content, chunks) in chunks {
                for chunk in chunks {
                    if old.len() >= CHUNKS {
                        return old;
                    }
                    old.entry(chunk.content).or_insert(Piece {
                        have,
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
        &self,
        image: &pierhead_oci::Digest,
        table: &Table,
        is_meant: &dyn Fn(u32) -> bool,
    ) -> HashMap<u32, Vec<Chunk>> {
        let blobs = lock(&self.images)
            .get(image)
            .map(|row| row.row.blobs.clone());
        // The first is the config.
        let blobs = blobs.unwrap_or_default().into_iter().skip(1);
        let (mut found, mut count) = (HashMap::new(), 0);
        for (layer, blob) in table.layers().zip(blobs) {
            let (Ok(layer), Ok(index)) = (layer, LayerIndex::open(&self.shelf.layer(&blob))) else {
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
    fn apart(&self, one: Candidate, place: &Place, out: &mut Out<'_>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        if one.work > 0 {
            let mut payload = Vec::new();
            let head = self.packs.read(place, &mut payload)?;
            let len = one.frame.members.iter().map(|member| member.len).sum();
            decode(head.coding, &payload, len, &mut bytes)?;
        }
        for part in one.parts {
            match part.copy {
                Some(piece) => out.copy(part.slice, piece)?,
                None => {
                    let start = usize::try_from(part.at).unwrap_or(usize::MAX);
                    let len = usize::try_from(part.slice.len).unwrap_or(usize::MAX);
                    let bytes = start.checked_add(len).and_then(|end| bytes.get(start..end));
                    let missing = || Error::malformed("frame", "it ends too early");
                    out.literal(part.slice, bytes.ok_or_else(missing)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Candidate {
    fn pieces(&self) -> usize {
        self.parts.iter().filter(|part| part.copy.is_some()).count() * 2
    }
}

/// A member that is needed, in parts; `at` is where it lies in its frame. Chunks follow each other from the content's start.
fn cut(member: &Slice, at: u64, chunks: &[Chunk], old: &Old) -> Vec<Part> {
    let end = member.offset + member.len;
    let mut parts: Vec<Part> = Vec::new();
    let mut push = |start: u64, until: u64, copy: Option<Piece>| {
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
        let copy = copy.map(|piece| Piece {
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
fn follows(last: Option<&Piece>, len: u64, next: Option<&Piece>) -> bool {
    match (last, next) {
        (None, None) => true,
        (Some(last), Some(next)) => {
            (last.have, last.slice.content, last.slice.offset + len)
                == (next.have, next.slice.content, next.slice.offset)
        }
        _ => false,
    }
}

/// Frames on their way into a draft.
struct Out<'a> {
    draft: &'a mut Draft,
    frames: Vec<Frame>,
    encoder: Encoder,
    /// Literal members that wait for more, and their bytes.
    members: Vec<Slice>,
    bytes: Vec<u8>,
}

impl Out<'_> {
    fn literal(&mut self, slice: Slice, bytes: &[u8]) -> Result<(), Error> {
        let len = (self.bytes.len() + bytes.len()) as u64;
        if len > MAX_FRAME || self.members.len() >= MEMBERS {
            self.flush()?;
        }
        self.members.push(slice);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn copy(&mut self, slice: Slice, piece: Piece) -> Result<(), Error> {
        // Ranges of a content stand in order.
        if self
            .members
            .iter()
            .any(|member| member.content == slice.content)
        {
            self.flush()?;
        }
        if self.members.is_empty()
            && let Some(last) = self
                .frames
                .last_mut()
                .filter(|it| it.coding == Coding::Copy)
            && let [member] = &mut last.members[..]
            && member.content == slice.content
            && member.offset + member.len == slice.offset
            && member.len + slice.len <= MAX_FRAME
            && last.bases.len() < MEMBERS
        {
            member.len += slice.len;
            last.bases.push(piece);
            return Ok(());
        }
        self.draft.nowhere();
        self.frames.push(Frame {
            members: vec![slice],
            bases: vec![piece],
            coding: Coding::Copy,
        });
        Ok(())
    }

    /// A frame as it is.
    fn whole(&mut self, fresh: &Kept, one: Candidate) -> Result<(), Error> {
        self.flush()?;
        self.draft.same(fresh, one.nth)?;
        self.frames.push(one.frame);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.members.is_empty() {
            return Ok(());
        }
        let (coding, payload) = self.encoder.encode(&self.bytes)?;
        self.draft.payload(coding, payload)?;
        self.frames.push(Frame {
            members: std::mem::take(&mut self.members),
            bases: Vec::new(),
            coding,
        });
        self.bytes.clear();
        Ok(())
    }
}
