//! Frames: the unit of packing, of sending, of resuming.
//!
//! On the wire and in pack files a frame is one *record*: [`RECORD_HEAD`] bytes and the payload. What its bytes
//! mean (which contents, against which bases) stands in the header of the bundle, so that records of packs leave as they are.

use pierhead_toc::{Error, FileDigest};

/// Most bytes that a frame decodes to. Bounds what a worker holds of one.
pub const MAX_FRAME: u64 = 4 << 20;

/// Most bytes of all bases of one frame together.
pub const MAX_BASE: u64 = 16 << 20;

/// Bytes before the payload of a record: coding (1), zero (3), payload length (4, little endian), SHA-256 of the payload (32).
pub const RECORD_HEAD: usize = 40;

/// What stands before the payload of a record, on the wire and in packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// How the payload is coded; never [`Coding::Copy`].
    pub coding: Coding,
    /// Bytes of the payload: 1 to [`MAX_FRAME`].
    pub len: u32,
    /// SHA-256 of the payload.
    pub digest: FileDigest,
}

impl RecordHead {
    /// Of a payload that is at hand. One pass over it; an error when no record can have it.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn of(coding: Coding, payload: &[u8]) -> Result<Self, Error> {
        let head = Self {
            coding,
            len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            digest: FileDigest::of(payload),
        };
        head.check()
    }

    /// As it stands in a record.
    pub fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[0] = self.coding.number();
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..].copy_from_slice(self.digest.as_bytes());
        bytes
    }

    /// Out of a record; every field is within its bounds.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn decode(bytes: &[u8; RECORD_HEAD]) -> Result<Self, Error> {
        let [coding, 0, 0, 0, a, b, c, d, digest @ ..] = *bytes else {
            return Err(Error::malformed("record", "reserved bytes are set"));
        };
        let head = Self {
            coding: Coding::from_number(coding)?,
            len: u32::from_le_bytes([a, b, c, d]),
            digest: FileDigest::from_bytes(digest),
        };
        head.check()
    }

    /// Whether this is its payload. One pass over it.
    ///
    /// # Errors
    /// [`Error::Digest`] when it is not.
    pub fn verify(&self, payload: &[u8]) -> Result<(), Error> {
        let found = FileDigest::of(payload);
        if found == self.digest {
            return Ok(());
        }
        Err(Error::Digest {
            what: "the payload of a record".into(),
            expected: self.digest.to_string(),
            found: found.to_string(),
        })
    }

    fn check(self) -> Result<Self, Error> {
        if self.coding == Coding::Copy || self.len == 0 || u64::from(self.len) > MAX_FRAME {
            let why = format!("{} bytes coded as {:?}", self.len, self.coding);
            return Err(Error::malformed("record", why));
        }
        Ok(self)
    }
}

/// A range of a content of a table, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Number of the content in the table.
    pub content: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes; at least one.
    pub len: u64,
}

/// A range of a content that the worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BaseSlice {
    /// Position in the bundle's list of images that the worker has.
    pub image: u16,
    /// In that image's table.
    pub slice: Slice,
}

/// How the bytes of a frame are had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// The payload is the bytes.
    Stored,
    /// The payload is one zstd frame.
    Zstd,
    /// The payload is one zstd frame whose prefix is all bases, one after the other (`zstd --patch-from`).
    Patch,
    /// The bytes are those of the bases: there is no record.
    Copy,
}

impl Coding {
    /// As it is written down, in every format.
    pub const fn number(self) -> u8 {
        match self {
            Self::Stored => 0,
            Self::Zstd => 1,
            Self::Patch => 2,
            Self::Copy => 3,
        }
    }

    /// As it was written down.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a number that stands for none.
    pub fn from_number(number: u8) -> Result<Self, Error> {
        match number {
            0 => Ok(Self::Stored),
            1 => Ok(Self::Zstd),
            2 => Ok(Self::Patch),
            3 => Ok(Self::Copy),
            _ => Err(Error::malformed(
                "frame",
                format!("a coding numbered {number}"),
            )),
        }
    }
}

/// What one frame gives: the members' bytes, one after the other, at most [`MAX_FRAME`] of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What is in it, in order.
    pub members: Vec<Slice>,
    /// What it was made against; empty for [`Coding::Stored`] and [`Coding::Zstd`].
    pub bases: Vec<BaseSlice>,
    /// How.
    pub coding: Coding,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = RecordHead::of(Coding::Patch, b"abc").unwrap();
        let bytes = head.encode();
        assert_eq!(bytes[..8], [2, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(RecordHead::decode(&bytes).unwrap(), head);
        assert_eq!(head.digest, FileDigest::of(b"abc"));
    }

    #[test]
    fn a_head_out_of_bounds_is_refused() {
        let good = RecordHead::of(Coding::Zstd, b"abc").unwrap().encode();
        for (at, value) in [(0, 3), (0, 4), (1, 1), (3, 9), (4, 0), (6, 0x41), (7, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(RecordHead::decode(&bytes).is_err(), "byte {at} as {value}");
        }
        assert!(RecordHead::of(Coding::Copy, b"abc").is_err());
        assert!(RecordHead::of(Coding::Stored, b"").is_err());
    }
}
