//! The tier that a fill is written to first.

/// The tier that the bytes of a fill are written to first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Destination {
    /// The fast tier; the write-back thread copies them to the disk later.
    Fast,
    /// The disk.
    #[default]
    Disk,
}
