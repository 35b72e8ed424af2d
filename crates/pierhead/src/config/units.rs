//! Sizes, rates and times as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Bytes, or a share of the file system that holds the data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// 80 % of what is free or used by the cache already, within [`Size::AUTO_FLOOR`] and [`Size::AUTO_CAP`].
    Auto,
    Bytes(u64),
    /// 1 to 100, of the file system's total.
    Percent(u8),
}

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

impl Size {
    /// Below this a cache is of little use; `min_free` still guards the disk.
    pub(crate) const AUTO_FLOOR: u64 = 1 << 30;
    /// Nobody who did not ask for it gets a cache of more.
    pub(crate) const AUTO_CAP: u64 = 1 << 40;

    /// Bytes, given the file system's total and what is free or used by the cache already.
    pub(crate) fn resolve(self, total: u64, available: u64) -> u64 {
        match self {
            Self::Auto => (available / 5 * 4).clamp(Self::AUTO_FLOOR, Self::AUTO_CAP),
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total / 100 * u64::from(percent),
        }
    }

    /// The same as the bound of a cache.
    ///
    /// # Errors
    /// For people: nothing could be stored.
    pub(crate) fn of_a_cache(self) -> Result<Self, String> {
        match self {
            Self::Bytes(0) => Err(
                "a cache of 0 bytes could store nothing: write bytes such as \"10GiB\", a share such as \"50%\", or \"auto\""
                    .to_owned(),
            ),
            size => Ok(size),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match text.strip_suffix('%') {
            None => parse_bytes(text).map(Self::Bytes),
            Some(percent) => match percent.trim().parse() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => Err(format!("{text:?} is not a share: write 1% to 100%")),
            },
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => f.write_str(&exact_bytes(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Parses `10GiB`, `1.5 GB`, `4096B`. Ignores case; `k`, `M`, `G`, `T` alone are powers of 1000. Refuses a number
/// without a unit, since 50 rarely means 50 bytes. 0 needs no unit.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("{text:?} is not a size: write a number with a unit such as 4096B, 500MB or 10GiB")
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    if unit.is_empty() {
        return match number.parse() {
            Ok(bytes) => unitless(bytes),
            Err(_) => Err(wrong()),
        };
    }
    let (_, scale) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    // Nine digits are exact to a byte for every unit that anybody writes a fraction of.
    if fraction.is_empty() || fraction.len() > 9 {
        return Err(wrong());
    }
    let part: u128 = fraction.parse().map_err(|_| wrong())?;
    let digits = u32::try_from(fraction.len()).map_err(|_| wrong())?;
    let part = part * u128::from(*scale) / 10_u128.pow(digits);
    let bytes = u128::from(whole) * u128::from(*scale) + part;
    u64::try_from(bytes).map_err(|_| format!("{text:?} is more bytes than there are"))
}

/// Parses a number without a unit. Accepts 0 only; the error suggests the likely meaning.
pub(crate) fn unitless(number: u64) -> Result<u64, String> {
    // No disk holds more GiB than this, so the user meant bytes.
    const MAX_GIB: u64 = 100_000;
    match number {
        0 => Ok(0),
        1..=MAX_GIB => Err(format!(
            "{number} bytes? Write {number}GiB or {number}B: a size needs a unit"
        )),
        _ => {
            let exact = exact_bytes(number);
            let bytes = format!("{number}B");
            let or_bytes = match exact == bytes {
                true => String::new(),
                false => format!(" or {bytes}"),
            };
            Err(format!(
                "{number} bytes? Write {exact}{or_bytes}: a size needs a unit"
            ))
        }
    }
}

/// Bytes a second: a size, with or without `/s`.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").unwrap_or(text).trim_end();
    match parse_bytes(size) {
        Ok(0) => {
            Err("a bandwidth of 0 would stop everything: write \"off\" for no limit".to_owned())
        }
        Ok(rate) => Ok(rate),
        Err(_) if !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!(
                "{text:?} has no unit: write bytes a second with one, such as {size}MB/s or {size}B/s"
            ))
        }
        Err(_) => Err(format!(
            "{text:?} is not a rate: write bytes a second, such as 100MB/s, or \"off\""
        )),
    }
}

/// `60s`, `5m`, `1h 30m`, `200ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        format!("{text:?} is not a time: write a number with a unit, such as 500ms, 60s or 5m")
    })
}

/// The shortest text that [`parse_bytes`] reads back as the same number.
pub(crate) fn exact_bytes(bytes: u64) -> String {
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

/// For people: three significant digits at most, binary units.
pub(crate) fn human_bytes(bytes: u64) -> String {
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
    fn sizes_as_people_write_them() {
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
        assert_eq!("80%".parse(), Ok(Size::Percent(80)));
        assert_eq!("auto".parse(), Ok(Size::Auto));
        for text in ["0%", "101%", "%", "-5%", "50.5%"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_without_a_unit_is_refused_with_what_was_meant() {
        for (text, suggestion) in [
            ("10", "10 bytes? Write 10GiB or 10B"),
            ("50", "50 bytes? Write 50GiB or 50B"),
            ("1073741824", "Write 1GiB or 1073741824B"),
            ("12345678", "Write 12345678B:"),
        ] {
            let refused = parse_bytes(text).unwrap_err();
            assert!(refused.contains(suggestion), "{refused}");
            assert_eq!(text.parse::<Size>().unwrap_err(), refused);
        }
        assert_eq!(parse_bytes("0"), Ok(0));
        assert!(parse_bytes("1.5").is_err());
        let refused = parse_rate("100/s").unwrap_err();
        assert!(refused.contains("100MB/s or 100B/s"), "{refused}");
    }

    #[test]
    fn automatic_size_keeps_its_bounds() {
        assert_eq!(Size::Auto.resolve(u64::MAX, 10 << 30), 8 << 30);
        assert_eq!(Size::Auto.resolve(u64::MAX, 100), Size::AUTO_FLOOR);
        assert_eq!(Size::Auto.resolve(u64::MAX, u64::MAX), Size::AUTO_CAP);
        assert_eq!(Size::Percent(25).resolve(1000, 0), 250);
    }

    #[test]
    fn rates_and_times() {
        assert_eq!(parse_rate("100MB/s"), Ok(100_000_000));
        assert_eq!(parse_rate("1MiB"), Ok(1 << 20));
        assert!(parse_rate("0").is_err());
        assert!(parse_rate("fast").is_err());
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("60").is_err());
    }

    #[test]
    fn human_sizes_are_short() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(10 << 30), "10.0 GiB");
    }

    proptest! {
        #[test]
        fn exact_text_reads_back(bytes: u64) {
            prop_assert_eq!(parse_bytes(&exact_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Size>();
            let _ = parse_rate(&text);
            let _ = parse_duration(&text);
        }
    }
}
