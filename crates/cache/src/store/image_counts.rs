//! In how many images a blob is known to be, as far as manifests were stored here.

use std::collections::{HashMap, HashSet};

use pierhead_oci::Digest;

/// Blobs counted, and manifests remembered, at once: some 0.6 MB of each. Beyond it counts are halved, and
/// blobs of one image (which nobody needs to be told) are forgotten.
const LIMIT: usize = 1 << 15;

/// Counts by the first 8 bytes of a digest. A wrong count costs a wrong rank.
#[derive(Debug, Default)]
pub(crate) struct ImageCounts {
    counts: HashMap<u64, u16>,
    /// Manifests that were counted: one that was evicted and comes again is no other image.
    images: HashSet<u64>,
}

fn short(digest: &Digest) -> u64 {
    let first = digest.as_bytes().first_chunk();
    first.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl ImageCounts {
    /// Notes an image; `false` when it was noted before.
    pub(crate) fn enter(&mut self, manifest: &Digest) -> bool {
        if self.images.len() >= LIMIT {
            self.images.clear();
        }
        self.images.insert(short(manifest))
    }

    /// One image more has this part; says in how many it is now.
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

    /// In how many images it is known to be, at least 1.
    pub(crate) fn of(&self, part: &Digest) -> u16 {
        self.counts.get(&short(part)).map_or(1, |count| *count)
    }

    /// Takes over what an earlier process knew of a part.
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
