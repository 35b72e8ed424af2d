//! The types of frames. A frame is a group of file contents that are compressed together: the unit
//! that the server packs and sends, and at which a download resumes.
//!
//! In a bundle and in a pack (a file in which the server stores frames), a frame is one *record*: a
//! head of [`RECORD_HEAD`] bytes, and the payload. The header of the bundle says which contents
//! result from decoding the payload, and which bases (old contents) are needed. So the server can
//! send the records of packs unchanged.

use crate::Error;
use pierhead_toc::FileDigest;

/// Maximum decoded size of a frame in bytes. This limit bounds the memory of a worker.
pub const MAX_FRAME: u64 = 4 << 20;

/// Maximum size of all bases of one frame together, in bytes.
pub const MAX_BASE: u64 = 16 << 20;

/// Length of the head of a record: coding (1), zero (3), payload length (4, little endian), SHA-256
/// of the payload (32).
pub const RECORD_HEAD: usize = 40;

/// The head of a record, before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// The coding of the payload; never [`Coding::Copy`].
    pub coding: Coding,
    /// Length of the payload in bytes, from 1 to [`MAX_FRAME`].
    pub len: u32,
    /// SHA-256 hash of the payload.
    pub digest: FileDigest,
}

impl RecordHead {
    /// Makes the head for a payload, and computes the SHA-256 hash of the payload.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the payload is empty or too long, or for [`Coding::Copy`].
    pub fn of(coding: Coding, payload: &[u8]) -> Result<Self, Error> {
        let head = Self {
            coding,
            len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            digest: FileDigest::of(payload),
        };
        head.check()
    }

    /// Encodes the head of a record.
    pub fn encode(&self) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[0] = self.coding.number();
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..].copy_from_slice(self.digest.as_bytes());
        bytes
    }

    /// Parses the head of a record, and checks the limits of the record.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a malformed head.
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

    /// Verifies that the payload has the length and the SHA-256 of this head.
    ///
    /// # Errors
    /// [`Error::Digest`] when the digest differs.
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

/// A range of a file content. The content is given by its number in a TOC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Number of the content in the TOC.
    pub content: u32,
    /// Offset of the first byte of the range.
    pub offset: u64,
    /// Number of bytes of the range; at least one.
    pub len: u64,
}

/// A range of a file content of a base image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BaseSlice {
    /// Position of the base image in [`crate::format::Header::base_images`].
    pub image: u16,
    /// The range, whose content number is a number of the base image's TOC.
    pub slice: Slice,
}

/// How the bytes of a frame are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// The payload has the uncompressed bytes of the frame.
    Stored,
    /// The payload is one zstd frame.
    Zstd,
    /// The payload is one zstd frame whose prefix is the concatenation of all bases (`zstd
    /// --patch-from`).
    Patch,
    /// The bytes of the frame are the bytes of the bases, so the frame has no record.
    Copy,
}

impl Coding {
    /// Returns the number that stands for the coding in all formats.
    pub const fn number(self) -> u8 {
        match self {
            Self::Stored => 0,
            Self::Zstd => 1,
            Self::Patch => 2,
            Self::Copy => 3,
        }
    }

    /// Returns the coding that has this number.
    ///
    /// # Errors
    /// [`Error::Malformed`] for an unknown number.
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

/// One frame of a bundle. The frame decodes to the concatenation of its members, at most
/// [`MAX_FRAME`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The ranges of contents that the decoded frame consists of, in order.
    pub members: Vec<Slice>,
    /// The ranges of old contents that decoding needs. The list is empty for [`Coding::Stored`] and
    /// [`Coding::Zstd`].
    pub bases: Vec<BaseSlice>,
    /// How the bytes of the frame are coded.
    pub coding: Coding,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_reverses_encode() {
        let head = RecordHead::of(Coding::Patch, b"abc").unwrap();
        let bytes = head.encode();
        assert_eq!(bytes[..8], [2, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(RecordHead::decode(&bytes).unwrap(), head);
        assert_eq!(head.digest, FileDigest::of(b"abc"));
    }

    #[test]
    fn a_head_that_exceeds_a_limit_is_refused() {
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
