//! The trace that `pierhead serve` records: one line a request, written and read here only.
//!
//! `docs/formats/request-log.md` describes it.

use std::fmt;

use super::Wrong;
use crate::Access;

/// The first line of each file, with its end.
pub const HEADER: &str = "#pierhead-trace 1\n";

const MARK: &str = "#pierhead-trace";

/// One request. `Display` writes its line, without the end of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
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
    pub outcome: Outcome,
}

/// What became of a recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was served from the cache.
    Hit,
    /// It was fetched and kept.
    Miss,
    /// It was fetched and not kept.
    Passed,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Hit, Self::Miss, Self::Passed];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Passed => "pass",
        }
    }
}

impl fmt::Display for Line {
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

impl Line {
    /// Reads a line, its end taken off.
    ///
    /// # Errors
    /// [`Wrong`] when a field is missing or is not what its place asks for.
    pub fn parse(line: &str) -> Result<Self, Wrong> {
        let mut fields = line.split(' ');
        let mut found = 0;
        let mut next = || {
            let field = fields.next().ok_or(Wrong::Fields { found, expected: 6 })?;
            found += 1;
            Ok(field)
        };
        let parsed = Self {
            second: number("second", next()?)?,
            key: hash(next()?)?,
            size: number("size", next()?)?,
            cost_ms: number("cost", next()?)?,
            shared: number("share count", next()?)?,
            outcome: outcome(next()?)?,
        };
        match fields.next() {
            None => Ok(parsed),
            Some(_) => Err(Wrong::Fields {
                found: 7 + fields.count(),
                expected: 6,
            }),
        }
    }

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

/// Whether a line that begins with `#` may stand in such a trace: a comment, or the header of this
/// version (files may be joined with their headers).
///
/// # Errors
/// [`Wrong::Version`] for the header of another version.
pub fn comment(line: &str) -> Result<(), Wrong> {
    match line.strip_prefix(MARK) {
        Some(version) if version.trim() != "1" => Err(Wrong::Version {
            found: version.trim().chars().take(40).collect(),
        }),
        _ => Ok(()),
    }
}

/// Whether a first line is a header, of whichever version.
pub fn is_header(line: &str) -> bool {
    line.starts_with(MARK)
}

fn number<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, Wrong> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = digits.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| Wrong::field(field, text, "a whole number in its range"))
}

fn hash(text: &str) -> Result<u64, Wrong> {
    let wrong = || Wrong::field("key", text, "16 hexadecimal digits");
    if text.len() != 16 || text.starts_with('+') {
        return Err(wrong());
    }
    u64::from_str_radix(text, 16).map_err(|_| wrong())
}

fn outcome(text: &str) -> Result<Outcome, Wrong> {
    let found = Outcome::ALL
        .into_iter()
        .find(|outcome| outcome.word() == text);
    found.ok_or_else(|| Wrong::field("outcome", text, "hit, miss or pass"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: Line = Line {
        second: 1_760_000_000,
        key: 0xab,
        size: 1 << 40,
        cost_ms: 1500,
        shared: 3,
        outcome: Outcome::Miss,
    };

    #[test]
    fn a_line_is_written_as_documented_and_read_again() {
        let text = "1760000000 00000000000000ab 1099511627776 1500 3 miss";
        assert_eq!(LINE.to_string(), text);
        assert_eq!(Line::parse(text), Ok(LINE));
        let access = LINE.access();
        assert_eq!((access.key, access.size, access.shared), (0xab, 1 << 40, 3));
        assert_eq!((access.cost, access.tick), (1.5, 1_760_000_000));
    }

    #[test]
    fn a_wrong_line_says_which_field_and_what_can_stand_there() {
        for (line, says) in [
            ("", "second is \"\""),
            ("1 00000000000000ab 5 1 1", "5 fields where 6"),
            ("1 00000000000000ab 5 1 1 hit more", "7 fields where 6"),
            ("-1 00000000000000ab 5 1 1 hit", "second is \"-1\""),
            ("1 ab 5 1 1 hit", "key is \"ab\", not 16 hexadecimal"),
            ("1 +0000000000000ab 5 1 1 hit", "key is"),
            ("1 00000000000000ab +5 1 1 hit", "size is \"+5\""),
            ("1 00000000000000ab 5 4294967296 1 hit", "cost is"),
            ("1 00000000000000ab 5 1 1 fetched", "hit, miss or pass"),
        ] {
            let error = Line::parse(line).map_err(|wrong| wrong.to_string());
            assert!(
                error.as_ref().is_err_and(|text| text.contains(says)),
                "{line}: {error:?}"
            );
        }
    }

    #[test]
    fn a_header_of_another_version_is_refused_and_a_comment_is_not() {
        assert_eq!(comment(HEADER.trim_end()), Ok(()));
        assert_eq!(comment("# second key size cost_ms shared outcome"), Ok(()));
        let found = "2".to_owned();
        assert_eq!(comment("#pierhead-trace 2"), Err(Wrong::Version { found }));
    }

    proptest! {
        #[test]
        fn every_line_comes_back(
            second: u64, key: u64, size: u64, cost_ms: u32, shared: u32, outcome in 0_usize..3,
        ) {
            let line = Line { second, key, size, cost_ms, shared, outcome: Outcome::ALL[outcome] };
            prop_assert_eq!(Line::parse(&line.to_string()), Ok(line));
        }
    }
}
