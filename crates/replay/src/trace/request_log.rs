//! Parser of the request log that `pierhead serve` writes.
//!
//! `docs/formats/request-log.md` describes the format, which the module
//! `pierhead_eviction::request_log` writes.

use pierhead_eviction::request_log::{Record, RecordedOutcome};

use super::TraceErrorKind;

const MARK: &str = "#pierhead-trace";

/// Parses one line, which has no line end.
///
/// # Errors
/// [`TraceErrorKind`] when a field is missing or invalid.
pub fn parse(line: &str) -> Result<Record, TraceErrorKind> {
    let mut fields = line.split(' ');
    let mut found = 0;
    let mut next = || {
        let field = fields
            .next()
            .ok_or(TraceErrorKind::Fields { found, expected: 6 })?;
        found += 1;
        Ok(field)
    };
    let parsed = Record {
        second: number("second", next()?)?,
        key: hash(next()?)?,
        size: number("size", next()?)?,
        cost_ms: number("cost", next()?)?,
        shared: number("share count", next()?)?,
        outcome: outcome(next()?)?,
    };
    match fields.next() {
        None => Ok(parsed),
        Some(_) => Err(TraceErrorKind::Fields {
            found: 7 + fields.count(),
            expected: 6,
        }),
    }
}

/// Checks a line that begins with `#`: a comment, or the header of this version, which joined files
/// repeat.
///
/// # Errors
/// [`TraceErrorKind::Version`] for the header of another version.
pub fn comment(line: &str) -> Result<(), TraceErrorKind> {
    match line.strip_prefix(MARK) {
        Some(version) if version.trim() != "1" => Err(TraceErrorKind::Version {
            found: version.trim().chars().take(40).collect(),
        }),
        _ => Ok(()),
    }
}

/// Whether a line is a header of any version.
pub fn is_header(line: &str) -> bool {
    line.starts_with(MARK)
}

fn number<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, TraceErrorKind> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = digits.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| TraceErrorKind::field(field, text, "a whole number in its range"))
}

fn hash(text: &str) -> Result<u64, TraceErrorKind> {
    let wrong = || TraceErrorKind::field("key", text, "16 hexadecimal digits");
    if text.len() != 16 || text.starts_with('+') {
        return Err(wrong());
    }
    u64::from_str_radix(text, 16).map_err(|_| wrong())
}

fn outcome(text: &str) -> Result<RecordedOutcome, TraceErrorKind> {
    let found = RecordedOutcome::ALL
        .into_iter()
        .find(|outcome| outcome.word() == text);
    found.ok_or_else(|| TraceErrorKind::field("outcome", text, "hit, miss or pass"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use pierhead_eviction::request_log::HEADER;

    use super::*;

    const LINE: Record = Record {
        second: 1_760_000_000,
        key: 0xab,
        size: 1 << 40,
        cost_ms: 1500,
        shared: 3,
        outcome: RecordedOutcome::Miss,
    };

    #[test]
    fn a_line_is_written_as_documented_and_read_again() {
        let text = "1760000000 00000000000000ab 1099511627776 1500 3 miss";
        assert_eq!(LINE.to_string(), text);
        assert_eq!(parse(text), Ok(LINE));
        let access = LINE.access();
        assert_eq!((access.key, access.size, access.shared), (0xab, 1 << 40, 3));
        assert_eq!((access.cost, access.tick), (1.5, 1_760_000_000));
    }

    #[test]
    fn errors_name_the_field_and_the_expected_value() {
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
            let error = parse(line).map_err(|wrong| wrong.to_string());
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
        assert_eq!(
            comment("#pierhead-trace 2"),
            Err(TraceErrorKind::Version { found })
        );
    }

    proptest! {
        #[test]
        fn every_line_is_parsed_as_it_was_written(
            second: u64, key: u64, size: u64, cost_ms: u32, shared: u32, outcome in 0_usize..3,
        ) {
            let line = Record { second, key, size, cost_ms, shared, outcome: RecordedOutcome::ALL[outcome] };
            prop_assert_eq!(parse(&line.to_string()), Ok(line));
        }
    }
}
