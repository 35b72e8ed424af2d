//! The images of the tier benchmarks, in memory: from an OCI layout, or generated.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use bytes::Bytes;
use pierhead_oci::{Algorithm, Digest, MediaType};
use serde_json::{Value, json};

use crate::layout::Layout;

/// A blob with its digest.
pub(super) type Blob = (Digest, Bytes);

/// An image: its blobs in the order of a pull.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) name: String,
    pub(super) manifest: Blob,
    pub(super) config: Blob,
    pub(super) layers: Vec<Blob>,
}

impl Image {
    /// Size of the layers in bytes.
    pub(super) fn size(&self) -> u64 {
        self.layers
            .iter()
            .map(|(_, bytes)| bytes.len() as u64)
            .sum()
    }

    /// The blobs that a pull fetches after the manifest.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Blob> {
        std::iter::once(&self.config).chain(&self.layers)
    }
}

/// The single-platform images of a layout with at most `most` bytes of layers, by name.
pub(super) fn from_layout(folder: &Path, most: u64) -> Result<Vec<Image>> {
    let layout = Layout::open(folder)?;
    let mut blobs: HashMap<Digest, Bytes> = HashMap::new();
    let mut read = |digest: Digest| -> Result<Blob> {
        let bytes = match blobs.get(&digest) {
            Some(bytes) => bytes.clone(),
            None => fs::read(layout.blob(&digest))?.into(),
        };
        blobs.insert(digest, bytes.clone());
        Ok((digest, bytes))
    };
    let mut images = Vec::new();
    for name in layout.names() {
        let image = match layout.image(name) {
            Ok(image) if image.root == image.manifest && image.compressed() <= most => image,
            _ => continue,
        };
        images.push(Image {
            name: name.to_owned(),
            manifest: read(image.manifest)?,
            config: read(image.config.digest)?,
            layers: image
                .layers
                .iter()
                .map(|it| read(it.digest))
                .collect::<Result<_>>()?,
        });
    }
    ensure!(!images.is_empty(), "no image of at most {most} bytes");
    Ok(images)
}

/// Generates applications on a few bases, with sizes like in public registries: a base of 27 MB, an
/// engine, an application.
pub(super) fn generate(count: u32) -> Vec<Image> {
    let mut random = fastrand::Rng::with_seed(6);
    let mut noise = |bytes: usize| {
        let mut content = vec![0; bytes];
        random.fill(&mut content);
        (
            Digest::of(Algorithm::Sha256, &content),
            Bytes::from(content),
        )
    };
    let bases = [noise(27_300_000), noise(28_900_000)];
    let engines = [11_000_000, 33_500_000, 67_000_000, 7_200_000].map(&mut noise);
    let steps = [
        "ADD file:1 in /",
        "RUN apt-get install server",
        "COPY app /app",
    ];
    let history: Vec<_> = steps.iter().map(|it| json!({ "created_by": it })).collect();
    let sizes = [2_000_000, 19_000_000, 45_000_000, 300_000, 15_000_000];
    let image = |number: u32| {
        let nth = number as usize;
        let layers = vec![
            bases[nth % 5 / 4].clone(),
            engines[nth % engines.len()].clone(),
            noise(sizes[nth % sizes.len()]),
        ];
        let put = |document: Value| {
            let bytes = Bytes::from(document.to_string());
            (Digest::of(Algorithm::Sha256, &bytes), bytes)
        };
        let config = put(
            json!({ "architecture": "amd64", "os": "linux", "number": number,
            "history": history, "config": { "Entrypoint": ["/usr/bin/server"] } }),
        );
        let part = |media_type: &str, (digest, bytes): &Blob| json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
        let all: Vec<_> = layers
            .iter()
            .map(|it| part("application/vnd.oci.image.layer.v1.tar+gzip", it))
            .collect();
        Image {
            name: format!("image:{number}"),
            manifest: put(
                json!({ "schemaVersion": 2, "mediaType": MediaType::OCI_MANIFEST,
                "config": part("application/vnd.oci.image.config.v1+json", &config), "layers": all }),
            ),
            config,
            layers,
        }
    };
    (0..count).map(image).collect()
}
