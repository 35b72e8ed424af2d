//! The type of `cache.size`: a number of bytes, a share of the file system, or `auto`.

use std::fmt;
use std::str::FromStr;

use pierhead_oci::units::{exact_bytes, parse_bytes};

/// A size in bytes, or as a share of the file system that holds the data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// 80 % of the bytes that are free or in use by the cache, from [`Size::MIN_AUTO_BYTES`] to
    /// [`Size::MAX_AUTO_BYTES`].
    Auto,
    Bytes(u64),
    /// Percentage from 1 to 100 of the size of the file system.
    Percent(u8),
}

impl Size {
    /// Minimum of `cache.size = "auto"` in bytes: a smaller cache has little use. pierhead keeps
    /// the space of `cache.min_free` free even then.
    pub(crate) const MIN_AUTO_BYTES: u64 = 1 << 30;
    /// Maximum of `cache.size = "auto"` in bytes. An operator must configure a larger cache.
    pub(crate) const MAX_AUTO_BYTES: u64 = 1 << 40;

    /// Returns the size in bytes. `total` is the size of the file system, and `available` is the
    /// number of bytes that are free or in use by the cache.
    pub(crate) fn resolve(self, total: u64, available: u64) -> u64 {
        match self {
            Self::Auto => (available / 5 * 4).clamp(Self::MIN_AUTO_BYTES, Self::MAX_AUTO_BYTES),
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total / 100 * u64::from(percent),
        }
    }

    /// Checks that the size is a valid capacity of a cache, and returns it.
    ///
    /// # Errors
    /// The size is 0 bytes; the text is a message for the operator.
    pub(crate) fn of_a_cache(self) -> Result<Self, String> {
        match self {
            Self::Bytes(0) => Err(
                "a cache of 0 bytes cannot store anything: write bytes such as \"10GiB\", a share such as \"50%\", or \"auto\""
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
            None => Ok(Self::Bytes(parse_bytes(text)?)),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_size_is_bytes_a_share_or_auto() {
        assert_eq!("4096B".parse(), Ok(Size::Bytes(4096)));
        assert_eq!("80%".parse(), Ok(Size::Percent(80)));
        assert_eq!("auto".parse(), Ok(Size::Auto));
        for text in ["0%", "101%", "%", "-5%", "50.5%"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_without_a_unit_is_an_error_with_a_suggestion() {
        for text in ["10", "50", "1073741824", "12345678"] {
            let refused = parse_bytes(text).unwrap_err().to_string();
            assert_eq!(text.parse::<Size>().unwrap_err(), refused);
        }
    }

    #[test]
    fn the_automatic_size_has_a_minimum_and_a_maximum() {
        assert_eq!(Size::Auto.resolve(u64::MAX, 10 << 30), 8 << 30);
        assert_eq!(Size::Auto.resolve(u64::MAX, 100), Size::MIN_AUTO_BYTES);
        assert_eq!(Size::Auto.resolve(u64::MAX, u64::MAX), Size::MAX_AUTO_BYTES);
        assert_eq!(Size::Percent(25).resolve(1000, 0), 250);
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text: String) {
            let _ = text.parse::<Size>();
        }
    }
}
