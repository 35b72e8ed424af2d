//! The range that the first upstream request of a fill asks for, if a range of a client starts the
//! fill.

use pierhead_remote::RangeSpec;

use crate::pull::fill_ranges::PIECE_ALIGNMENT;

/// Maximum bytes of a blob that pierhead verifies completely before it sends a range of the blob.
/// The verification is necessary because a client cannot verify a range. A range of a larger blob
/// is sent as it arrives.
pub(crate) const MAX_VERIFIED_FIRST: u64 = 8 << 20;

/// Returns the range of the first upstream request for a range of a client, in whole blocks of the
/// cache. `None`: the first request is for the whole blob, because the blob may be so small that it
/// is verified before a range is sent.
pub(crate) fn of(range: RangeSpec) -> Option<RangeSpec> {
    let block = PIECE_ALIGNMENT;
    match range {
        RangeSpec::Int { first, last } if last.is_none_or(|last| first <= last) => {
            let is_large = first.max(last.unwrap_or(0)) >= MAX_VERIFIED_FIRST;
            is_large.then(|| RangeSpec::Int {
                first: first - first % block,
                last: last.map(|last| last | (block - 1)),
            })
        }
        RangeSpec::Int { .. } | RangeSpec::Suffix(0) => None,
        RangeSpec::Suffix(count) => Some(RangeSpec::Suffix(count.saturating_add(block - 1))),
    }
}

/// Returns the first `max` bytes of a range. A range from the end of the blob stays whole, because
/// the offset of its first byte is unknown.
pub(crate) fn with_max(range: RangeSpec, max: u64) -> RangeSpec {
    match range {
        RangeSpec::Int { first, last } => {
            let max_last = first.saturating_add(max.saturating_sub(1));
            RangeSpec::Int {
                first,
                last: Some(last.map_or(max_last, |last| last.min(max_last))),
            }
        }
        RangeSpec::Suffix(_) => range,
    }
}
