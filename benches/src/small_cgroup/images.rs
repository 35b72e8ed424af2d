//! Generates versions of one image: a layer that all versions share, and one layer per version,
//! which is similar to that of the previous version so that pierhead can make patches.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, Result};
use pierhead_oci::{Algorithm, Digest, MediaType};
use serde_json::json;

use crate::registry::{self, Content, Document};

pub(super) const REPOSITORY: &str = "library/app";

/// One version: its manifest and the blobs of the manifest.
pub(super) struct Version {
    pub(super) blobs: Vec<Digest>,
    size: u64,
}

/// All versions, in memory.
pub(super) struct Images {
    pub(super) versions: Vec<Version>,
    manifests: HashMap<String, (Digest, Vec<u8>)>,
    blobs: HashMap<Digest, Arc<Vec<u8>>>,
}

impl Images {
    /// Generates this number of versions.
    pub(super) fn generate(count: u64) -> Result<Self> {
        let mut images = Self {
            versions: Vec::new(),
            manifests: HashMap::new(),
            blobs: HashMap::new(),
        };
        let base = images.put(tar("usr/lib/base", &noise(1, 8 << 20))?);
        for nth in 0..count {
            let mut own = noise(2, 2 << 20);
            own.extend_from_slice(&noise(10 + nth, 1 << 20));
            let own = images.put(tar("usr/bin/app", &own)?);
            let config = json!({ "architecture": "amd64", "os": "linux", "number": nth,
                "rootfs": { "type": "layers", "diff_ids": [base.0, own.0] } });
            let config = images.put(config.to_string().into_bytes());
            let part = |media_type: &str, (digest, size): &(Digest, usize)| json!({ "mediaType": media_type, "digest": digest, "size": size });
            let layer = |it| part("application/vnd.oci.image.layer.v1.tar", it);
            let manifest = json!({ "schemaVersion": 2, "mediaType": MediaType::OCI_MANIFEST,
                "config": part("application/vnd.oci.image.config.v1+json", &config),
                "layers": [layer(&base), layer(&own)] });
            let manifest = manifest.to_string().into_bytes();
            let digest = Digest::of(Algorithm::Sha256, &manifest);
            let document = (digest, manifest);
            images
                .manifests
                .insert(digest.to_string(), document.clone());
            images.manifests.insert(nth.to_string(), document);
            images.versions.push(Version {
                blobs: [&config, &base, &own].map(|it| it.0).to_vec(),
                size: u64::try_from(config.1 + base.1 + own.1)?,
            });
        }
        Ok(images)
    }

    fn put(&mut self, bytes: Vec<u8>) -> (Digest, usize) {
        let (digest, size) = (Digest::of(Algorithm::Sha256, &bytes), bytes.len());
        self.blobs.insert(digest, Arc::new(bytes));
        (digest, size)
    }

    /// Size of a version in bytes.
    pub(super) fn size(&self) -> u64 {
        self.versions.first().map_or(0, |it| it.size)
    }

    /// Serves the images until the process ends.
    pub(super) fn serve(self: &Arc<Self>) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        registry::serve(listener, Arc::clone(self));
        Ok(address)
    }
}

impl Content for Images {
    fn find(&self, path: &str) -> Result<Option<Document<'_>>> {
        let rest = path
            .strip_prefix("/v2/")
            .and_then(|rest| rest.strip_prefix(REPOSITORY))
            .unwrap_or_default();
        let (media_type, digest, bytes) = if let Some(name) = rest.strip_prefix("/manifests/") {
            match self.manifests.get(name) {
                Some((digest, bytes)) => (MediaType::OCI_MANIFEST, *digest, bytes),
                None => return Ok(None),
            }
        } else {
            let digest = rest.strip_prefix("/blobs/").context("another path")?;
            let digest: Digest = digest.parse()?;
            match self.blobs.get(&digest) {
                Some(bytes) => ("application/octet-stream", digest, &**bytes),
                None => return Ok(None),
            }
        };
        Ok(Some(Document {
            media_type: media_type.to_owned(),
            digest,
            size: bytes.len() as u64,
            body: Box::new(move |mut stream, range| {
                let (from, end) = (usize::try_from(range.start)?, usize::try_from(range.end)?);
                Ok(stream.write_all(&bytes[from..end])?)
            }),
        }))
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn tar(name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, bytes)?;
    Ok(tar.into_inner()?)
}
