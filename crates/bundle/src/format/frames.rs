//! Encodes and decodes the list of a bundle's frames: columns of small numbers, which a cursor
//! decodes one frame at a time.

use std::collections::HashMap;

use crate::Error;
use crate::{BaseSlice, Coding, Frame, MAX_BASE, MAX_FRAME, Slice};
use pierhead_toc::varint::{self, Reader};

/// Maximum number of frames of a bundle.
pub const MAX_FRAMES: usize = 1 << 18;

/// Maximum number of members (ranges of contents) of a frame, and also of bases of a frame.
pub const MAX_MEMBERS: usize = 1 << 14;

/// Maximum size of a frame list before compression, in bytes. The server and the worker hold the
/// list in memory.
pub const MAX_FRAME_LIST: usize = 4 << 20;

/// Maximum number of contents that are incomplete at any position of a frame list: earlier frames
/// contain some ranges of the content, and later frames the rest. This limit bounds the memory of a
/// reader.
const MAX_OPEN: usize = 1 << 16;

const FORMAT_NAME: &str = "frame list";
const COLUMNS: usize = 5;

/// Tells the sizes of contents, by their numbers in a TOC. The result is `None` for a number that
/// the TOC does not have.
pub trait Sizes {
    /// Returns the size of content number `content` of the wanted image.
    fn wanted(&self, content: u32) -> Option<u64>;
    /// Returns the size of content number `content` of a base image. `image` is the position of the
    /// base image in the header.
    fn base(&self, image: u16, content: u32) -> Option<u64>;
}

/// The list of a bundle's frames, in a compact form that takes about two bytes per member.
///
/// The ranges of one content are in ascending order without gaps, and cover the whole content. The
/// compact form cannot express overlapping or missing ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    bytes: Vec<u8>,
    count: usize,
}

impl Frames {
    /// Encodes a list of frames in one pass.
    ///
    /// # Errors
    /// [`Error::Malformed`] when a limit is exceeded; the ranges of a content are out of order or
    /// do not cover it; a slice is empty or exceeds its content; or a frame has bases although its
    /// coding takes none, or the reverse.
    pub fn encode<'a>(
        frames: impl IntoIterator<Item = &'a Frame>,
        sizes: &dyn Sizes,
    ) -> Result<Self, Error> {
        let mut columns: [Vec<u8>; COLUMNS] = Default::default();
        let [codings, counts, contents, slices, bases] = &mut columns;
        let mut open = Open::default();
        let (mut last_member, mut last_base) = (0, 0);
        for frame in frames {
            if codings.len() == MAX_FRAMES {
                return Err(wrong("too many frames"));
            }
            check(frame)?;
            codings.push(frame.coding.number());
            varint::put(counts, as_u64(frame.members.len()));
            for member in &frame.members {
                put_next(contents, &mut last_member, member.content);
                let rest = open.advance(member, sizes)?;
                varint::put(slices, if rest { 0 } else { member.len });
            }
            if takes_bases(frame.coding) {
                varint::put(counts, as_u64(frame.bases.len()));
            }
            for base in &frame.bases {
                let Slice {
                    content,
                    offset,
                    len,
                } = base.slice;
                let size = base_size(base, sizes)?;
                varint::put(bases, u64::from(base.image));
                put_next(bases, &mut last_base, content);
                if (offset, len) == (0, size) {
                    varint::put(bases, 0);
                } else {
                    varint::put(bases, len);
                    varint::put(bases, offset);
                }
            }
        }
        open.end()?;
        let count = codings.len();
        let mut bytes = Vec::new();
        for column in &columns {
            varint::put(&mut bytes, as_u64(column.len()));
        }
        for column in &columns {
            bytes.extend_from_slice(column);
        }
        if bytes.len() > MAX_FRAME_LIST {
            return Err(wrong("it is too long"));
        }
        Ok(Self { bytes, count })
    }

    /// Parses a compact frame list, as [`Frames::bytes`] returns it. This call checks only the
    /// column of codings. The cursor checks all other columns.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the columns or the codings are malformed.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        if bytes.len() > MAX_FRAME_LIST {
            return Err(wrong("it is too long"));
        }
        let [codings, ..] = columns(&bytes)?;
        let count = codings.len();
        if count > MAX_FRAMES {
            return Err(wrong("too many frames"));
        }
        if codings
            .iter()
            .any(|byte| Coding::from_number(*byte).is_err())
        {
            return Err(wrong("a coding that is unknown"));
        }
        Ok(Self { bytes, count })
    }

    /// Checks the whole frame list against the TOCs in one pass.
    ///
    /// # Errors
    /// The same errors as from [`Frames::encode`].
    pub fn check(&self, sizes: &dyn Sizes) -> Result<(), Error> {
        self.cursor(sizes)?.try_for_each(|frame| frame.map(drop))
    }

    /// Returns the compact form, uncompressed.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of frames.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether the list has no frames.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the coding of every frame, in order.
    pub fn codings(&self) -> impl ExactSizeIterator<Item = Coding> + '_ {
        let codings = columns(&self.bytes).map_or(&[][..], |[codings, ..]| codings);
        codings
            .iter()
            .map(|byte| Coding::from_number(*byte).unwrap_or(Coding::Stored))
    }

    /// Decodes the list from its first frame. The cursor checks each frame as [`Frames::encode`]
    /// does. At the end, it checks that all contents are covered.
    ///
    /// # Errors
    /// The same errors as from [`Frames::parse`].
    pub fn cursor<'a>(&'a self, sizes: &'a dyn Sizes) -> Result<Cursor<'a>, Error> {
        let [codings, counts, contents, slices, bases] = if self.bytes.is_empty() {
            [&[][..]; COLUMNS]
        } else {
            columns(&self.bytes)?
        };
        Ok(Cursor {
            codings: Reader::new(FORMAT_NAME, codings),
            counts: Reader::new(FORMAT_NAME, counts),
            contents: Reader::new(FORMAT_NAME, contents),
            slices: Reader::new(FORMAT_NAME, slices),
            bases: Reader::new(FORMAT_NAME, bases),
            last_member: 0,
            last_base: 0,
            open: Open::default(),
            sizes,
            done: false,
        })
    }
}

/// An iterator over the frames of a list, which [`Frames::cursor`] returns.
pub struct Cursor<'a> {
    codings: Reader<'a>,
    counts: Reader<'a>,
    contents: Reader<'a>,
    slices: Reader<'a>,
    bases: Reader<'a>,
    last_member: u32,
    last_base: u32,
    open: Open,
    sizes: &'a dyn Sizes,
    done: bool,
}

impl Cursor<'_> {
    fn frame(&mut self) -> Result<Frame, Error> {
        let coding = Coding::from_number(self.codings.byte()?)?;
        let mut frame = Frame {
            members: Vec::new(),
            bases: Vec::new(),
            coding,
        };
        for _ in 0..self.count()? {
            let content = next(&mut self.contents, &mut self.last_member)?;
            let len = self.slices.u64()?;
            frame
                .members
                .push(self.open.take(content, len, self.sizes)?);
        }
        let bases = if takes_bases(coding) {
            self.count()?
        } else {
            0
        };
        for _ in 0..bases {
            frame.bases.push(self.base()?);
        }
        check(&frame)?;
        Ok(frame)
    }

    fn count(&mut self) -> Result<usize, Error> {
        let count = self.counts.u32()?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= MAX_MEMBERS)
            .ok_or_else(|| wrong("too many members or bases in a frame"))
    }

    fn base(&mut self) -> Result<BaseSlice, Error> {
        let image = u16::try_from(self.bases.u32()?)
            .map_err(|_| wrong("an image that is not in the list"))?;
        let content = next(&mut self.bases, &mut self.last_base)?;
        let (len, offset) = match self.bases.u64()? {
            0 => (self.sizes.base(image, content).unwrap_or(0), 0),
            len => (len, self.bases.u64()?),
        };
        let base = BaseSlice {
            image,
            slice: Slice {
                content,
                offset,
                len,
            },
        };
        base_size(&base, self.sizes)?;
        Ok(base)
    }
}

impl Iterator for Cursor<'_> {
    type Item = Result<Frame, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if !self.codings.rest().is_empty() {
            let frame = self.frame();
            self.done = frame.is_err();
            return Some(frame);
        }
        self.done = true;
        let columns = [&self.counts, &self.contents, &self.slices, &self.bases];
        let ends = columns.iter().try_for_each(|column| column.end());
        let ends = ends.map_err(Error::from);
        ends.and_then(|()| self.open.end()).err().map(Err)
    }
}

/// The contents that earlier frames cover only in part, each with the number of covered bytes.
#[derive(Default)]
struct Open(HashMap<u32, u64>);

impl Open {
    /// Returns the next slice of a content: `len` bytes, or all remaining bytes when `len` is 0.
    fn take(&mut self, content: u32, len: u64, sizes: &dyn Sizes) -> Result<Slice, Error> {
        let offset = self.0.get(&content).copied().unwrap_or(0);
        let size = sizes.wanted(content).unwrap_or(0);
        let slice = Slice {
            content,
            offset,
            len: if len == 0 {
                size.saturating_sub(offset)
            } else {
                len
            },
        };
        if self.advance(&slice, sizes)? != (len == 0) {
            return Err(wrong("the length of a last range must be 0"));
        }
        Ok(slice)
    }

    /// Adds a slice of a content. Returns whether the slice is the last of its content.
    fn advance(&mut self, slice: &Slice, sizes: &dyn Sizes) -> Result<bool, Error> {
        let size = sizes
            .wanted(slice.content)
            .ok_or_else(|| wrong("a content that the TOC does not have"))?;
        let next_offset = self.0.get(&slice.content).copied().unwrap_or(0);
        if slice.offset != next_offset {
            return Err(wrong("ranges of a content that are not in order"));
        }
        let end = next_offset
            .checked_add(slice.len)
            .filter(|end| slice.len > 0 && *end <= size);
        let Some(end) = end else {
            return Err(wrong(
                "a member that is empty or goes over its content's end",
            ));
        };
        if end == size {
            self.0.remove(&slice.content);
            // Removes a complete content from the map. If the content comes again, the receiver
            // ignores it.
            return Ok(true);
        }
        if self.0.insert(slice.content, end).is_none() && self.0.len() > MAX_OPEN {
            return Err(wrong("too many contents at once"));
        }
        Ok(false)
    }

    fn end(&self) -> Result<(), Error> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(wrong("a content that is not covered to its end")),
        }
    }
}

fn base_size(base: &BaseSlice, sizes: &dyn Sizes) -> Result<u64, Error> {
    let Slice {
        content,
        offset,
        len,
    } = base.slice;
    let size = sizes
        .base(base.image, content)
        .ok_or_else(|| wrong("a base that no TOC has"))?;
    let fits = offset
        .checked_add(len)
        .is_some_and(|end| len > 0 && end <= size);
    fits.then_some(size)
        .ok_or_else(|| wrong("a base that is empty or goes over its content's end"))
}

fn check(frame: &Frame) -> Result<(), Error> {
    let add = |sum: Option<u64>, len: u64| sum?.checked_add(len);
    let members = frame.members.iter().map(|member| member.len);
    let bytes = members.fold(Some(0), add);
    let bases = frame.bases.iter().map(|base| base.slice.len);
    let bases = bases.fold(Some(0), add);
    if frame.members.is_empty()
        || frame.members.len() > MAX_MEMBERS
        || frame.bases.len() > MAX_MEMBERS
    {
        return Err(wrong("a frame of no members, or of too many"));
    }
    if bytes.is_none_or(|bytes| bytes > MAX_FRAME) || bases.is_none_or(|bases| bases > MAX_BASE) {
        return Err(wrong("a frame or its bases have too many bytes"));
    }
    if takes_bases(frame.coding) == frame.bases.is_empty() {
        return Err(wrong("bases and coding do not fit"));
    }
    if frame.coding == Coding::Copy && bytes != bases {
        return Err(wrong("a copy of another length than its bases"));
    }
    Ok(())
}

const fn takes_bases(coding: Coding) -> bool {
    matches!(coding, Coding::Patch | Coding::Copy)
}

fn columns(bytes: &[u8]) -> Result<[&[u8]; COLUMNS], Error> {
    let mut reader = Reader::new(FORMAT_NAME, bytes);
    let mut lens = [0; COLUMNS];
    for len in &mut lens {
        *len = reader.count()?;
    }
    let mut columns = [&[][..]; COLUMNS];
    for (column, len) in columns.iter_mut().zip(lens) {
        *column = reader.take(len)?;
    }
    reader.end()?;
    Ok(columns)
}

/// Encodes `number` as its difference to (the previous number + 1).
fn put_next(out: &mut Vec<u8>, last: &mut u32, number: u32) {
    varint::put_signed(out, i64::from(number) - i64::from(*last));
    *last = number.wrapping_add(1);
}

fn next(column: &mut Reader<'_>, last: &mut u32) -> Result<u32, Error> {
    let number = i64::from(*last).checked_add(column.i64()?);
    let number = number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| wrong("a number out of range"))?;
    *last = number.wrapping_add(1);
    Ok(number)
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn wrong(why: &str) -> Error {
    Error::malformed(FORMAT_NAME, why)
}
