//! The line format of the daemon's request log, which has one line per request. The crate `replay`
//! parses the log.
//!
//! The page `docs/formats/request-log.md` describes the format.

use std::fmt;

use crate::Access;

/// First line of each log file, with its line end.
pub const HEADER: &str = "#pierhead-trace 1\n";

/// One request in the log. `Display` writes the line of the request, without the line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time of the request as Unix time in seconds.
    pub second: u64,
    /// Hash of the digest that was requested.
    pub key: u64,
    /// Size of the blob in bytes.
    pub size: u64,
    /// Cost of a miss: the number of milliseconds for which a client waits.
    pub cost_ms: u32,
    /// Number of images that contain the key.
    pub shared: u32,
    /// Whether the request was a hit.
    pub outcome: RecordedOutcome,
}

/// The result of a recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordedOutcome {
    /// A hit: the cache had the blob.
    Hit,
    /// A miss: the blob was fetched and stored.
    Miss,
    /// A miss: the blob was fetched and not stored.
    Passed,
}

impl RecordedOutcome {
    /// All results that a request can have.
    pub const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Passed];

    /// Returns the word for this result in a line of the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Passed => "pass",
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            second,
            key,
            size,
            cost_ms,
            shared,
            outcome,
        } = self;
        let outcome = outcome.word();
        write!(f, "{second} {key:016x} {size} {cost_ms} {shared} {outcome}")
    }
}

impl Record {
    /// Returns the request in the form that policies receive.
    pub fn access(&self) -> Access<u64> {
        Access {
            cost: seconds(self.cost_ms),
            shared: self.shared,
            ..Access::new(self.key, self.size, self.second)
        }
    }
}

// The precision of an `f32` is enough for a cost.
#[allow(clippy::cast_possible_truncation)]
fn seconds(milliseconds: u32) -> f32 {
    (f64::from(milliseconds) / 1000.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_as_documented() {
        let record = Record {
            second: 1_760_000_000,
            key: 0xab,
            size: 1 << 40,
            cost_ms: 1500,
            shared: 3,
            outcome: RecordedOutcome::Miss,
        };
        let text = "1760000000 00000000000000ab 1099511627776 1500 3 miss";
        assert_eq!(record.to_string(), text);
        let access = record.access();
        assert_eq!((access.key, access.size, access.shared), (0xab, 1 << 40, 3));
        assert_eq!((access.cost, access.tick), (1.5, 1_760_000_000));
    }
}
