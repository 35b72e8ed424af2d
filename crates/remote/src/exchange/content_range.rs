//! Parses `Content-Range`: the part of a blob that a response contains (RFC 9110, section 14.4).

/// The value of a `Content-Range` header in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentRange {
    /// The value is `bytes first-last/total`, where `total` may be `*`.
    Part {
        first: u64,
        last: u64,
        total: Option<u64>,
    },
    /// The value is `bytes */total`: the requested range is outside of the blob, whose size is
    /// `total`.
    Unsatisfied { total: u64 },
}

impl ContentRange {
    /// Parses the header value. `None` if the text is invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, total) = rest.trim().split_once('/')?;
        if range == "*" {
            return Some(Self::Unsatisfied {
                total: number(total)?,
            });
        }
        let total = if total == "*" {
            None
        } else {
            Some(number(total)?)
        };
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        // The range is invalid if its length `last - first + 1` would overflow.
        let sound = first <= last && last < u64::MAX && total.is_none_or(|total| last < total);
        sound.then_some(Self::Part { first, last, total })
    }
}

/// Parses a number that consists of digits only. `str::parse` is not used, because it accepts a
/// sign.
fn number(text: &str) -> Option<u64> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_of_content_range_parses() {
        let part = |first, last, total| Some(ContentRange::Part { first, last, total });
        assert_eq!(ContentRange::parse("bytes 5-9/10"), part(5, 9, Some(10)));
        assert_eq!(ContentRange::parse(" Bytes 0-0/* "), part(0, 0, None));
        assert_eq!(
            ContentRange::parse("bytes */10"),
            Some(ContentRange::Unsatisfied { total: 10 })
        );
        for text in [
            "",
            "bytes",
            "bytes 5-9",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "bytes +5-9/10",
            "bytes 5-/10",
            "bytes */*",
            "items 5-9/10",
            "bytes 0-18446744073709551615/*",
        ] {
            assert_eq!(ContentRange::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_parser_never_panics_and_reads_valid_ranges(text in "\\PC{0,40}", first: u32, len: u32, rest: u32) {
            ContentRange::parse(&text);
            let (first, last) = (u64::from(first), u64::from(first) + u64::from(len));
            let total = last + 1 + u64::from(rest);
            let expected = ContentRange::Part { first, last, total: Some(total) };
            prop_assert_eq!(ContentRange::parse(&format!("bytes {first}-{last}/{total}")), Some(expected));
        }
    }
}
