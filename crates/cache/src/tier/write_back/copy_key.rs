//! The key of a copy on the fast tier: distinguishes the copy of a whole blob from the copy of the
//! blob's hot chunks (the chunks that container starts read).

use pierhead_oci::Digest;

/// Identifies one copy on the fast tier: the copy of a whole blob, or the copy of a blob's hot
/// chunks. A medium stores values by digest only, so hot chunks are stored under the bitwise
/// complement of the blob's digest. Another blob could have the complement as its digest only by a
/// hash collision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CopyKey(Digest);

impl CopyKey {
    /// Returns the key of the copy of a whole blob.
    pub(super) fn whole(blob: &Digest) -> Self {
        Self(*blob)
    }

    /// Returns the key of the copy of the hot chunks of a blob.
    pub(super) fn hot(blob: &Digest) -> Self {
        Self(complement(blob))
    }

    /// Returns the key of a value that a scan of the medium found. The content of the value tells
    /// whether it is a whole copy or a copy of hot chunks.
    pub(super) fn found(on_medium: Digest) -> Self {
        Self(on_medium)
    }

    /// Returns the digest under which the medium stores the copy.
    pub(super) fn on_medium(&self) -> &Digest {
        &self.0
    }

    /// Returns the digest of the blob, if this is the key of a whole copy.
    pub(super) fn as_whole(self) -> Digest {
        self.0
    }

    /// Returns the digest of the blob, if this is the key of a copy of hot chunks.
    pub(super) fn as_hot(self) -> Digest {
        complement(&self.0)
    }
}

fn complement(digest: &Digest) -> Digest {
    let bytes: Vec<u8> = digest.as_bytes().iter().map(|byte| !byte).collect();
    Digest::from_bytes(digest.algorithm(), &bytes).unwrap_or(*digest)
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    #[test]
    fn both_copies_of_a_blob_have_keys_that_lead_back_to_it() {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let blob = Digest::of(algorithm, b"a blob");
            let (whole, hot) = (CopyKey::whole(&blob), CopyKey::hot(&blob));
            assert_ne!(whole, hot);
            assert_eq!(whole.on_medium(), &blob);
            assert_eq!(whole.as_whole(), blob);
            // The digest on the medium is the complement of each byte.
            let bytes = hot.on_medium().as_bytes().iter().zip(blob.as_bytes());
            assert!(bytes.into_iter().all(|(hot, whole)| hot ^ whole == 0xff));
            assert_eq!(CopyKey::found(*hot.on_medium()).as_hot(), blob);
        }
    }
}
