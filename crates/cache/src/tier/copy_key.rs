//! The key of a copy on a fast tier: distinguishes the copy of a whole blob from the copy of the
//! blob's hot chunks (the chunks that container starts read).

use pierhead_oci::{Algorithm, Digest};

/// What a copy on a fast tier contains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum CopyKind {
    /// The whole blob.
    Whole,
    /// Only the hot chunks of the blob.
    Hot,
}

/// Identifies one copy on a fast tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CopyKey {
    pub(super) kind: CopyKind,
    /// The digest of the blob.
    pub(super) digest: Digest,
}

impl CopyKey {
    /// Maximum length in bytes of an encoded key: one byte for kind and algorithm, and 64 bytes for
    /// a SHA-512.
    pub(super) const MAX_LEN: usize = 65;

    /// Returns the key of the copy of a whole blob.
    pub(super) fn whole(blob: &Digest) -> Self {
        Self::new(CopyKind::Whole, blob)
    }

    /// Returns the key of the copy of the hot chunks of a blob.
    pub(super) fn hot(blob: &Digest) -> Self {
        Self::new(CopyKind::Hot, blob)
    }

    pub(super) fn new(kind: CopyKind, blob: &Digest) -> Self {
        Self {
            kind,
            digest: *blob,
        }
    }

    /// Returns the key of the copy in a log of persistent memory: one byte for kind and algorithm,
    /// then the hash. `docs/formats/pmem.md` specifies these bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let tag = match (self.kind, self.digest.algorithm()) {
            (CopyKind::Whole, Algorithm::Sha256) => 1,
            (CopyKind::Whole, Algorithm::Sha512) => 2,
            (CopyKind::Hot, Algorithm::Sha256) => 3,
            (CopyKind::Hot, Algorithm::Sha512) => 4,
        };
        let mut bytes = vec![tag];
        bytes.extend_from_slice(self.digest.as_bytes());
        bytes
    }

    /// Decodes a key of [`Self::encode`]. `None` for all other bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, hash) = bytes.split_first()?;
        let (kind, algorithm) = match tag {
            1 => (CopyKind::Whole, Algorithm::Sha256),
            2 => (CopyKind::Whole, Algorithm::Sha512),
            3 => (CopyKind::Hot, Algorithm::Sha256),
            4 => (CopyKind::Hot, Algorithm::Sha512),
            _ => return None,
        };
        let digest = Digest::from_bytes(algorithm, hash)?;
        Some(Self { kind, digest })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_key_has_its_own_bytes_that_lead_back_to_it() {
        let mut all = HashSet::new();
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let blob = Digest::of(algorithm, b"a blob");
            for key in [CopyKey::whole(&blob), CopyKey::hot(&blob)] {
                let bytes = key.encode();
                assert_eq!(bytes[1..], *blob.as_bytes());
                assert!(bytes.len() <= CopyKey::MAX_LEN);
                assert_eq!(CopyKey::decode(&bytes), Some(key));
                all.insert(bytes);
            }
        }
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn other_bytes_are_no_key() {
        let key = CopyKey::hot(&Digest::of(Algorithm::Sha256, b"a blob")).encode();
        for tag in [0, 2, 4, 5, 255] {
            let other = [&[tag], &key[1..]].concat();
            assert_eq!(CopyKey::decode(&other), None, "{tag}");
        }
        assert_eq!(CopyKey::decode(&key[..32]), None);
        assert_eq!(CopyKey::decode(&[]), None);
    }
}
