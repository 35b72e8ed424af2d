//! The skeleton of a layer: its tar without file contents. The same tar can be rebuilt from the
//! skeleton and the file contents.
//!
//! A skeleton starts with a version byte (1). After the version byte come operations, whose numbers
//! are LEB128. Each operation outputs bytes of the tar:
//!
//! | byte | operands | output |
//! |---|---|---|
//! | 0 | | the end |
//! | 1 | `n`, n × (`skip`, `len`, bytes) | a header of 512 bytes: the one before (zeros at first) with parts replaced, and its checksum as `%06o\0 ` |
//! | 2 | the same | a header whose checksum is among the parts |
//! | 3 | `len`, bytes | those bytes |
//! | 4 | `len` | zeros |
//! | 5 | `size` | the next content and zeros up to a multiple of 512 |
//! | 6 | `size` | the next content |
//! | 7 | `size`, `n`, n × (`gap`, `len`) | parts of the next content: each `gap` bytes behind the one before; zeros up to a multiple of 512 |
//! | 8 | the same | parts of the next content |
//!
//! Contents are in the order of the tar: one for each regular file that is not empty.

use std::io::{self, Read, Write};

use pierhead_oci::{Algorithm, Digest, Hasher};

use crate::{Error, FileDigest, Source, varint};

use super::header::BLOCK;
use super::sparse::Map;

const VERSION: u8 = 1;
const END: u8 = 0;
const HEADER: u8 = 1;
const HEADER_SUM: u8 = 2;
const BYTES: u8 = 3;
const ZEROS: u8 = 4;
const FILE: u8 = 5;
const SPARSE: u8 = 7;
/// The number to add to [`FILE`] or [`SPARSE`] when no padding follows.
const BARE: u8 = 1;

/// Maximum number of parts of a sparse file.
const MAX_PARTS: u64 = 1 << 16;

/// Size of the copy buffer in bytes.
const COPY: usize = 256 << 10;

const FORMAT_NAME: &str = "layer skeleton";

/// Returns the number of zero bytes that pad `len` bytes to whole blocks.
pub(super) fn padding(len: u64) -> u64 {
    len.next_multiple_of(BLOCK as u64) - len
}

/// Writes a skeleton. Each call of a method appends an operation to `out`.
pub(super) struct Encoder {
    before: [u8; BLOCK],
    zeros: u64,
}

impl Encoder {
    pub(super) fn begin(out: &mut Vec<u8>) -> Self {
        out.push(VERSION);
        Self {
            before: [0; BLOCK],
            zeros: 0,
        }
    }

    pub(super) fn header(&mut self, block: &[u8; BLOCK], out: &mut Vec<u8>) {
        self.settle(out);
        let mut base = self.before;
        let plain = block[148..156] == checksum(block);
        if plain {
            base[148..156].copy_from_slice(&block[148..156]);
        }
        out.push(if plain { HEADER } else { HEADER_SUM });
        let parts = changed(&base, block);
        varint::put(out, parts.len() as u64);
        let mut at = 0;
        for (begin, end) in parts {
            varint::put(out, (begin - at) as u64);
            varint::put(out, (end - begin) as u64);
            out.extend_from_slice(&block[begin..end]);
            at = end;
        }
        self.before = *block;
    }

    /// Adds any bytes of the tar. A run of whole zero blocks takes only a few bytes in the
    /// skeleton.
    pub(super) fn bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for part in bytes.chunks(BLOCK) {
            if part.iter().all(|byte| *byte == 0) {
                self.zeros += part.len() as u64;
                continue;
            }
            self.settle(out);
            out.push(BYTES);
            varint::put(out, part.len() as u64);
            out.extend_from_slice(part);
        }
    }

    /// Adds a file content (for a sparse file, its stored parts) and the padding after the content.
    pub(super) fn content(&mut self, size: u64, map: Option<&Map>, pad: &[u8], out: &mut Vec<u8>) {
        self.settle(out);
        let stored = map.map_or(size, |map| map.0.iter().map(|(_, len)| len).sum());
        let usual = pad.len() as u64 == padding(stored) && pad.iter().all(|byte| *byte == 0);
        let bare = if usual { 0 } else { BARE };
        match map {
            None => {
                out.push(FILE + bare);
                varint::put(out, size);
            }
            Some(map) => {
                out.push(SPARSE + bare);
                varint::put(out, size);
                varint::put(out, map.0.len() as u64);
                let mut at = 0;
                for (offset, len) in &map.0 {
                    varint::put(out, offset - at);
                    varint::put(out, *len);
                    at = offset + len;
                }
            }
        }
        if !usual {
            self.bytes(pad, out);
        }
    }

    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        self.settle(out);
        out.push(END);
    }

    fn settle(&mut self, out: &mut Vec<u8>) {
        if self.zeros > 0 {
            out.push(ZEROS);
            varint::put(out, self.zeros);
            self.zeros = 0;
        }
    }
}

/// Returns the ranges in which two blocks differ. Ranges with at most two equal bytes between them
/// are merged.
fn changed(base: &[u8; BLOCK], block: &[u8; BLOCK]) -> Vec<(usize, usize)> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for at in (0..BLOCK).filter(|at| base[*at] != block[*at]) {
        match parts.last_mut() {
            Some(last) if at - last.1 <= 2 => last.1 = at + 1,
            _ => parts.push((at, at + 1)),
        }
    }
    parts
}

/// Returns the checksum field of a header in the usual form `%06o\0 `.
fn checksum(block: &[u8; BLOCK]) -> [u8; 8] {
    let fields = block[..148].iter().chain(&[b' '; 8]).chain(&block[156..]);
    let sum: u32 = fields.map(|byte| u32::from(*byte)).sum();
    let mut out = *b"000000\0 ";
    for (at, digit) in out[..6].iter_mut().rev().enumerate() {
        *digit += u8::try_from(sum >> (3 * at) & 7).unwrap_or(0);
    }
    out
}

/// Rebuilds the tar of a layer, and returns its digest. The caller compares this digest with the
/// diff ID.
///
/// `files` are the contents in the order of the tar, from [`super::LayerIndex::files`] or from a
/// TOC. The function writes at most `limit` bytes, and takes less than 2 MiB of memory for any
/// skeleton.
///
/// # Errors
/// [`Error::Malformed`] when the skeleton is malformed, does not match `files`, or exceeds `limit`;
/// [`Error::Missing`] when the source lacks a content; [`Error::Io`] for errors of the disk.
pub fn rebuild(
    skeleton: &mut dyn Read,
    files: &mut dyn Iterator<Item = Result<(FileDigest, u64), Error>>,
    source: &dyn Source,
    limit: u64,
    out: &mut dyn Write,
) -> Result<Digest, Error> {
    let mut tar = Tar {
        skeleton: Operands(skeleton),
        out,
        hash: Hasher::new(Algorithm::Sha256),
        left: limit,
        buffer: vec![0; COPY],
    };
    let mut before = [0; BLOCK];
    if tar.skeleton.byte()? != VERSION {
        return Err(bad("of an unknown version"));
    }
    loop {
        match tar.skeleton.byte()? {
            END => break,
            kind @ (HEADER | HEADER_SUM) => {
                tar.skeleton.patch(&mut before)?;
                if kind == HEADER {
                    let sum = checksum(&before);
                    before[148..156].copy_from_slice(&sum);
                }
                tar.write(&before)?;
            }
            BYTES => {
                let len = tar.skeleton.number()?;
                tar.copy(len)?;
            }
            ZEROS => {
                let len = tar.skeleton.number()?;
                tar.zeros(len)?;
            }
            kind @ (5..=8) => {
                let sparse = kind >= SPARSE;
                let bare = kind == FILE + BARE || kind == SPARSE + BARE;
                let size = tar.skeleton.number()?;
                let (content, known) = files.next().ok_or_else(|| bad("of more files"))??;
                if size != known {
                    return Err(bad("with a file of another size"));
                }
                let parts = if sparse { tar.skeleton.number()? } else { 1 };
                if parts > MAX_PARTS {
                    return Err(bad("of more parts than the limit of 65536"));
                }
                let (mut at, mut stored) = (0u64, 0u64);
                for _ in 0..parts {
                    let (gap, len) = if sparse {
                        (tar.skeleton.number()?, tar.skeleton.number()?)
                    } else {
                        (0, size)
                    };
                    let begin = at.checked_add(gap);
                    let end = begin.and_then(|begin| begin.checked_add(len));
                    let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= size)) else {
                        return Err(bad("with a part behind a file's end"));
                    };
                    tar.part(source, &content, begin, len)?;
                    at = end;
                    stored += len;
                }
                if !bare {
                    tar.zeros(padding(stored))?;
                }
            }
            _ => return Err(bad("with an unknown operation")),
        }
    }
    if files.next().is_some() {
        return Err(bad("of fewer files"));
    }
    if tar.skeleton.0.read(&mut [0]).map_err(read)? != 0 {
        return Err(bad("with bytes behind its end"));
    }
    Ok(tar.hash.finish())
}

struct Operands<'a>(&'a mut dyn Read);

impl Operands<'_> {
    fn byte(&mut self) -> Result<u8, Error> {
        let mut byte = [0];
        self.0.read_exact(&mut byte).map_err(read)?;
        Ok(byte[0])
    }

    fn number(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(bad("with a number over 64 bits"))
    }

    fn patch(&mut self, block: &mut [u8; BLOCK]) -> Result<(), Error> {
        let parts = self.number()?;
        let mut at = 0usize;
        for _ in 0..parts {
            let (skip, len) = (self.number()?, self.number()?);
            let part = usize::try_from(skip)
                .ok()
                .zip(usize::try_from(len).ok())
                .filter(|(_, len)| *len > 0)
                .and_then(|(skip, len)| {
                    let begin = at.checked_add(skip)?;
                    let end = begin.checked_add(len)?;
                    at = end;
                    block.get_mut(begin..end)
                });
            let part = part.ok_or_else(|| bad("with a header over 512 bytes"))?;
            self.0.read_exact(part).map_err(read)?;
        }
        Ok(())
    }
}

struct Tar<'a> {
    skeleton: Operands<'a>,
    out: &'a mut dyn Write,
    hash: Hasher,
    left: u64,
    buffer: Vec<u8>,
}

impl Tar<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.spend(bytes.len() as u64)?;
        self.hash.update(bytes);
        self.out.write_all(bytes).map_err(wrote)
    }

    /// Writes `len` bytes in pieces. For each piece, calls `fill` with a position and a buffer,
    /// which `fill` fills with the bytes at this position.
    fn pieces(
        &mut self,
        len: u64,
        mut fill: impl FnMut(&mut Operands<'_>, u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.spend(len)?;
        let mut at = 0;
        while at < len {
            let piece = usize::try_from(len - at).unwrap_or(COPY).min(COPY);
            let piece = &mut self.buffer[..piece];
            fill(&mut self.skeleton, at, piece)?;
            self.hash.update(piece);
            self.out.write_all(piece).map_err(wrote)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn copy(&mut self, len: u64) -> Result<(), Error> {
        self.pieces(len, |skeleton, _, piece| {
            skeleton.0.read_exact(piece).map_err(read)
        })
    }

    fn zeros(&mut self, len: u64) -> Result<(), Error> {
        self.pieces(len, |_, _, piece| {
            piece.fill(0);
            Ok(())
        })
    }

    fn part(
        &mut self,
        source: &dyn Source,
        content: &FileDigest,
        offset: u64,
        len: u64,
    ) -> Result<(), Error> {
        self.pieces(len, |_, at, piece| {
            source
                .read_at(content, offset + at, piece)
                .map_err(|e| match e.kind() {
                    io::ErrorKind::NotFound => Error::Missing(content.to_string()),
                    _ => Error::io(format!("read {content}"), e),
                })
        })
    }

    fn spend(&mut self, len: u64) -> Result<(), Error> {
        self.left = self
            .left
            .checked_sub(len)
            .ok_or_else(|| bad("of a tar over the limit"))?;
        Ok(())
    }
}

fn bad(why: &str) -> Error {
    Error::malformed(FORMAT_NAME, why)
}

fn read(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => bad("cut short"),
        _ => Error::io("read a skeleton", error),
    }
}

fn wrote(error: io::Error) -> Error {
    Error::io("write a layer", error)
}
