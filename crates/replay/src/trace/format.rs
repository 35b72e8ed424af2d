//! Trace formats: parses the name of a format, or detects the format from a file's first bytes.

use std::fmt;
use std::str::FromStr;

use super::{TraceErrorKind, access_log, ibm, request_log};

/// The format of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Records of 24 bytes, as libCacheSim writes them.
    OracleGeneral,
    /// CSV: one request per line, in columns.
    Csv,
    /// The log of IBM's registry (FAST '18), as CSV.
    IbmRegistry,
    /// The log of IBM's object store (HotStorage '20).
    IbmObjectStore,
    /// The request log of `pierhead serve`.
    Pierhead,
    /// The access log of nginx.
    Nginx,
    /// The log of the registry CNCF Distribution.
    Distribution,
}

/// The error of an unknown format: no format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no trace format: write one of oracle-general, csv, ibm-registry, ibm-object-store, pierhead, nginx, distribution"
)]
pub struct UnknownFormat(String);

const NO_KEYS: &str = "a log of inferences by a language model: it counts tokens and names no object, so \
    nothing in it could be cached; there is no fix";
const NO_SIZES: &str = "counts of function calls a minute: the trace has no sizes, and without them no \
    byte is cached; make a CSV of time, key and size from it";

impl Format {
    /// All formats of traces.
    pub const ALL: [Self; 7] = [
        Self::OracleGeneral,
        Self::Csv,
        Self::IbmRegistry,
        Self::IbmObjectStore,
        Self::Pierhead,
        Self::Nginx,
        Self::Distribution,
    ];

    /// Returns the name of the format on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OracleGeneral => "oracle-general",
            Self::Csv => "csv",
            Self::IbmRegistry => "ibm-registry",
            Self::IbmObjectStore => "ibm-object-store",
            Self::Pierhead => "pierhead",
            Self::Nginx => "nginx",
            Self::Distribution => "distribution",
        }
    }

    /// Detects the format from the name of a file and from the first 4 KiB of its decompressed
    /// bytes.
    ///
    /// # Errors
    /// [`TraceErrorKind::NotReplayable`] for known formats that cannot be replayed.
    pub fn of(name: &str, head: &[u8]) -> Result<Self, TraceErrorKind> {
        let end = head.iter().position(|byte| *byte == b'\n');
        let line = String::from_utf8_lossy(&head[..end.unwrap_or(head.len())]);
        if request_log::is_header(&line) {
            return Ok(Self::Pierhead);
        }
        if name.to_ascii_lowercase().contains("oraclegeneral") || head.contains(&0) {
            return Ok(Self::OracleGeneral);
        }
        if line.contains("ContextTokens") {
            return Err(TraceErrorKind::NotReplayable(NO_KEYS));
        }
        if line.starts_with("HashOwner,HashApp,HashFunction") {
            return Err(TraceErrorKind::NotReplayable(NO_SIZES));
        }
        let is_json = line.starts_with('{');
        Ok(
            if line.contains(ibm::REGISTRY_MARK) && !is_json && !line.starts_with("time=") {
                Self::IbmRegistry
            } else if ibm::is_object_store(&line) {
                Self::IbmObjectStore
            } else if String::from_utf8_lossy(head)
                .lines()
                .any(access_log::is_distribution)
            {
                // Lines of the access log (Apache log format) may come before or between the lines
                // of CNCF Distribution's own log.
                Self::Distribution
            } else if access_log::is_nginx(&line) {
                Self::Nginx
            } else {
                Self::Csv
            },
        )
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}
