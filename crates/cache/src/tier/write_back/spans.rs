//! The list of a blob's hot chunks (the chunks that container starts read), and the header that
//! stores this list in front of the chunks on the fast tier.

use std::ops::Range;

use pierhead_oci::Digest;

use crate::tier::CHUNK;

/// Maximum number of contiguous spans of one blob. If there are more, the spans with the smallest
/// gaps between them are joined.
const MAX_SPANS: usize = 1024;
const MAGIC: [u8; 8] = *b"PIERHOT1";
/// Size of a page in bytes. The header is padded to a multiple of a page (4 KiB), so that the
/// chunks begin at a page boundary and can be sent as whole pages.
const PAGE: u64 = 4096;
/// Length in bytes of the first part of the header: magic, size of the blob and number of spans.
/// The spans and a checksum follow.
const FIXED_LEN: usize = 20;
const SPAN_LEN: usize = 8;
const CHUNK_LEN: u64 = CHUNK as u64;

/// A span: a run of contiguous hot chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    first: u32,
    count: u32,
}

/// The spans of one blob: at least one, in order, without overlaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Spans {
    spans: Vec<Span>,
    /// For each span, the number of hot chunks before it.
    before: Vec<u32>,
}

/// The place from which a byte of the blob can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    /// The byte is in the copy on the fast tier: its offset after the header, and the number of hot
    /// bytes from this offset on.
    Hot(u64, u64),
    /// The byte is only on the disk: the number of bytes up to the next hot chunk.
    Cold(u64),
}

impl Spans {
    /// Creates the spans of byte ranges, which may be in any order. Each range is widened to whole
    /// chunks. `None` when all ranges are empty, or when a range extends beyond 256 TiB.
    pub(super) fn of(ranges: &[Range<u64>]) -> Option<Self> {
        let mut chunks = Vec::with_capacity(ranges.len());
        for range in ranges.iter().filter(|range| range.start < range.end) {
            let first = u32::try_from(range.start / CHUNK_LEN).ok()?;
            chunks.push(first..u32::try_from(range.end.div_ceil(CHUNK_LEN)).ok()?);
        }
        chunks.sort_unstable_by_key(|range| range.start);
        // If spans must be joined, joining the spans with the smallest gaps adds the fewest cold
        // chunks.
        let mut gap = 0_u32;
        loop {
            let mut spans: Vec<Range<u32>> = Vec::new();
            for range in &chunks {
                match spans.last_mut() {
                    Some(last) if range.start <= last.end.saturating_add(gap) => {
                        last.end = last.end.max(range.end);
                    }
                    _ => spans.push(range.clone()),
                }
            }
            if spans.len() <= MAX_SPANS {
                let span = |range: Range<u32>| Span {
                    first: range.start,
                    count: range.end - range.start,
                };
                return Self::new(spans.into_iter().map(span).collect());
            }
            gap = gap.saturating_mul(2).max(1);
        }
    }

    fn new(spans: Vec<Span>) -> Option<Self> {
        let mut before = Vec::with_capacity(spans.len());
        let mut chunks = 0_u32;
        for span in &spans {
            before.push(chunks);
            chunks = chunks.checked_add(span.count)?;
        }
        (!spans.is_empty()).then_some(Self { spans, before })
    }

    /// Returns the part of the spans that is within a blob of `size` bytes.
    pub(super) fn within(&self, size: u64) -> Option<Self> {
        let chunks = u32::try_from(size.div_ceil(CHUNK_LEN)).ok()?;
        let spans = self.spans.iter().take_while(|span| span.first < chunks);
        let cut = |span: &Span| Span {
            first: span.first,
            count: span.count.min(chunks - span.first),
        };
        Self::new(spans.map(cut).collect())
    }

    pub(super) fn runs(&self) -> usize {
        self.spans.len()
    }

    /// Returns the byte ranges of the spans in a blob of `size` bytes.
    pub(super) fn ranges(&self, size: u64) -> impl Iterator<Item = Range<u64>> {
        let range = move |span: &Span| {
            let (first, count) = (u64::from(span.first), u64::from(span.count));
            first * CHUNK_LEN..((first + count) * CHUNK_LEN).min(size)
        };
        self.spans.iter().map(range)
    }

    /// Returns the number of hot bytes in a blob of `size` bytes.
    pub(super) fn bytes(&self, size: u64) -> u64 {
        self.ranges(size)
            .map(|range| range.end.saturating_sub(range.start))
            .sum()
    }

    /// Returns from which place a byte of a blob of `size` bytes can be read.
    pub(super) fn locate(&self, offset: u64, size: u64) -> Location {
        let chunk = offset / CHUNK_LEN;
        let behind = self
            .spans
            .partition_point(|span| u64::from(span.first) <= chunk);
        if let Some(index) = behind.checked_sub(1) {
            let (span, before) = (self.spans[index], self.before[index]);
            let (first, count) = (u64::from(span.first), u64::from(span.count));
            if chunk < first + count {
                let at = u64::from(before) * CHUNK_LEN + (offset - first * CHUNK_LEN);
                let end = ((first + count) * CHUNK_LEN).min(size);
                return Location::Hot(at, end.saturating_sub(offset));
            }
        }
        let next = self
            .spans
            .get(behind)
            .map_or(size, |next| u64::from(next.first) * CHUNK_LEN);
        Location::Cold(next.min(size).saturating_sub(offset))
    }

    /// Returns the length of the header in bytes.
    pub(super) fn header_len(&self) -> u64 {
        ((FIXED_LEN + SPAN_LEN * self.spans.len() + 4) as u64).next_multiple_of(PAGE)
    }

    /// Encodes the header for a blob of `size` bytes.
    pub(super) fn encode(&self, digest: &Digest, size: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&size.to_le_bytes());
        let count = u32::try_from(self.spans.len()).unwrap_or(0);
        bytes.extend_from_slice(&count.to_le_bytes());
        for span in &self.spans {
            bytes.extend_from_slice(&span.first.to_le_bytes());
            bytes.extend_from_slice(&span.count.to_le_bytes());
        }
        let sum = crc32c::crc32c_append(crc32c::crc32c(digest.as_bytes()), &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(usize::try_from(self.header_len()).unwrap_or(bytes.len()), 0);
        bytes
    }

    /// Decodes the spans and the size of the blob. `bytes` is the beginning of a copy: the first
    /// [`Spans::MAX_HEADER`] bytes, or the whole copy if it is shorter.
    pub(super) fn decode(digest: &Digest, bytes: &[u8]) -> Option<(Self, u64)> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let size = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
        let count = usize::try_from(word(16)?)
            .ok()
            .filter(|count| *count <= MAX_SPANS)?;
        let end = FIXED_LEN + SPAN_LEN * count;
        let sum = crc32c::crc32c_append(crc32c::crc32c(digest.as_bytes()), bytes.get(..end)?);
        if bytes[..8] != MAGIC || word(end)? != sum {
            return None;
        }
        let span = |nth: usize| {
            let at = FIXED_LEN + SPAN_LEN * nth;
            Some(Span {
                first: word(at)?,
                count: word(at + 4)?,
            })
        };
        let spans: Vec<_> = (0..count).map(span).collect::<Option<_>>()?;
        Some((Self::new(spans)?, size))
    }

    /// Maximum length of a header in bytes, without padding.
    pub(super) const MAX_HEADER: usize = FIXED_LEN + SPAN_LEN * MAX_SPANS + 4;
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;
    use proptest::prelude::*;

    use super::*;

    fn digest(of: &[u8]) -> Digest {
        Digest::of(Algorithm::Sha256, of)
    }

    #[test]
    fn ranges_are_widened_to_chunks_and_joined() {
        let spans = Spans::of(&[
            5 * CHUNK_LEN + 1..5 * CHUNK_LEN + 2,
            0..1,
            CHUNK_LEN..2 * CHUNK_LEN,
            9 * CHUNK_LEN..9 * CHUNK_LEN,
        ])
        .unwrap();
        assert_eq!(
            spans.ranges(100 * CHUNK_LEN).collect::<Vec<_>>(),
            [0..2 * CHUNK_LEN, 5 * CHUNK_LEN..6 * CHUNK_LEN]
        );
        assert_eq!(spans.bytes(100 * CHUNK_LEN), 3 * CHUNK_LEN);
        assert_eq!(
            spans.locate(CHUNK_LEN + 7, 100 * CHUNK_LEN),
            Location::Hot(CHUNK_LEN + 7, CHUNK_LEN - 7)
        );
        assert_eq!(
            spans.locate(2 * CHUNK_LEN, 100 * CHUNK_LEN),
            Location::Cold(3 * CHUNK_LEN)
        );
        assert_eq!(
            spans.locate(5 * CHUNK_LEN + 3, 100 * CHUNK_LEN),
            Location::Hot(2 * CHUNK_LEN + 3, CHUNK_LEN - 3)
        );
        assert_eq!(
            spans.locate(6 * CHUNK_LEN, 100 * CHUNK_LEN),
            Location::Cold(94 * CHUNK_LEN)
        );
        let short = spans.within(5 * CHUNK_LEN + 10).unwrap();
        assert_eq!(short.bytes(5 * CHUNK_LEN + 10), 2 * CHUNK_LEN + 10);
        assert_eq!(
            short.locate(5 * CHUNK_LEN + 3, 5 * CHUNK_LEN + 10),
            Location::Hot(2 * CHUNK_LEN + 3, 7)
        );
        assert_eq!(spans.within(2 * CHUNK_LEN).unwrap().runs(), 1);
        assert_eq!(Spans::of(&[7..7, 9..9]), None);
        assert_eq!(Spans::of(&[0..1, u64::MAX - 1..u64::MAX]), None);
    }

    #[test]
    fn close_spans_are_joined_until_at_most_the_maximum_is_left() {
        // Creates `count` spans with gaps of two chunks. If this number of spans is allowed, no
        // spans are joined.
        let apart = |count: usize| -> Vec<_> {
            let one = |nth: usize| 3 * nth as u64 * CHUNK_LEN..3 * nth as u64 * CHUNK_LEN + 1;
            (0..count).map(one).collect()
        };
        for count in [1, MAX_SPANS - 1, MAX_SPANS] {
            let spans = Spans::of(&apart(count)).unwrap();
            assert_eq!(spans.runs(), count);
            assert_eq!(spans.bytes(u64::MAX), count as u64 * CHUNK_LEN);
        }
        for count in [MAX_SPANS + 1, MAX_SPANS + 2, 2 * MAX_SPANS, 5000] {
            let ranges = apart(count);
            let spans = Spans::of(&ranges).unwrap();
            assert!(spans.runs() <= MAX_SPANS, "{count}: {}", spans.runs());
            let is_hot = |range: &Range<u64>| {
                matches!(spans.locate(range.start, u64::MAX), Location::Hot(..))
            };
            assert!(ranges.iter().all(is_hot), "{count}");
            // Decoding the encoded header gives the same spans.
            let of = digest(b"many");
            let decoded = Spans::decode(&of, &spans.encode(&of, u64::MAX));
            assert_eq!(decoded, Some((spans, u64::MAX)));
        }
        // There is one span more than allowed. The gap between two of the spans is smaller than all
        // other gaps, so these two spans are joined, with the chunk between them.
        let mut ranges = apart(MAX_SPANS);
        let close = (3 * MAX_SPANS as u64 - 1) * CHUNK_LEN;
        ranges.push(close..close + 1);
        let spans = Spans::of(&ranges).unwrap();
        assert_eq!(spans.runs(), MAX_SPANS);
        assert_eq!(spans.bytes(u64::MAX), (MAX_SPANS as u64 + 2) * CHUNK_LEN);
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected() {
        let spans = Spans::of(&[0..1, 7 * CHUNK_LEN..9 * CHUNK_LEN]).unwrap();
        let of = digest(b"a");
        let bytes = spans.encode(&of, 20 * CHUNK_LEN);
        assert_eq!(bytes.len() as u64, spans.header_len());
        assert_eq!(
            Spans::decode(&of, &bytes),
            Some((spans.clone(), 20 * CHUNK_LEN))
        );
        assert_eq!(Spans::decode(&digest(b"b"), &bytes), None);
        for bit in 0..8 * (FIXED_LEN + 2 * SPAN_LEN + 4) {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Spans::decode(&of, &bytes), None, "{bit}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Spans::decode(&digest(b""), &bytes);
        }

        #[test]
        fn each_byte_is_in_one_place(
            ranges in proptest::collection::vec((0_u64..40 * CHUNK_LEN, 0_u64..3 * CHUNK_LEN), 1..20),
            size in 1_u64..50 * CHUNK_LEN,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let Some(spans) = Spans::of(&ranges).and_then(|spans| spans.within(size)) else {
                return Ok(());
            };
            let (mut offset, mut hot) = (0, 0);
            while offset < size {
                offset += match spans.locate(offset, size) {
                    Location::Hot(at, len) => {
                        prop_assert_eq!(at, hot);
                        hot += len;
                        len
                    }
                    Location::Cold(len) => {
                        let cold = offset..offset + len;
                        prop_assert!(ranges.iter().all(|it| it.is_empty() || it.end <= cold.start || it.start >= cold.end));
                        len
                    }
                };
            }
            prop_assert_eq!((offset, hot), (size, spans.bytes(size)));
        }
    }
}
