//! Which blobs an address sent wrong bytes of: it is asked for them last, for a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pierhead_oci::Digest;
use tokio::time::Instant;

/// Longer than clients take to try again, and short enough that a mended mirror is used again.
const LIFE: Duration = Duration::from_secs(60);

/// Blobs remembered of one address; some 100 bytes each.
const CAPACITY: usize = 256;

/// The blobs of one address that were wrong lately. Only advice: losing an entry costs one more attempt.
#[derive(Default)]
pub(crate) struct Distrust(Mutex<HashMap<Digest, Instant>>);

impl Distrust {
    /// What it sent under this digest was something else.
    pub(crate) fn note(&self, digest: Digest) {
        let mut wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if wrong.len() >= CAPACITY {
            wrong.retain(|_, until| *until > now);
        }
        if wrong.len() >= CAPACITY {
            wrong.clear();
        }
        wrong.insert(digest, now + LIFE);
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        let wrong = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wrong
            .get(digest)
            .is_some_and(|until| *until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_and_is_bounded() {
        let distrust = Distrust::default();
        let digest = |n: usize| Digest::of(Algorithm::Sha256, &n.to_be_bytes());
        for n in 0..3 * CAPACITY {
            distrust.note(digest(n));
            assert!(distrust.has(&digest(n)));
            assert!(distrust.0.lock().unwrap().len() <= CAPACITY);
        }
        assert!(!distrust.has(&digest(3 * CAPACITY)));
        tokio::time::advance(LIFE).await;
        assert!(!distrust.has(&digest(3 * CAPACITY - 1)));
    }
}
