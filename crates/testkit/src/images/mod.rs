//! Generates test images from a seed. The same seed always produces the same bytes.

mod family;
pub mod hostile;
mod layer;
mod tarball;
pub mod tree;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::Path;

pub use tree::{TreeImage, TreeOptions};

use bytes::Bytes;
use pierhead_oci::{Algorithm, Digest, Hasher, MediaType};
use serde_json::{Value, json};

/// A blob of a test image: a config or a layer.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The digest of the blob's bytes.
    pub digest: Digest,
    /// The bytes of the blob.
    pub bytes: Bytes,
    /// The media type in the descriptor of the blob.
    pub media_type: String,
}

/// A document of a test image: a manifest or an index.
#[derive(Clone, Debug)]
pub struct Document {
    /// The digest of the document's bytes.
    pub digest: Digest,
    /// The exact bytes of the document.
    pub bytes: Bytes,
    /// The media type with which the registry serves the document.
    pub media_type: String,
}

/// A test image: all documents and blobs behind a tag.
#[derive(Clone, Debug)]
pub struct Image {
    /// The configs and layers of the image.
    pub blobs: Vec<Blob>,
    /// The manifests and indexes of the image, including the root document.
    pub documents: Vec<Document>,
    /// The digest of the root document, to which a tag points.
    pub root: Digest,
}

/// Returns the SHA-256 digest of `bytes`.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

/// Returns pseudo-random bytes.
pub fn random_bytes(seed: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

/// Writes pseudo-random bytes to a file in chunks, so that a large blob takes no memory. The bytes
/// differ from [`random_bytes`] with the same seed.
///
/// # Errors
/// The write to the file failed.
pub fn write_random(path: &Path, seed: u64, len: u64) -> io::Result<Digest> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut file = std::fs::File::create(path)?;
    let mut piece = vec![0; 128 << 10];
    let mut left = len;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        random.fill(&mut piece[..now]);
        hasher.update(&piece[..now]);
        file.write_all(&piece[..now])?;
        left -= now as u64;
    }
    Ok(hasher.finish())
}

fn descriptor(media_type: &str, digest: &Digest, size: usize) -> Value {
    json!({ "mediaType": media_type, "digest": digest.to_string(), "size": size })
}

/// Creates an index of these descriptors.
pub(crate) fn index(manifests: &[Value]) -> Value {
    json!({ "schemaVersion": 2, "mediaType": MediaType::OCI_INDEX, "manifests": manifests })
}

impl Blob {
    /// Creates a blob of these bytes.
    pub fn new(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: digest_of(&bytes),
            bytes,
            media_type: media_type.to_owned(),
        }
    }

    /// Returns the descriptor of the blob for a manifest.
    pub fn descriptor(&self) -> Value {
        descriptor(&self.media_type, &self.digest, self.bytes.len())
    }
}

impl Document {
    /// Creates a document from JSON. The media type is the type that the JSON states, or else the
    /// type of OCI manifests.
    pub fn new(json: &Value) -> Self {
        let media_type = json["mediaType"]
            .as_str()
            .unwrap_or(MediaType::OCI_MANIFEST);
        Self::raw(media_type, json.to_string())
    }

    /// Creates a document of any bytes.
    pub fn raw(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: digest_of(&bytes),
            bytes,
            media_type: media_type.to_owned(),
        }
    }

    /// Returns the descriptor of the document for an index.
    pub fn descriptor(&self) -> Value {
        descriptor(&self.media_type, &self.digest, self.bytes.len())
    }
}

impl Image {
    /// Returns the document to which a tag points.
    ///
    /// # Panics
    /// Panics if the root is missing, which is possible only in handmade images.
    pub fn root_document(&self) -> &Document {
        self.documents
            .iter()
            .find(|document| document.digest == self.root)
            .expect("the root is a document")
    }

    /// Returns the digests of all blobs and documents of the image.
    pub fn digests(&self) -> impl Iterator<Item = Digest> {
        let blobs = self.blobs.iter().map(|blob| blob.digest);
        blobs.chain(self.documents.iter().map(|document| document.digest))
    }
}
