//! The result of parsing one line of a trace.

use pierhead_eviction::Access;

/// Result of parsing one line.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A request.
    Access(Access<u64>),
    /// A request that does not concern a cache, such as a PUT.
    Skipped,
    /// A header or comment.
    Nothing,
}
