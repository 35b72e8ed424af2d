//! The result of parsing one line of a trace.

use pierhead_eviction::Access;

/// Result of parsing one line.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A request.
    Access(Access<u64>),
    /// A request that is no read of a cached object, such as a PUT; it is skipped and counted.
    Skipped,
    /// A header or comment.
    Nothing,
}
