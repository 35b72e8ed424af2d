//! Remembers the digests for which an upstream host sent wrong bytes. For 60 s, pierhead asks that
//! host last for these blobs.

use std::time::Duration;

use moka::sync::Cache;
use pierhead_oci::Digest;

/// How long a digest mismatch of a host is remembered: longer than the retry delay of clients, and
/// short enough that a repaired mirror is soon used again.
const MISMATCH_TTL: Duration = Duration::from_secs(60);

/// Maximum number of digest mismatches per host that are remembered, some 100 bytes each.
const MAX_MISMATCHES: u64 = 256;

/// Recent digest mismatches of one host. A lost entry costs only one more attempt at this host.
pub(crate) struct DigestMismatches(Cache<Digest, ()>);

impl Default for DigestMismatches {
    fn default() -> Self {
        Self::with_ttl(MISMATCH_TTL)
    }
}

impl DigestMismatches {
    fn with_ttl(ttl: Duration) -> Self {
        Self(
            Cache::builder()
                .max_capacity(MAX_MISMATCHES)
                .eviction_policy(moka::policy::EvictionPolicy::lru())
                .time_to_live(ttl)
                .build(),
        )
    }

    /// Records that this host sent bytes that do not match this digest.
    pub(crate) fn insert(&self, digest: Digest) {
        self.0.insert(digest, ());
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        // Unlike `contains_key`, `get` counts as a use of the entry.
        self.0.get(digest).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pierhead_oci::Algorithm;
    use pierhead_testkit::wait::until;

    use super::*;

    fn digest(n: u64) -> Digest {
        Digest::of(Algorithm::Sha256, &n.to_be_bytes())
    }

    #[test]
    fn a_mismatch_expires() {
        let (ttl, start) = (Duration::from_millis(50), Instant::now());
        let mismatches = DigestMismatches::with_ttl(ttl);
        mismatches.insert(digest(0));
        assert!(!mismatches.contains(&digest(1)));
        // The clock of the cache cannot be set, so the test waits for the end of the TTL.
        until("the end of the TTL", || !mismatches.contains(&digest(0)));
        assert!(start.elapsed() >= ttl, "a mismatch expired early");
    }

    #[test]
    fn the_number_of_mismatches_is_bounded_and_the_most_recent_stay() {
        let mismatches = DigestMismatches::default();
        for n in 0..3 * MAX_MISMATCHES {
            mismatches.insert(digest(n));
            mismatches.0.run_pending_tasks();
            assert!(mismatches.contains(&digest(n)));
        }
        assert_eq!(mismatches.0.entry_count(), MAX_MISMATCHES);
    }
}
