//! Generates well-formed test images of every kind: OCI and Docker manifests, indexes, artifacts.

use pierhead_oci::MediaType;
use serde_json::{Value, json};

use super::layer::Layer;
use super::{Blob, Document, Image, random_bytes};

/// The media types of one generation of image formats.
struct MediaTypes {
    manifest: &'static str,
    index: &'static str,
    config: &'static str,
    layer: &'static str,
}

const OCI: MediaTypes = MediaTypes {
    manifest: MediaType::OCI_MANIFEST,
    index: MediaType::OCI_INDEX,
    config: "application/vnd.oci.image.config.v1+json",
    layer: "application/vnd.oci.image.layer.v1.tar+gzip",
};

const DOCKER: MediaTypes = MediaTypes {
    manifest: MediaType::DOCKER_MANIFEST,
    index: MediaType::DOCKER_LIST,
    config: "application/vnd.docker.container.image.v1+json",
    layer: "application/vnd.docker.image.rootfs.diff.tar.gzip",
};

const EMPTY: &str = "application/vnd.oci.empty.v1+json";

impl Image {
    /// Creates an image of one manifest, a config, and layers of these sizes in bytes. The layers
    /// have random bytes, and are not tars.
    pub fn random(seed: u64, layers: &[usize]) -> Self {
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "seed": seed,
            "rootfs": { "type": "layers", "diff_ids": [] },
        });
        let layer = |(nth, &len)| {
            Blob::new(
                OCI.layer,
                random_bytes(seed.wrapping_mul(1000).wrapping_add(nth), len),
            )
        };
        Self::assemble(&OCI, &config, (1..).zip(layers).map(layer).collect())
    }

    /// Creates an image whose layers are tars of some files. The image can be unpacked, but
    /// contains no program.
    pub fn unpackable(seed: u64, layers: u64) -> Self {
        Self::unpackable_as(&OCI, seed, layers, "amd64")
    }

    /// Creates an image like [`unpackable`](Self::unpackable), but with the media types of Docker's
    /// schema 2.
    pub fn docker(seed: u64, layers: u64) -> Self {
        Self::unpackable_as(&DOCKER, seed, layers, "amd64")
    }

    fn unpackable_as(words: &MediaTypes, seed: u64, layers: u64, architecture: &str) -> Self {
        let layers: Vec<Layer> = (0..layers)
            .map(|nth| Layer::new(words.layer, seed, nth, 6))
            .collect();
        let diff_ids: Vec<String> = layers
            .iter()
            .map(|layer| layer.diff_id.to_string())
            .collect();
        let blobs = layers.into_iter().map(|layer| layer.blob).collect();
        Self::of_blobs(
            words,
            &json!(seed.to_string()),
            architecture,
            &diff_ids,
            blobs,
        )
    }

    /// Creates an image of gzip layers with OCI media types.
    pub(super) fn of_layers(architecture: &str, diff_ids: &[String], layers: Vec<Vec<u8>>) -> Self {
        let blobs = layers
            .into_iter()
            .map(|layer| Blob::new(OCI.layer, layer))
            .collect();
        Self::of_blobs(&OCI, &json!("tree"), architecture, diff_ids, blobs)
    }

    fn of_blobs(
        words: &MediaTypes,
        seed: &Value,
        architecture: &str,
        diff_ids: &[String],
        layers: Vec<Blob>,
    ) -> Self {
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": { "Cmd": ["/none"], "Labels": { "seed": seed } },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
            "history": diff_ids.iter().map(|_| json!({ "created_by": "testkit" })).collect::<Vec<_>>(),
        });
        Self::assemble(words, &config, layers)
    }

    fn assemble(words: &MediaTypes, config: &Value, layers: Vec<Blob>) -> Self {
        let config = Blob::new(words.config, config.to_string());
        let manifest = Document::new(&json!({
            "schemaVersion": 2,
            "mediaType": words.manifest,
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

    /// Creates an index with one image for each architecture (a GOARCH value). Each image has an
    /// attestation in BuildKit's form: an entry for the platform `unknown/unknown`.
    pub fn multi_arch(seed: u64, architectures: &[&str]) -> Self {
        Self::index_as(&OCI, seed, architectures, true)
    }

    /// Creates an image like [`multi_arch`](Self::multi_arch), but as a Docker manifest list, which
    /// has no attestations.
    pub fn docker_multi_arch(seed: u64, architectures: &[&str]) -> Self {
        Self::index_as(&DOCKER, seed, architectures, false)
    }

    fn index_as(words: &MediaTypes, seed: u64, architectures: &[&str], attested: bool) -> Self {
        let mut family = Self {
            blobs: Vec::new(),
            documents: Vec::new(),
            root: super::digest_of(b""),
        };
        let mut entries = Vec::new();
        let mut attestations = Vec::new();
        for (nth, architecture) in (0..).zip(architectures) {
            let image = Self::unpackable_as(
                words,
                seed.wrapping_mul(100).wrapping_add(nth),
                2,
                architecture,
            );
            let mut entry = image.root_document().descriptor();
            entry["platform"] = json!({ "os": "linux", "architecture": architecture });
            if *architecture == "arm64" {
                entry["platform"]["variant"] = json!("v8");
            }
            entries.push(entry);
            if attested {
                let attestation = attestation(&image);
                let mut entry = attestation.root_document().descriptor();
                entry["platform"] = json!({ "os": "unknown", "architecture": "unknown" });
                entry["annotations"] = json!({
                    "vnd.docker.reference.type": "attestation-manifest",
                    "vnd.docker.reference.digest": image.root.to_string(),
                });
                attestations.push(entry);
                family.absorb(attestation);
            }
            family.absorb(image);
        }
        entries.extend(attestations);
        let index = Document::new(
            &json!({ "schemaVersion": 2, "mediaType": words.index, "manifests": entries }),
        );
        family.root = index.digest;
        family.documents.push(index);
        family
    }

    /// Creates an artifact of this type that refers to `subject`, such as a signature or an SBOM.
    pub fn artifact(seed: u64, artifact_type: &str, subject: &Document) -> Self {
        let payload = Blob::new("application/octet-stream", random_bytes(seed, 500));
        let config = Blob::new(EMPTY, "{}");
        let manifest = Document::new(&json!({
            "schemaVersion": 2,
            "mediaType": OCI.manifest,
            "artifactType": artifact_type,
            "config": config.descriptor(),
            "layers": [payload.descriptor()],
            "subject": subject.descriptor(),
            "annotations": { "org.example.seed": seed.to_string() },
        }));
        let root = manifest.digest;
        Self {
            blobs: vec![config, payload],
            documents: vec![manifest],
            root,
        }
    }

    fn absorb(&mut self, other: Self) {
        self.blobs.extend(other.blobs);
        self.documents.extend(other.documents);
    }
}

/// Creates an in-toto statement about an image, in the form of an image.
fn attestation(of: &Image) -> Image {
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v0.1",
        "subject": [{ "name": "_", "digest": { "sha256": of.root.hex() } }],
        "predicateType": "https://slsa.dev/provenance/v0.2",
    });
    let statement = Blob::new("application/vnd.in-toto+json", statement.to_string());
    let diff_ids = [statement.digest.to_string()];
    let config = json!({
        "architecture": "unknown",
        "os": "unknown",
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    Image::assemble(&OCI, &config, vec![statement])
}
