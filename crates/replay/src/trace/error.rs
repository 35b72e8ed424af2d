//! Errors of trace parsers. Each has a location in the trace, a kind, and a message that says how
//! to fix the error.

use std::fmt;

/// An error in a trace, with its location. The caller adds the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {wrong}")]
pub struct TraceError {
    /// The location of the error.
    pub at: Location,
    /// The kind of the error, whose message has the fix.
    pub wrong: TraceErrorKind,
}

/// A location in a trace, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A line of a text trace.
    Line(u64),
    /// A record of a binary trace.
    Record(u64),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Record(record) => write!(f, "record {record}"),
        }
    }
}

/// Kinds of errors in a trace. Each message ends with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The trace ends within a record or within a line.
    #[error(
        "the trace is truncated here; get the complete file, or replay its complete requests with --cut-ok"
    )]
    Cut,
    /// A field has an invalid value.
    #[error("{field} is {found:?}, not {expected}; correct or delete this line")]
    Field {
        /// Name of the field with the invalid value.
        field: &'static str,
        /// The first characters of the invalid value.
        found: String,
        /// The value that the parser expected.
        expected: &'static str,
    },
    /// The line has too few fields.
    #[error("{found} fields where {expected} are needed; correct or delete this line")]
    Fields {
        /// Number of fields that the line has.
        found: usize,
        /// Number of fields that the line needs.
        expected: usize,
    },
    /// A newer version of pierhead wrote the request log.
    #[error(
        "the request log has version {found:?}, and this program reads version 1: use a newer one"
    )]
    Version {
        /// The version of the request log.
        found: String,
    },
    /// The first line is not the header of a request log.
    #[error(
        "not a pierhead request log: its first line is not \"#pierhead-trace 1\"; name another --format"
    )]
    Header,
    /// The position of a required column is unknown.
    #[error("the column of the {0} is unknown; name it: --csv time=0,key=1,size=2")]
    Column(&'static str),
    /// A column of `--csv` is not in the header.
    #[error("no column is called {0:?}; see the first line for the names, or count from 0")]
    NoColumn(String),
    /// A line is longer than the lines of any known format.
    #[error("a line of more than {bound} bytes; is this the format? --format names another")]
    Long {
        /// Maximum length of a line in bytes.
        bound: usize,
    },
    /// The file is not UTF-8 text.
    #[error("not text; is this the format? --format names another")]
    NotText,
    /// The trace has a known format that cannot be replayed.
    #[error("{0}")]
    NotReplayable(&'static str),
}

impl TraceErrorKind {
    /// Returns the error for `field` with the value `found`.
    pub(crate) fn field(field: &'static str, found: &str, expected: &'static str) -> Self {
        Self::Field {
            field,
            found: found.chars().take(40).collect(),
            expected,
        }
    }
}
