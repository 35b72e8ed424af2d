//! Parses the cache sizes of the option `--size`: bytes, or a share of the trace's footprint.

use std::fmt;
use std::str::FromStr;

/// The size of a simulated cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheSize {
    /// The size, as the user wrote it on the command line.
    text: String,
    amount: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Bytes(u64),
    /// A share of the footprint in millionths of a percent, so that 0.1 % is exact.
    Share(u64),
}

const DECIMALS: usize = 6;

impl CacheSize {
    /// Returns the size in bytes for a trace with this footprint, rounded down, and at least 1.
    pub(crate) fn resolve(&self, footprint: u64) -> u64 {
        let bytes = match self.amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Share(share) => {
                let bytes = u128::from(footprint) * u128::from(share) / 100_000_000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        };
        bytes.max(1)
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let amount = match text.strip_suffix('%') {
            None => Amount::Bytes(pierhead_oci::units::parse_bytes(text)?),
            Some(percent) => Amount::Share(
                share(percent.trim())
                    .ok_or_else(|| format!("{text:?} is not a share: write 0.000001% to 1000%"))?,
            ),
        };
        if amount == Amount::Bytes(0) {
            return Err("a cache of 0 bytes holds nothing: write 1B or more".to_owned());
        }
        Ok(Self {
            text: text.to_owned(),
            amount,
        })
    }
}

fn share(percent: &str) -> Option<u64> {
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > DECIMALS {
        return None;
    }
    let millionths: u64 = format!("{whole}{fraction:0<DECIMALS$}").parse().ok()?;
    (1..=1_000_000_000)
        .contains(&millionths)
        .then_some(millionths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_shares_of_the_footprint() {
        for (text, footprint, bytes) in [
            ("4GiB", 5, 4 << 30),
            ("7B", 5, 7),
            ("1%", 12_345, 123),
            ("0.1%", 12_345, 12),
            ("100%", u64::MAX, u64::MAX),
            ("1000%", u64::MAX, u64::MAX),
            ("0.000001%", 5, 1),
        ] {
            let size: CacheSize = text.parse().expect(text);
            assert_eq!(size.resolve(footprint), bytes, "{text}");
            assert_eq!(size.to_string(), text);
        }
        for wrong in [
            "0",
            "0%",
            "-1%",
            "%",
            ".5%",
            "1e2%",
            "1001%",
            "0.0000001%",
            "ten",
        ] {
            assert!(wrong.parse::<CacheSize>().is_err(), "{wrong}");
        }
    }
}
