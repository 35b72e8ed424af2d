//! Frames: the unit of packing, of sending, of resuming.
//!
//! On the wire and in pack files a frame is one *record*: [`RECORD_HEAD`] bytes and the payload. What its bytes
//! mean (which contents, against which bases) stands in the header of the bundle, so that records of packs leave as they are.

/// Most bytes that a frame decodes to. Bounds what a worker holds of one.
pub const MAX_FRAME: u64 = 4 << 20;

/// Most bytes of all bases of one frame together.
pub const MAX_BASE: u64 = 16 << 20;

/// Bytes before the payload of a record: coding (1), zero (3), payload length (4, little endian), SHA-256 of the payload (32).
pub const RECORD_HEAD: usize = 40;

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
pub struct Base {
    /// Position in the bundle's list of images that the worker has.
    pub have: u16,
    /// In that image's table.
    pub slice: Slice,
}

/// How the bytes of a frame are had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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

/// What one frame gives: the members' bytes, one after the other, at most [`MAX_FRAME`] of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What is in it, in order.
    pub members: Vec<Slice>,
    /// What it was made against; empty for [`Coding::Stored`] and [`Coding::Zstd`].
    pub bases: Vec<Base>,
    /// How.
    pub coding: Coding,
}

/// Where a record lies in the pack files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which pack file; never used again once it is gone.
    pub pack: u32,
    /// Where the record begins, head included.
    pub offset: u64,
    /// Bytes of the record, head included.
    pub len: u32,
}
