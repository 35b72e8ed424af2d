//! Where a record lies in the pack files.

/// Where a record lies in the pack files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordLocation {
    /// Which pack file; never used again once it is gone.
    pub pack: u32,
    /// Where the record begins, head included.
    pub offset: u64,
    /// Bytes of the record, head included.
    pub len: u32,
}
