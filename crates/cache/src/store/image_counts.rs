//! Counts how many images contain each blob. The counts come from the manifests that were stored.

use std::collections::{HashMap, HashSet};

use pierhead_oci::Digest;

/// Maximum number of counted blobs, and maximum number of remembered manifests. Each of the two
/// tables takes about 0.6 MB. When one of the limits is reached, all counts are halved, and blobs
/// with a count below one are dropped.
const MAX_ENTRIES: usize = 1 << 15;

/// The number of images of each blob. A blob is identified by the first 8 bytes of its digest. If
/// the digests of two blobs begin with the same 8 bytes, the two blobs share one count. The only
/// effect is that their ranks are wrong.
#[derive(Debug, Default)]
pub(crate) struct ImageCounts {
    counts: HashMap<u64, u16>,
    /// The manifests that were counted. The manifests are remembered, because a manifest that is
    /// evicted and stored again must not count twice.
    images: HashSet<u64>,
}

fn short_hash(digest: &Digest) -> u64 {
    let first = digest.as_bytes().first_chunk();
    first.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl ImageCounts {
    /// Remembers the manifest of an image. Returns `false` when the manifest was counted before.
    pub(crate) fn add_image(&mut self, manifest: &Digest) -> bool {
        if self.images.len() >= MAX_ENTRIES {
            self.images.clear();
        }
        self.images.insert(short_hash(manifest))
    }

    /// Counts one more image for a part of an image. Returns the new count.
    pub(crate) fn add_part(&mut self, part: &Digest) -> u16 {
        if self.counts.len() >= MAX_ENTRIES {
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            if self.counts.len() >= MAX_ENTRIES {
                self.counts.clear();
            }
        }
        let count = self.counts.entry(short_hash(part)).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    /// Returns the number of known images that contain the part, at least 1.
    pub(crate) fn count(&self, part: &Digest) -> u16 {
        self.counts.get(&short_hash(part)).map_or(1, |count| *count)
    }

    /// Restores the count of a part after a restart.
    pub(crate) fn restore(&mut self, part: &Digest, count: u16) {
        if count > 1 && self.counts.len() < MAX_ENTRIES {
            self.counts.insert(short_hash(part), count);
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
    fn an_image_counts_once_and_the_counts_are_bounded() {
        let mut image_counts = ImageCounts::default();
        assert!(image_counts.add_image(&digest(0)) && !image_counts.add_image(&digest(0)));
        for _ in 0..5 {
            image_counts.add_part(&digest(1));
        }
        assert_eq!(
            (
                image_counts.count(&digest(1)),
                image_counts.count(&digest(2))
            ),
            (5, 1)
        );
        for number in 2..MAX_ENTRIES + 2 {
            image_counts.add_part(&digest(number));
            image_counts.add_image(&digest(number));
        }
        assert!(
            image_counts.counts.len() <= MAX_ENTRIES && image_counts.images.len() <= MAX_ENTRIES
        );
        assert_eq!(image_counts.count(&digest(1)), 2, "halved, not forgotten");
    }
}
