//! Why a trace cannot be read: where it is wrong, what is wrong there, and the mend.

use std::fmt;

/// What is wrong with a trace, and where. Whoever opened it puts the file's name before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {wrong}")]
pub struct TraceError {
    /// Where.
    pub at: Place,
    /// What, with the mend.
    pub wrong: Wrong,
}

/// A place in a trace, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a text.
    Line(u64),
    /// A record of a binary trace.
    Record(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Record(record) => write!(f, "record {record}"),
        }
    }
}

/// What can be wrong with a trace. Each message ends with the mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// It ends within a record or line.
    #[error(
        "the trace is cut here; get the whole file, or replay what is whole of it with --cut-ok"
    )]
    Cut,
    /// A field does not say what it should.
    #[error("{field} is {found:?}, not {expected}; correct or delete this line")]
    Field {
        /// What the field is for.
        field: &'static str,
        /// Its beginning.
        found: String,
        /// What can stand there.
        expected: &'static str,
    },
    /// Fields are missing.
    #[error("{found} fields where {expected} are needed; correct or delete this line")]
    Fields {
        /// So many are there.
        found: usize,
        /// So many are needed at least.
        expected: usize,
    },
    /// A later pierhead wrote it.
    #[error(
        "a pierhead trace of version {found:?}; this pierhead reads version 1: use a newer one"
    )]
    Version {
        /// The version that it names.
        found: String,
    },
    /// Its first line should say what it is.
    #[error(
        "not a pierhead trace: its first line is not \"#pierhead-trace 1\"; name another --format"
    )]
    Header,
    /// No column is known to hold this.
    #[error("no column is known as the {0}; say which it is: --csv time=0,key=1,size=2")]
    Column(&'static str),
    /// A column that was named is not in the header.
    #[error("no column is called {0:?}; see the first line for the names, or count from 0")]
    NoColumn(String),
    /// A line is longer than any of the formats has.
    #[error("a line of more than {bound} bytes; is this the format? --format names another")]
    Long {
        /// What is taken.
        bound: usize,
    },
    /// Bytes that are no UTF-8.
    #[error("not text; is this the format? --format names another")]
    NotText,
    /// A format that we know, and that cannot be replayed.
    #[error("{0}")]
    Unfit(&'static str),
}

impl Wrong {
    /// `field` is `found`, which is not `expected`.
    pub(crate) fn field(field: &'static str, found: &str, expected: &'static str) -> Self {
        Self::Field {
            field,
            found: found.chars().take(40).collect(),
            expected,
        }
    }
}
