//! The type `FileDigest`: the SHA-256 hash of the content of one file.

use std::fmt;

use pierhead_oci::{Algorithm, Digest};

/// SHA-256 of the contents of a file. A `FileDigest` takes 32 bytes, half of the size of a
/// [`Digest`]. The size matters because a TOC (table of contents) has many digests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileDigest([u8; 32]);

impl FileDigest {
    /// Computes the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = Digest::of(Algorithm::Sha256, bytes);
        Self::try_from(&digest).unwrap_or(Self([0; 32]))
    }

    /// Returns the digest that has this raw hash.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the raw hash, which has 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the digest as lower-case hexadecimal text, in new memory.
    pub fn hex(&self) -> String {
        Digest::from(*self).hex()
    }
}

impl From<FileDigest> for Digest {
    fn from(content: FileDigest) -> Self {
        Digest::from_bytes(Algorithm::Sha256, &content.0).expect("a SHA-256 has 32 bytes")
    }
}

/// Fails if the algorithm of the digest is not SHA-256; the error then contains the digest.
impl TryFrom<&Digest> for FileDigest {
    type Error = Digest;

    fn try_from(digest: &Digest) -> Result<Self, Digest> {
        match (digest.algorithm(), digest.as_bytes().try_into()) {
            (Algorithm::Sha256, Ok(bytes)) => Ok(Self(bytes)),
            _ => Err(*digest),
        }
    }
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Digest::from(*self), f)
    }
}

impl fmt::Debug for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_digest_converts_to_a_digest_and_back() {
        let content = FileDigest::of(b"abc");
        let digest = Digest::from(content);
        assert_eq!(
            digest.to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(FileDigest::try_from(&digest), Ok(content));
        let long = Digest::of(Algorithm::Sha512, b"abc");
        assert_eq!(FileDigest::try_from(&long), Err(long));
    }

    #[test]
    fn all_texts_of_a_file_digest_are_those_of_the_digest() {
        let content = FileDigest::from_bytes([0xab; 32]);
        assert_eq!(content.hex(), "ab".repeat(32));
        let text = format!("sha256:{}", content.hex());
        assert_eq!(
            (content.to_string(), format!("{content:?}")),
            (text.clone(), text)
        );
        assert_eq!(content.as_bytes(), &[0xab; 32]);
    }

    #[test]
    fn the_order_is_that_of_the_bytes() {
        let at = |first, last| {
            let mut bytes = [7; 32];
            (bytes[0], bytes[31]) = (first, last);
            FileDigest::from_bytes(bytes)
        };
        let sorted = [at(0, 9), at(1, 0), at(1, 1), at(255, 0)];
        assert!(sorted.is_sorted());
    }
}
