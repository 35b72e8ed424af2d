//! Sizes, rates and durations as text, such as `1.5 GiB` and `5m`: parsers and formatters.

use std::time::Duration;

/// The names of the units in lower case, with the number of bytes of each unit.
const UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("k", 1000),
    ("kb", 1000),
    ("m", 1000_u64.pow(2)),
    ("mb", 1000_u64.pow(2)),
    ("g", 1000_u64.pow(3)),
    ("gb", 1000_u64.pow(3)),
    ("t", 1000_u64.pow(4)),
    ("tb", 1000_u64.pow(4)),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// The error for a text that is not a size, rate or duration. The message states the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

impl From<UnitError> for String {
    fn from(error: UnitError) -> Self {
        error.0
    }
}

/// Parses a size, such as `10GiB`, `1.5 GB` or `4096B`. Upper and lower case are equal. The units
/// `k`, `M`, `G` and `T` are powers of 1000. The number 0 needs no unit.
///
/// # Errors
/// The text is not a size, exceeds `u64`, or has no unit. A unit is required, because users who
/// write only 50 rarely mean 50 bytes.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let not_a_size = || {
        UnitError(format!(
            "{text:?} is not a size: write a number with a unit such as 4096B, 500MB or 10GiB"
        ))
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    if unit.is_empty() {
        return match number.parse() {
            Ok(bytes) => bytes_without_unit(bytes),
            Err(_) => Err(not_a_size()),
        };
    }
    let (_, scale) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(not_a_size)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| not_a_size())?;
    // A fraction of a GiB with nine digits is exact to one byte.
    if fraction.is_empty() || fraction.len() > 9 {
        return Err(not_a_size());
    }
    let part: u128 = fraction.parse().map_err(|_| not_a_size())?;
    let digits = u32::try_from(fraction.len()).map_err(|_| not_a_size())?;
    let part = part * u128::from(*scale) / 10_u128.pow(digits);
    let bytes = u128::from(whole) * u128::from(*scale) + part;
    u64::try_from(bytes).map_err(|_| UnitError(format!("{text:?} is more than 2^64 bytes")))
}

/// Converts a number without a unit to bytes. Accepts only the number 0.
///
/// # Errors
/// The number is not 0. The error message suggests the likely unit.
pub fn bytes_without_unit(number: u64) -> Result<u64, UnitError> {
    /// Maximum number without a unit for which the error message suggests GiB. No disk has so many
    /// GiB, so a larger number most likely means bytes.
    const MAX_GIB: u64 = 100_000;
    let suggestion = match number {
        0 => return Ok(0),
        1..=MAX_GIB => format!("{number}GiB or {number}B"),
        _ => {
            let (exact, bytes) = (exact_bytes(number), format!("{number}B"));
            match exact == bytes {
                true => bytes,
                false => format!("{exact} or {bytes}"),
            }
        }
    };
    Err(UnitError(format!(
        "{number} bytes? Write {suggestion}: a size needs a unit"
    )))
}

/// Parses a rate in bytes per second: a size, with or without `/s`.
///
/// # Errors
/// The text is not a rate, has no unit, or is 0.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    let size = text.strip_suffix("/s").unwrap_or(text).trim_end();
    let message = match parse_bytes(size) {
        Ok(0) => "a bandwidth of 0 would stop all transfers: write \"off\" for no limit".to_owned(),
        Ok(rate) => return Ok(rate),
        Err(_) if !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!(
                "{text:?} has no unit: write bytes per second with a unit, such as {size}MB/s or {size}B/s"
            )
        }
        Err(_) => {
            format!("{text:?} is not a rate: write bytes per second, such as 100MB/s, or \"off\"")
        }
    };
    Err(UnitError(message))
}

/// Parses a duration, such as `60s`, `5m`, `1h 30m` or `200ms`.
///
/// # Errors
/// The text is not a duration, or has no unit.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    humantime::parse_duration(text).map_err(|_| {
        UnitError(format!(
            "{text:?} is not a time: write a number with a unit, such as 500ms, 60s or 5m"
        ))
    })
}

/// Formats a number of bytes as the shortest text that [`parse_bytes`] converts back to the same
/// number.
pub fn exact_bytes(bytes: u64) -> String {
    for (unit, scale) in [
        ("TiB", 1_u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ] {
        if bytes >= scale && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    for (unit, scale) in [
        ("TB", 1000_u64.pow(4)),
        ("GB", 1000_u64.pow(3)),
        ("MB", 1000_u64.pow(2)),
        ("kB", 1000),
    ] {
        if bytes >= scale && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    match bytes {
        0 => "0".to_owned(),
        bytes => format!("{bytes}B"),
    }
}

/// Formats a number of bytes in binary units with one decimal, rounded down, such as `1.5 KiB`.
pub fn human_bytes(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_with_a_unit_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096B", 4096),
            ("10GiB", 10 << 30),
            ("1.5 kb", 1500),
            ("0.5MiB", 1 << 19),
            ("2G", 2_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "GiB",
            "10 GiBs",
            "-1",
            "1e9",
            "1.",
            ".5G",
            "1.2.3",
            "99999999TiB",
            "1.0000000000G",
            "１０",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_without_a_unit_is_refused_with_suggestions() {
        for (text, suggestion) in [
            ("10", "10 bytes? Write 10GiB or 10B"),
            ("50", "50 bytes? Write 50GiB or 50B"),
            ("1073741824", "Write 1GiB or 1073741824B"),
            ("12345678", "Write 12345678B:"),
        ] {
            let refused = parse_bytes(text).unwrap_err().to_string();
            assert!(refused.contains(suggestion), "{refused}");
        }
        assert_eq!(parse_bytes("0"), Ok(0));
        assert!(parse_bytes("1.5").is_err());
        let refused = parse_rate("100/s").unwrap_err().to_string();
        assert!(refused.contains("100MB/s or 100B/s"), "{refused}");
    }

    #[test]
    fn rates_and_durations_are_parsed() {
        assert_eq!(parse_rate("100MB/s"), Ok(100_000_000));
        assert_eq!(parse_rate("1MiB"), Ok(1 << 20));
        assert!(parse_rate("0").is_err());
        assert!(parse_rate("fast").is_err());
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("60").is_err());
    }

    #[test]
    fn human_sizes_have_one_decimal() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(10 << 30), "10.0 GiB");
    }

    proptest! {
        #[test]
        fn an_exact_size_parses_to_the_same_number(bytes: u64) {
            prop_assert_eq!(parse_bytes(&exact_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text: String) {
            let _ = parse_bytes(&text);
            let _ = parse_rate(&text);
            let _ = parse_duration(&text);
        }
    }
}
