//! Remembers the digests for which an upstream host sent wrong bytes. For 60 s, pierhead asks that
//! host last for these blobs.

use std::time::Duration;

use pierhead_oci::Digest;
use pierhead_ttl_cache::TtlCache;

/// How long a digest mismatch of a host is remembered: longer than the retry delay of clients, and
/// short enough that a repaired mirror is soon used again.
const MISMATCH_TTL: Duration = Duration::from_secs(60);

/// Maximum number of digest mismatches per host that are remembered, some 100 bytes each.
const MAX_MISMATCHES: usize = 256;

/// Recent digest mismatches of one host. A lost entry costs only one more attempt at this host.
pub(crate) struct DigestMismatches(TtlCache<Digest, ()>);

impl Default for DigestMismatches {
    fn default() -> Self {
        Self(TtlCache::new(MAX_MISMATCHES, MISMATCH_TTL))
    }
}

impl DigestMismatches {
    /// Records that this host sent bytes that do not match this digest.
    pub(crate) fn insert(&self, digest: Digest) {
        self.0.insert(digest, ());
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.0.contains(digest)
    }
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;
    use tokio::time::advance;

    use super::*;

    fn digest(n: usize) -> Digest {
        Digest::of(Algorithm::Sha256, &n.to_be_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_mismatch_expires() {
        let mismatches = DigestMismatches::default();
        mismatches.insert(digest(0));
        advance(MISMATCH_TTL - Duration::from_millis(1)).await;
        assert!(mismatches.contains(&digest(0)));
        assert!(!mismatches.contains(&digest(1)));
        advance(Duration::from_millis(1)).await;
        assert!(!mismatches.contains(&digest(0)));
    }

    #[test]
    fn the_number_of_mismatches_is_bounded_and_the_most_recent_stay() {
        let mismatches = DigestMismatches::default();
        for n in 0..3 * MAX_MISMATCHES {
            mismatches.insert(digest(n));
            assert!(mismatches.contains(&digest(n)));
        }
        assert_eq!(mismatches.0.len(), MAX_MISMATCHES);
    }
}
