//! The result of parsing one line of a trace.

use pierhead_eviction::Access;

/// The result of parsing one line of a trace.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// The line is a request for a cached object.
    Access(Access<u64>),
    /// The line is a request that does not read a cached object, such as a PUT. The reader skips
    /// and counts such requests.
    Skipped,
    /// The line is a header or a comment.
    Nothing,
}
