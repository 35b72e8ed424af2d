//! What the parsers of lines hand to the reader.

use pierhead_eviction::Access;

/// What became of a line.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A request.
    Access(Access<u64>),
    /// A request that a cache does not see, such as a PUT.
    Skipped,
    /// A header or comment.
    Nothing,
}
