//! The result of a placement rule: whether a fill (the download of a blob into the cache) is first
//! written to the fast tier or to the disk.

/// The tier to which the bytes of a fill are written first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Destination {
    /// The bytes are written to the fast tier. The write-back thread copies these bytes to the disk
    /// later.
    Fast,
    /// The bytes are written to the disk.
    #[default]
    Disk,
}
