//! The location of a record in the packs.

/// Where a record is stored: the pack, the offset and the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordLocation {
    /// The number of the pack. A number is never used again after its pack was deleted.
    pub pack: u32,
    /// Offset of the record's head in the pack file.
    pub offset: u64,
    /// Length of the record in bytes, with its head.
    pub len: u32,
}
