//! The generated images of the soak test. The images need no memory or disk, because the test
//! computes every byte of a blob from the blob's number.

use pierhead_oci::{Algorithm, Digest, Hasher, MediaType};
use serde_json::json;

/// Size of the repeated block of a blob in bytes. Only the first eight bytes of each block differ.
const BLOCK: usize = 64 << 10;
/// Number of blobs per image.
const LAYERS: usize = 3;

/// The repository of all images, which have different tags.
pub(crate) const REPOSITORY: &str = "soak/image";

/// A generated blob.
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    block: Vec<u8>,
}

/// An image: its manifest, and its blobs.
pub(crate) struct Image {
    pub(crate) manifest: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) blobs: Vec<Blob>,
}

impl Blob {
    fn new(seed: u64, size: u64) -> Self {
        let mut block = vec![0; BLOCK];
        fastrand::Rng::with_seed(seed).fill(&mut block);
        let mut blob = Self {
            digest: Digest::of(Algorithm::Sha256, b""),
            size,
            block,
        };
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut piece = vec![0; 16 * BLOCK];
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at)
                .unwrap_or(usize::MAX)
                .min(piece.len());
            blob.read(at, &mut piece[..len]);
            hasher.update(&piece[..len]);
            at += len as u64;
        }
        blob.digest = hasher.finish();
        blob
    }

    /// Generates the bytes of the blob from the offset `at` on.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        self.each(at, into.len(), |range, bytes| {
            into[range].copy_from_slice(bytes);
            true
        });
    }

    /// Whether the blob has `bytes` at the offset `at`.
    pub(crate) fn is(&self, at: u64, bytes: &[u8]) -> bool {
        self.each(at, bytes.len(), |range, expected| bytes[range] == *expected)
    }

    fn each(
        &self,
        at: u64,
        len: usize,
        mut visit: impl FnMut(std::ops::Range<usize>, &[u8]) -> bool,
    ) -> bool {
        let mut done = 0;
        while done < len {
            let position = at + done as u64;
            let (number, inside) = (
                position / BLOCK as u64,
                usize::try_from(position % BLOCK as u64).unwrap_or(0),
            );
            let number = number.to_le_bytes();
            let from = if inside < number.len() {
                &number[inside..]
            } else {
                &self.block[inside..]
            };
            let take = from.len().min(len - done);
            if !visit(done..done + take, &from[..take]) {
                return false;
            }
            done += take;
        }
        true
    }
}

/// Generates images with `total` bytes of blobs, whose sizes vary like those of layers.
pub(crate) fn images(count: usize, total: u64) -> Vec<Image> {
    let shares = [1, 3, 20];
    let unit = total / (count as u64 * shares.iter().sum::<u64>());
    (0..count)
        .map(|nth| {
            let blobs: Vec<Blob> = (0..LAYERS)
                .map(|layer| {
                    let seed = (nth * LAYERS + layer) as u64 + 1;
                    Blob::new(seed, unit * shares[layer] + seed)
                })
                .collect();
            let layer = |blob: &Blob| {
                json!({
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": blob.digest, "size": blob.size,
                })
            };
            // The first blob is small and serves as the config, which no client parses.
            let manifest = json!({
                "schemaVersion": 2, "mediaType": MediaType::OCI_MANIFEST,
                "config": layer(&blobs[0]), "layers": blobs[1..].iter().map(layer).collect::<Vec<_>>(),
            });
            let manifest = manifest.to_string().into_bytes();
            Image {
                digest: Digest::of(Algorithm::Sha256, &manifest),
                manifest,
                blobs,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_consistent_with_the_whole_blob() {
        let blob = Blob::new(7, 200_000);
        let mut whole = vec![0; 200_000];
        blob.read(0, &mut whole);
        assert_eq!(Digest::of(Algorithm::Sha256, &whole), blob.digest);
        for (at, len) in [(0, 3), (5, 10), (65_530, 20), (131_071, 60_000)] {
            let mut part = vec![0; len];
            blob.read(at as u64, &mut part);
            assert_eq!(part, whole[at..at + len]);
            assert!(blob.is(at as u64, &part));
            part[len / 2] ^= 1;
            assert!(!blob.is(at as u64, &part));
        }
    }
}
