//! Parses PAX extended headers, whose records override the header that follows.
//!
//! `tar::PaxExtensions` is not used, since it splits records at newlines, and values of extended
//! attributes may contain newlines.

use std::collections::BTreeMap;

use crate::{Error, Time};

/// Maximum size of one extended header, or of a long name, in bytes. Go has the same limit.
pub(super) const MAX_SPECIAL: u64 = 1 << 20;

/// The records of one extended header. If a key occurs several times, its last record counts.
#[derive(Debug, Default)]
pub(super) struct Pax {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Offsets and lengths of a sparse file in GNU's format 0.0, which repeats keys.
    pub(super) sparse: Vec<u64>,
}

/// Prefix of the keys of extended attributes.
const XATTR: &[u8] = b"SCHILY.xattr.";

impl Pax {
    /// Parses the records of an extended header.
    ///
    /// # Errors
    /// [`Error::Image`] for a record that is not `LENGTH KEY=VALUE\n`.
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, Error> {
        let mut this = Self::default();
        while !bytes.is_empty() {
            let (record, rest) = cut(bytes).ok_or_else(|| bad("a malformed record"))?;
            bytes = rest;
            let equals = record.iter().position(|byte| *byte == b'=');
            let (key, value) =
                record.split_at(equals.ok_or_else(|| bad("a record without a key"))?);
            let value = &value[1..];
            let binary = key.starts_with(XATTR);
            if key.is_empty() || key.contains(&0) || (!binary && value.contains(&0)) {
                return Err(bad("a record with a zero byte, or without a key"));
            }
            if key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes" {
                let even = this.sparse.len().is_multiple_of(2);
                if even != (key == b"GNU.sparse.offset") {
                    return Err(bad("a sparse map out of order"));
                }
                let number = decimal(value).ok_or_else(|| bad("a sparse map of no numbers"))?;
                this.sparse.push(number);
            } else {
                this.records.insert(key.to_vec(), value.to_vec());
            }
        }
        Ok(this)
    }

    /// Returns the value of a key. Returns `None` for an empty value, which cancels earlier
    /// records.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.records
            .get(key.as_bytes())
            .map(|value| &value[..])
            .filter(|value| !value.is_empty())
    }

    /// Parses the value of a key as a decimal number.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Error> {
        self.get(key)
            .map(|value| decimal(value).ok_or_else(|| bad("an invalid number")))
            .transpose()
    }

    /// Parses the value of a key as a time in seconds with a fraction. Digits below nanoseconds are
    /// cut off.
    pub(super) fn time(&self, key: &str) -> Result<Option<Time>, Error> {
        self.get(key)
            .map(|value| time(value).ok_or_else(|| bad("an invalid time")))
            .transpose()
    }

    /// Returns the extended attributes, sorted by name.
    pub(super) fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.records
            .iter()
            .filter_map(|(key, value)| {
                let name = key.strip_prefix(XATTR)?;
                Some((name.to_vec(), value.clone()))
            })
            .collect()
    }
}

/// Splits off the first record. Returns the record without its length and newline, and the
/// remaining bytes.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len = usize::try_from(decimal(&bytes[..space])?).ok()?;
    if len > bytes.len() || len < space + 2 {
        return None;
    }
    let (record, rest) = bytes.split_at(len);
    Some((record[space + 1..].strip_suffix(b"\n")?, rest))
}

/// Parses a number that has only digits.
pub(super) fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn time(value: &[u8]) -> Option<Time> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let mut parts = value.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanos = 0;
    if let Some(fraction) = parts.next() {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let digits = fraction.iter().copied().chain(std::iter::repeat(b'0'));
        nanos = digits
            .take(9)
            .fold(0, |n, digit| n * 10 + u32::from(digit - b'0'));
    }
    Some(match (negative, nanos) {
        (false, nanos) => Time { seconds, nanos },
        (true, 0) => Time {
            seconds: -seconds,
            nanos: 0,
        },
        (true, nanos) => Time {
            seconds: -seconds - 1,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

fn bad(what: &str) -> Error {
    Error::Image(format!("the layer has an extended header with {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_may_contain_any_bytes() {
        let pax = Pax::parse(b"30 SCHILY.xattr.user.a=x\n=\0y\n\n12 path=a b\n").unwrap();
        assert_eq!(pax.xattrs(), [(b"user.a".to_vec(), b"x\n=\0y\n".to_vec())]);
        assert_eq!(pax.get("path"), Some(&b"a b"[..]));
    }

    #[test]
    fn a_time_before_1970_has_positive_nanoseconds() {
        let at = |text: &str| {
            let value = time(text.as_bytes())?;
            Some((value.seconds, value.nanos))
        };
        assert_eq!(at("1.5"), Some((1, 500_000_000)));
        assert_eq!(at("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(at("-3"), Some((-3, 0)));
        assert_eq!(at("7.1234567891"), Some((7, 123_456_789)));
        assert_eq!(at("7."), Some((7, 0)));
        assert_eq!(at("1e9"), None);
        assert_eq!(at(""), None);
    }

    #[test]
    fn malformed_records_are_refused() {
        for bytes in [
            &b"12 path=a b"[..],
            b"13 path=a b\n",
            b"3 \n",
            b"99999999999999999999 a=b\n",
            b"6 =ab\n",
            b"9 path\0=\n",
            b"24 GNU.sparse.numbytes=1\n",
        ] {
            assert!(Pax::parse(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }

    /// The record of a key and a value. Its length counts the digits of the length.
    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let rest = key.len() + value.len() + 3;
        let len = (1..20).map(|digits| rest + digits);
        let len = len
            .zip(1..)
            .find(|(len, digits)| len.to_string().len() == *digits);
        let mut out = format!("{} ", len.unwrap().0).into_bytes();
        out.extend_from_slice(key);
        out.push(b'=');
        out.extend_from_slice(value);
        out.push(b'\n');
        out
    }

    proptest! {
        #[test]
        fn parsing_reverses_writing(
            values in proptest::collection::btree_map(
                "[a-z]{1,5}", proptest::collection::vec(any::<u8>(), 0..120), 0..6,
            ),
            number in any::<u64>(),
        ) {
            let mut bytes = record(b"size", b"old");
            for (name, value) in &values {
                bytes.extend(record(&[XATTR, name.as_bytes()].concat(), value));
            }
            bytes.extend(record(b"size", number.to_string().as_bytes()));
            let pax = Pax::parse(&bytes).unwrap();
            let values: Vec<_> = values
                .into_iter()
                .map(|(name, value)| (name.into_bytes(), value))
                .collect();
            prop_assert_eq!(pax.xattrs(), values);
            prop_assert_eq!(pax.number("size").unwrap(), Some(number));
            prop_assert_eq!(pax.number("other").unwrap(), None);
            // A header that is cut within a record is refused.
            let last = record(b"size", number.to_string().as_bytes()).len();
            for cut in 1..last {
                prop_assert!(Pax::parse(&bytes[..bytes.len() - cut]).is_err());
            }
        }

        /// The bytes are those of which records consist, so that many inputs begin as a record does.
        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in proptest::collection::vec(prop::sample::select(&b"0123456789 =\n\0ab"[..]), 0..64),
        ) {
            if let Err(error) = Pax::parse(&bytes) {
                prop_assert!(matches!(error, Error::Image(_)), "{}", error);
            }
        }

        /// Compares with the sum of seconds and nanoseconds.
        #[test]
        fn a_time_has_the_value_of_its_text(
            seconds in 0..1i64 << 40, nanos in 0..1_000_000_000u32, negative in any::<bool>(),
        ) {
            let sign = if negative { "-" } else { "" };
            let text = format!("{sign}{seconds}.{nanos:09}");
            let found = time(text.as_bytes()).unwrap();
            prop_assert!(found.nanos < 1_000_000_000);
            let total = i128::from(found.seconds) * 1_000_000_000 + i128::from(found.nanos);
            let wanted = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            prop_assert_eq!(total, if negative { -wanted } else { wanted });
        }
    }

    #[test]
    fn an_empty_value_cancels_earlier_records() {
        let bytes = [record(b"path", b"a"), record(b"path", b"")].concat();
        assert_eq!(Pax::parse(&bytes).unwrap().get("path"), None);
        let bytes = [record(b"mtime", b"x"), record(b"size", b"-1")].concat();
        let pax = Pax::parse(&bytes).unwrap();
        assert!(pax.time("mtime").is_err() && pax.number("size").is_err());
    }
}
