//! Images made from a seed: the same seed always gives the same bytes.

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

/// A config or layer.
#[derive(Clone, Debug)]
pub struct Blob {
    /// Of the bytes.
    pub digest: Digest,
    /// The content.
    pub bytes: Bytes,
    /// What the descriptor says it is.
    pub media_type: String,
}

/// A manifest or index.
#[derive(Clone, Debug)]
pub struct Document {
    /// Of the bytes.
    pub digest: Digest,
    /// The exact bytes.
    pub bytes: Bytes,
    /// What the registry shall call it.
    pub media_type: String,
}

/// All that a tag leads to.
#[derive(Clone, Debug)]
pub struct Image {
    /// Configs and layers.
    pub blobs: Vec<Blob>,
    /// Manifests and indexes, the root among them.
    pub documents: Vec<Document>,
    /// What a tag points to.
    pub root: Digest,
}

/// The sha256 of `bytes`.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

/// Bytes without any structure.
pub fn random_bytes(seed: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

/// Writes such bytes to a file, in pieces, so that a large blob costs no memory. They differ from
/// those of [`random_bytes`] for the same seed.
///
/// # Errors
/// Those of the file.
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

/// An index of these descriptors.
pub(crate) fn index(manifests: &[Value]) -> Value {
    json!({ "schemaVersion": 2, "mediaType": MediaType::OCI_INDEX, "manifests": manifests })
}

impl Blob {
    /// With its digest.
    pub fn new(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: digest_of(&bytes),
            bytes,
            media_type: media_type.to_owned(),
        }
    }

    /// As a manifest refers to it.
    pub fn descriptor(&self) -> Value {
        descriptor(&self.media_type, &self.digest, self.bytes.len())
    }
}

impl Document {
    /// From JSON, with the media type that it states itself, else the OCI manifest's.
    pub fn new(json: &Value) -> Self {
        let media_type = json["mediaType"]
            .as_str()
            .unwrap_or(MediaType::OCI_MANIFEST);
        Self::raw(media_type, json.to_string())
    }

    /// From any bytes.
    pub fn raw(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: digest_of(&bytes),
            bytes,
            media_type: media_type.to_owned(),
        }
    }

    /// As an index refers to it.
    pub fn descriptor(&self) -> Value {
        descriptor(&self.media_type, &self.digest, self.bytes.len())
    }
}

impl Image {
    /// The document that a tag points to.
    ///
    /// # Panics
    /// When it is not among the documents, which only hand-made images can reach.
    pub fn root_document(&self) -> &Document {
        self.documents
            .iter()
            .find(|document| document.digest == self.root)
            .expect("the root is a document")
    }

    /// The digests of all blobs and documents.
    pub fn digests(&self) -> impl Iterator<Item = Digest> {
        let blobs = self.blobs.iter().map(|blob| blob.digest);
        blobs.chain(self.documents.iter().map(|document| document.digest))
    }
}
