//! The piece map of a staged file: which ranges of the file have bytes that are on the disk. The
//! map is needed once a fill has staged bytes ahead of a gap, since the length of the file then
//! says nothing about its bytes. `docs/formats/disk.md` describes the encoding. No I/O.

use std::ops::Range;

use pierhead_oci::Digest;

const MAGIC: [u8; 8] = *b"PIERPIEC";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 16;
const RANGE_LEN: usize = 16;
const CHECK_LEN: usize = 4;

/// Maximum number of ranges in a map. A fill has fewer.
const MAX_RANGES: usize = 8192;

/// Maximum length of an encoded map in bytes.
pub(crate) const MAX_LEN: usize = HEADER_LEN + MAX_RANGES * RANGE_LEN + CHECK_LEN;

/// Encodes a map. The checksum also covers `digest`, so that the map of another blob is detected.
pub(crate) fn encode(digest: &Digest, ranges: &[Range<u64>]) -> Vec<u8> {
    let ranges = &ranges[..ranges.len().min(MAX_RANGES)];
    let mut out = Vec::with_capacity(HEADER_LEN + ranges.len() * RANGE_LEN + CHECK_LEN);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    let count = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&count.to_le_bytes());
    for range in ranges {
        out.extend_from_slice(&range.start.to_le_bytes());
        out.extend_from_slice(&range.end.to_le_bytes());
    }
    let check = check(digest, &out);
    out.extend_from_slice(&check.to_le_bytes());
    out
}

/// Decodes a map. The ranges are in ascending order and do not touch. `None` when the bytes are no
/// map of `digest`.
pub(crate) fn decode(digest: &Digest, bytes: &[u8]) -> Option<Vec<Range<u64>>> {
    let (body, sum) = bytes.split_last_chunk::<CHECK_LEN>()?;
    let header = body.strip_prefix(&MAGIC)?;
    let (version, header) = header.split_first_chunk()?;
    let (count, ranges) = header.split_first_chunk()?;
    let (ranges, rest) = ranges.as_chunks::<RANGE_LEN>();
    let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
    let is_valid = u32::from_le_bytes(*version) == VERSION
        && rest.is_empty()
        && ranges.len() == count
        && count <= MAX_RANGES
        && u32::from_le_bytes(*sum) == check(digest, body);
    if !is_valid {
        return None;
    }
    let mut last_end = None;
    let mut decoded = Vec::with_capacity(count);
    for range in ranges {
        let (start, end) = range.split_at(RANGE_LEN / 2);
        let start = u64::from_le_bytes(start.try_into().ok()?);
        let end = u64::from_le_bytes(end.try_into().ok()?);
        if start >= end || last_end.is_some_and(|last| start <= last) {
            return None;
        }
        last_end = Some(end);
        decoded.push(start..end);
    }
    Some(decoded)
}

fn check(digest: &Digest, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(digest.as_bytes()), bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pierhead_oci::Algorithm;

    fn digest() -> Digest {
        Digest::of(Algorithm::Sha256, b"pierhead")
    }

    proptest! {
        #[test]
        fn a_map_survives_a_round_trip_and_a_changed_byte_is_detected(
            lens in proptest::collection::vec((1u64..1 << 40, 1u64..1 << 40), 0..40),
            at in any::<proptest::sample::Index>(),
            flip in 1u8..,
        ) {
            let mut offset = 0;
            let ranges: Vec<_> = lens.into_iter().map(|(gap, len)| {
                let start = offset + gap;
                offset = start + len;
                start..offset
            }).collect();
            let mut bytes = encode(&digest(), &ranges);
            prop_assert!(bytes.len() <= MAX_LEN);
            prop_assert_eq!(decode(&digest(), &bytes), Some(ranges));
            prop_assert_eq!(decode(&Digest::of(Algorithm::Sha256, b"other"), &bytes), None);
            prop_assert_eq!(decode(&digest(), &bytes[..bytes.len() - 1]), None);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert_eq!(decode(&digest(), &bytes), None);
        }

        #[test]
        fn any_bytes_are_a_map_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            crate::fuzzing::piece_map(&bytes);
        }
    }

    #[test]
    fn ranges_that_are_empty_or_touch_or_go_back_are_refused() {
        let some = |range: [u64; 2]| range[0]..range[1];
        for (first, second) in [
            ([5, 5], [9, 10]),
            ([5, 6], [6, 7]),
            ([5, 9], [8, 12]),
            ([9, 10], [1, 2]),
        ] {
            let bytes = encode(&digest(), &[some(first), some(second)]);
            assert_eq!(decode(&digest(), &bytes), None, "{first:?} {second:?}");
        }
    }
}
