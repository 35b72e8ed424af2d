//! Parses the maps of sparse files: the positions of stored bytes in a file. Supports all sparse
//! formats of GNU tar: the GNU header format, and PAX 0.0, 0.1 and 1.0.

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use crate::Error;

use super::header::{BLOCK, number};
use super::pax::{MAX_SPECIAL, Pax, decimal};

/// Maximum number of extents of one file. A reader holds all extents in memory.
const MAX_EXTENTS: usize = 1 << 16;

/// The extents of a sparse file, each with its first byte and its length. The extents are sorted
/// and disjoint, and none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map(pub(super) Vec<(u64, u64)>);

impl Map {
    /// Checks that extents are in order and within the file, and that their total length is
    /// `stored`.
    pub(super) fn new(parts: &[(u64, u64)], size: u64, stored: u64) -> Result<Self, Error> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        let (mut end, mut sum) = (0, 0u64);
        for (offset, len) in parts.iter().copied() {
            let after = offset.checked_add(len).filter(|after| *after <= size);
            if offset < end || after.is_none() {
                return Err(bad("with parts out of order or bounds"));
            }
            end = offset + len;
            sum += len;
            match all.last_mut() {
                _ if len == 0 => {}
                Some(last) if last.0 + last.1 == offset => last.1 += len,
                _ => all.push((offset, len)),
            }
        }
        if sum != stored {
            return Err(bad("that is not of the stored length"));
        }
        Ok(Self(all))
    }
}

/// The part of a map that is already parsed: pairs of offset and length.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<(u64, u64)>);

impl Parts {
    fn push(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        if self.0.len() == MAX_EXTENTS {
            return Err(bad("of more parts than the limit of 65536"));
        }
        self.0.push((offset, len));
        Ok(())
    }

    pub(super) fn pairs(&self) -> &[(u64, u64)] {
        &self.0
    }

    fn of_numbers(numbers: &[u64]) -> Result<Self, Error> {
        let mut this = Self::default();
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad("of an odd count"));
        }
        for [offset, len] in pairs {
            this.push(*offset, *len)?;
        }
        Ok(this)
    }

    /// Reads the parts in a header of GNU's format. Returns the size of the file, and whether a
    /// block with more parts follows.
    pub(super) fn old(&mut self, header: &[u8; BLOCK]) -> Result<(u64, bool), Error> {
        let header = Header::from_byte_slice(header);
        let Some(gnu) = header.as_gnu() else {
            return Err(bad("in a header that is not in GNU's format"));
        };
        self.gnu(&gnu.sparse)?;
        Ok((positive(&gnu.realsize)?, gnu.isextended[0] > 0))
    }

    /// Reads the parts in a block after the header. Returns whether another block follows.
    pub(super) fn more(&mut self, block: &[u8; BLOCK]) -> Result<bool, Error> {
        let mut header = GnuExtSparseHeader::new();
        header.as_mut_bytes().copy_from_slice(block);
        self.gnu(header.sparse())?;
        Ok(header.isextended[0] > 0)
    }

    fn gnu(&mut self, parts: &[GnuSparseHeader]) -> Result<(), Error> {
        for part in parts {
            // An empty first byte marks the end of the list.
            if part.offset[0] == 0 {
                break;
            }
            self.push(positive(&part.offset)?, positive(&part.numbytes)?)?;
        }
        Ok(())
    }
}

fn positive(field: &[u8]) -> Result<u64, Error> {
    u64::try_from(number(field)?).map_err(|_| bad("of negative numbers"))
}

/// The format of a sparse file, as its extended header states it.
#[derive(Debug)]
pub(super) enum Form {
    /// The file is not sparse.
    None,
    /// The file is sparse, and its map is in the extended header.
    Here(Parts),
    /// The file is sparse, and its map is before the data, in decimal numbers.
    Ahead,
}

/// Determines the format by the PAX records.
pub(super) fn form(pax: &Pax) -> Result<Form, Error> {
    let version = |key| pax.get(key).unwrap_or_default();
    match (version("GNU.sparse.major"), version("GNU.sparse.minor")) {
        (b"1", b"0") => return Ok(Form::Ahead),
        (b"" | b"0", b"" | b"0" | b"1") => {}
        _ => return Err(bad("of an unknown version")),
    }
    if let Some(map) = pax.get("GNU.sparse.map") {
        let mut numbers = Vec::new();
        for text in map.split(|byte| *byte == b',') {
            numbers.push(decimal(text).ok_or_else(|| bad("of no numbers"))?);
        }
        return Parts::of_numbers(&numbers).map(Form::Here);
    }
    if pax.sparse.is_empty() {
        return Ok(Form::None);
    }
    Parts::of_numbers(&pax.sparse).map(Form::Here)
}

/// Parses the map of format 1.0 from the blocks before the data.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    line: Vec<u8>,
    wanted: Option<u64>,
    numbers: Vec<u64>,
    bytes: u64,
}

impl Ahead {
    pub(super) fn feed(&mut self, block: &[u8; BLOCK]) -> Result<Option<Parts>, Error> {
        self.bytes += BLOCK as u64;
        if self.bytes > MAX_SPECIAL {
            return Err(bad("longer than the limit of 1 MiB"));
        }
        for byte in block {
            if *byte != b'\n' {
                if self.line.len() == 20 {
                    return Err(bad("of no numbers"));
                }
                self.line.push(*byte);
                continue;
            }
            let number = decimal(&self.line).ok_or_else(|| bad("of no numbers"))?;
            self.line.clear();
            match self.wanted {
                None if number > MAX_EXTENTS as u64 => {
                    return Err(bad("of more parts than the limit of 65536"));
                }
                None => self.wanted = Some(2 * number),
                Some(_) => self.numbers.push(number),
            }
            // The rest of the block is padding.
            if self.wanted == Some(self.numbers.len() as u64) {
                return Parts::of_numbers(&self.numbers).map(Some);
            }
        }
        Ok(None)
    }
}

fn bad(what: &str) -> Error {
    Error::Image(format!("the layer has a sparse file with a map {what}"))
}
