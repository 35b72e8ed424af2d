//! Invariants of the trace parsers and of saved policy states. The fuzz targets check these
//! invariants on random input, and tests check them on the stored inputs.

use crate::SimulatedPolicy;
use crate::trace::csv::Columns;
use crate::trace::{Format, Reader, TraceCounts, TraceError};
use pierhead_eviction::testing::with_valid_checksum;
use pierhead_eviction::{Access, Contents as _, Policy as _, SimulatedCache};

/// Checks the parser of traces. The first byte of the input chooses the format of the trace. The
/// result must not depend on how the bytes are cut into pieces; time must never decrease; no
/// request may be empty; and the requests must be replayable.
pub fn trace(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let format = Format::ALL[usize::from(*first) % Format::ALL.len()];
    let (whole, end) = read(format, bytes, bytes.len().max(1));
    for step in [1, 13] {
        let (pieces, ended) = read(format, bytes, step);
        assert!(pieces == whole && ended == end, "in steps of {step}");
    }
    assert!(whole.is_sorted_by_key(|access| access.tick));
    assert!(whole.iter().all(|access| access.size > 0));
    assert!(whole.len() <= bytes.len());
    let mut cache = SimulatedCache::new(pierhead_eviction::Lru::new(), 1000);
    for access in &whole {
        cache.request(access);
        assert!(cache.policy().bytes() <= 1000);
    }
}

fn read(
    format: Format,
    bytes: &[u8],
    step: usize,
) -> (Vec<Access<u64>>, Result<TraceCounts, TraceError>) {
    let mut reader = Reader::new(format, Columns::default());
    let mut found = Vec::new();
    let mut each = |access| found.push(access);
    let fed = bytes
        .chunks(step)
        .try_for_each(|piece| reader.feed(piece, &mut each));
    let end = fed.and_then(|()| reader.end(&mut each));
    (found, end)
}

/// Checks a saved state with a valid checksum. A policy that restores the state must stay
/// consistent, and a policy that refuses the state must stay empty.
pub fn state(input: &[u8]) {
    let input = with_valid_checksum(input);
    for named in SimulatedPolicy::ONLINE {
        let mut policy = named.build_online::<u64>(1000, 1);
        if policy.restore(&input).is_err() {
            assert!(policy.is_empty() && policy.bytes() == 0, "{named}");
            continue;
        }
        let mut sum = 0_u64;
        policy.visit(&mut |_, size| sum = sum.saturating_add(size));
        assert_eq!(sum, policy.bytes(), "{named}");
        let mut again = named.build_online::<u64>(1000, 1);
        assert_eq!(again.restore(&policy.save()), Ok(()), "{named}");
        for key in 0..50 {
            let access = Access::new(key % 20, 1 + key, key);
            if !policy.hit(&access) {
                policy.miss(&access);
                policy.insert(&access);
            }
        }
        while let Some(victim) = policy.evict(&mut |_| false) {
            assert!(!policy.contains(&victim.key), "{named}");
        }
        assert_eq!((policy.len(), policy.bytes()), (0, 0), "{named}");
    }
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn trace() {
        each("trace", super::trace);
    }

    #[test]
    fn state() {
        each("state", super::state);
    }

    #[test]
    fn a_changed_state_passes_the_checksum_once_the_checksum_is_fixed() {
        use pierhead_eviction::{Access, Lru, PersistentState as _, Policy as _, StateError};
        let mut lru = Lru::new();
        lru.insert(&Access::new(7_u64, 1, 0));
        let mut state = lru.save();
        let last = state.len() - 5;
        state[last] ^= 2;
        let refused = |state: &[u8]| Lru::<u64>::new().restore(state);
        assert_eq!(refused(&state), Err(StateError::Damaged));
        let past = refused(&super::with_valid_checksum(&state));
        assert!(matches!(past, Err(StateError::Content(_))), "{past:?}");
    }
}
