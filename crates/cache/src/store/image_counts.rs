//! Counts in how many images each blob occurs, from the manifests that were stored.

use std::collections::{HashMap, HashSet};

use pierhead_oci::Digest;

/// Maximum number of counted blobs, and of remembered manifests: about 0.6 MB each. At the limit,
/// all counts are halved, and blobs with a count below one are dropped.
const LIMIT: usize = 1 << 15;

/// Counts by the first 8 bytes of a digest. A collision only gives a blob a wrong rank.
#[derive(Debug, Default)]
pub(crate) struct ImageCounts {
    counts: HashMap<u64, u16>,
    /// Manifests that were counted: a manifest that is evicted and
    /// stored again must not count twice.
    images: HashSet<u64>,
}

fn short(digest: &Digest) -> u64 {
    let first = digest.as_bytes().first_chunk();
    first.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl ImageCounts {
    /// Remembers an image; `false` when it is known.
    pub(crate) fn enter(&mut self, manifest: &Digest) -> bool {
        if self.images.len() >= LIMIT {
            self.images.clear();
        }
        self.images.insert(short(manifest))
    }

    /// Counts one more image for a part; returns the new count.
    pub(crate) fn add(&mut self, part: &Digest) -> u16 {
        if self.counts.len() >= LIMIT {
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            if self.counts.len() >= LIMIT {
                self.counts.clear();
            }
        }
        let count = self.counts.entry(short(part)).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    /// Number of known images that contain the part, at least 1.
    pub(crate) fn of(&self, part: &Digest) -> u16 {
        self.counts.get(&short(part)).map_or(1, |count| *count)
    }

    /// Restores the count of a part after a restart.
    pub(crate) fn restore(&mut self, part: &Digest, count: u16) {
        if count > 1 && self.counts.len() < LIMIT {
            self.counts.insert(short(part), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    fn digest(number: usize) -> Digest {
        Digest::of(Algorithm::Sha256, &number.to_le_bytes())
    }

    #[test]
    fn an_image_counts_once_and_memory_is_bounded() {
        let mut shares = ImageCounts::default();
        assert!(shares.enter(&digest(0)) && !shares.enter(&digest(0)));
        for _ in 0..5 {
            shares.add(&digest(1));
        }
        assert_eq!((shares.of(&digest(1)), shares.of(&digest(2))), (5, 1));
        for number in 2..LIMIT + 2 {
            shares.add(&digest(number));
            shares.enter(&digest(number));
        }
        assert!(shares.counts.len() <= LIMIT && shares.images.len() <= LIMIT);
        assert_eq!(shares.of(&digest(1)), 2, "halved, not forgotten");
    }
}
