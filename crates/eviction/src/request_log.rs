//! The request log of the daemon: one line for each request. Crate `replay` reads it.
//!
//! `docs/formats/request-log.md` describes the format.

use std::fmt;

use crate::Access;

/// The first line of each file, with its end.
pub const HEADER: &str = "#pierhead-trace 1\n";

/// One request. `Display` writes its line, without the end of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Seconds since 1970.
    pub second: u64,
    /// What was asked for, hashed.
    pub key: u64,
    /// Its bytes.
    pub size: u64,
    /// Milliseconds that a client waits for it when it has to be fetched.
    pub cost_ms: u32,
    /// In how many images it is known to be.
    pub shared: u32,
    /// What became of the request.
    pub outcome: RecordedOutcome,
}

/// What became of a recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordedOutcome {
    /// It was served from the cache.
    Hit,
    /// It was fetched and kept.
    Miss,
    /// It was fetched and not kept.
    Passed,
}

impl RecordedOutcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Passed];

    /// The word for it.
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
    /// The request as a policy sees it.
    pub fn access(&self) -> Access<u64> {
        Access {
            cost: seconds(self.cost_ms),
            shared: self.shared,
            ..Access::new(self.key, self.size, self.second)
        }
    }
}

// A cost needs no more precision than a float has.
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
