//! The type `RecordLocation`: where a compressed frame (a record) is stored in the packs.

/// The place of a record: its pack, its offset and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordLocation {
    /// The number of the pack. A number is never used again after its pack was deleted.
    pub pack: u32,
    /// Offset of the record's head in the pack file.
    pub offset: u64,
    /// Length of the record in bytes, including its head.
    pub len: u32,
}
