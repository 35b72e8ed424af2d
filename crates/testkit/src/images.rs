//! Images made from a seed: the same seed always gives the same bytes.

use bytes::Bytes;
use pierhead_oci::{Algorithm, Digest, MediaType};
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
        json!({ "mediaType": self.media_type, "digest": self.digest.to_string(), "size": self.bytes.len() })
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
        json!({ "mediaType": self.media_type, "digest": self.digest.to_string(), "size": self.bytes.len() })
    }
}

impl Image {
    /// One manifest, a config, and layers of these sizes in bytes that are random, not tars.
    pub fn random(seed: u64, layers: &[usize]) -> Self {
        let config = Blob::new(
            "application/vnd.oci.image.config.v1+json",
            json!({ "architecture": "amd64", "os": "linux", "seed": seed, "rootfs": { "type": "layers", "diff_ids": [] } }).to_string(),
        );
        let layers: Vec<Blob> = (1..)
            .zip(layers)
            .map(|(nth, &len)| {
                Blob::new(
                    "application/vnd.oci.image.layer.v1.tar+gzip",
                    random_bytes(seed.wrapping_mul(1_000).wrapping_add(nth), len),
                )
            })
            .collect();
        let manifest = Document::new(&json!({
            "schemaVersion": 2,
            "mediaType": MediaType::OCI_MANIFEST,
            "config": config.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
        }));
        let root = manifest.digest;
        Self {
            blobs: std::iter::once(config).chain(layers).collect(),
            documents: vec![manifest],
            root,
        }
    }
}
