//! Evaluates the request headers `Range`, `If-Range` and `If-None-Match` (RFC 9110, sections 13 and
//! 14).

use http::HeaderMap;
use http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};

/// The bytes of a representation that a request selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All bytes of the representation: status 200.
    Whole,
    /// The bytes from `first` to `last`, inclusive: status 206.
    Part {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte, which is less than the size.
        last: u64,
    },
    /// The range is outside of the representation: status 416.
    Unsatisfiable,
}

/// Returns which bytes of a representation the request headers select. The representation has
/// `size` bytes and the entity tag `etag` (with quotes).
///
/// Several ranges, other units and malformed ranges select all bytes: RFC 9110 lets a server ignore
/// the header, and every client can read a 200. A range whose end is before its start is
/// unsatisfiable, as the OCI conformance tests expect.
pub(crate) fn select(headers: &HeaderMap, etag: &[u8], size: u64) -> Selection {
    let mut values = headers.get_all(RANGE).iter();
    let (Some(range), None) = (values.next(), values.next()) else {
        return Selection::Whole;
    };
    // Weak tags and dates never match, because pierhead sends strong tags and no Last-Modified.
    if headers
        .get(IF_RANGE)
        .is_some_and(|tag| tag.as_bytes() != etag)
    {
        return Selection::Whole;
    }
    // An empty representation has no satisfiable range, but pierhead responds 200: some clients
    // send `bytes=0-` with every request, and Go's file server responds 200, too.
    match range.to_str().ok().and_then(parse) {
        Some(spec) if size > 0 => spec.within(size),
        _ => Selection::Whole,
    }
}

/// Whether `If-None-Match` matches `etag`, so that the client already has the representation.
pub(crate) fn matches_etag(headers: &HeaderMap, etag: &[u8]) -> bool {
    let tags = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok());
    tags.flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.trim_start_matches("W/").as_bytes() == etag)
}

enum Spec {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl Spec {
    fn within(&self, size: u64) -> Selection {
        match *self {
            Self::Between(first, _) | Self::From(first) if first >= size => {
                Selection::Unsatisfiable
            }
            Self::Between(first, last) if last < first => Selection::Unsatisfiable,
            Self::Last(0) => Selection::Unsatisfiable,
            Self::Between(first, last) => Selection::Part {
                first,
                last: last.min(size - 1),
            },
            Self::From(first) => Selection::Part {
                first,
                last: size - 1,
            },
            Self::Last(count) => Selection::Part {
                first: size.saturating_sub(count),
                last: size - 1,
            },
        }
    }
}

fn parse(text: &str) -> Option<Spec> {
    let (unit, spec) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    match spec.trim().split_once('-')? {
        ("", count) => Some(Spec::Last(number(count)?)),
        (first, "") => Some(Spec::From(number(first)?)),
        (first, last) => Some(Spec::Between(number(first)?, number(last)?)),
    }
}

/// Parses a number that consists of digits only. `u64::from_str` is not used, because it accepts a
/// plus sign. A number that needs more than 64 bits becomes `u64::MAX`.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "\"sha256:aa\"";

    fn of(range: &str, size: u64) -> Selection {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, range.parse().unwrap());
        select(&headers, TAG.as_bytes(), size)
    }

    #[test]
    fn single_ranges_select_bytes() {
        let part = |first, last| Selection::Part { first, last };
        assert_eq!(of("bytes=0-", 10), part(0, 9));
        assert_eq!(of("bytes=3-5", 10), part(3, 5));
        assert_eq!(of("bytes=3-500", 10), part(3, 9));
        assert_eq!(of("bytes=9-", 10), part(9, 9));
        assert_eq!(of("bytes=-3", 10), part(7, 9));
        assert_eq!(of("bytes=-30", 10), part(0, 9));
        assert_eq!(of("Bytes=1-1", 10), part(1, 1));
        assert_eq!(of("bytes=0-99999999999999999999999", 10), part(0, 9));
    }

    #[test]
    fn ranges_beyond_the_end_are_unsatisfiable() {
        for range in [
            "bytes=10-",
            "bytes=10-12",
            "bytes=-0",
            "bytes=5-3",
            "bytes=99999999999999999999999-",
        ] {
            assert_eq!(of(range, 10), Selection::Unsatisfiable, "{range}");
        }
    }

    #[test]
    fn malformed_and_multiple_ranges_select_everything() {
        for range in [
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=+1-2",
            "items=0-1",
            "bytes=0-1,3-4",
            "0-5",
            "bytes=--1",
            "bytes=1-2-3",
        ] {
            assert_eq!(of(range, 10), Selection::Whole, "{range}");
        }
        assert_eq!(of("bytes=0-", 0), Selection::Whole);
        let mut twice = HeaderMap::new();
        twice.append(RANGE, "bytes=0-1".parse().unwrap());
        twice.append(RANGE, "bytes=3-4".parse().unwrap());
        assert_eq!(select(&twice, TAG.as_bytes(), 10), Selection::Whole);
    }

    #[test]
    fn if_range_selects_a_part_only_with_the_same_strong_tag() {
        for (tag, selection) in [
            (TAG, Selection::Part { first: 2, last: 9 }),
            ("\"sha256:bb\"", Selection::Whole),
            ("W/\"sha256:aa\"", Selection::Whole),
            ("Sat, 29 Oct 1994 19:43:31 GMT", Selection::Whole),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, "bytes=2-".parse().unwrap());
            headers.insert(IF_RANGE, tag.parse().unwrap());
            assert_eq!(select(&headers, TAG.as_bytes(), 10), selection, "{tag}");
        }
    }

    #[test]
    fn if_none_match_accepts_lists_weak_tags_and_the_star() {
        for (value, matches) in [
            (TAG, true),
            ("W/\"sha256:aa\"", true),
            ("*", true),
            ("\"x\", \"sha256:aa\"", true),
            ("\"x\"", false),
            ("sha256:aa", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, value.parse().unwrap());
            let matched = matches_etag(&headers, TAG.as_bytes());
            assert_eq!(matched, matches, "{value}");
        }
        assert!(!matches_etag(&HeaderMap::new(), TAG.as_bytes()));
    }
}
