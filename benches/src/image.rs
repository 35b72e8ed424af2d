//! The image of the pull benchmarks: generated, or the largest blob of an OCI layout.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pierhead_oci::{Algorithm, Digest, Hasher, MediaType};

/// The folder of the blobs (files named by hex digests), and the requested manifest and blob.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) blobs: PathBuf,
    pub(crate) manifest: Digest,
    pub(crate) blob: Digest,
    pub(crate) blob_size: u64,
}

/// The repository name at every target.
pub(crate) const REPOSITORY: &str = "bench/image";

impl Image {
    /// Generates an image with one layer of pseudo-random bytes.
    #[expect(
        clippy::disallowed_methods,
        reason = "a build artifact, which the next run makes again after a crash"
    )]
    pub(crate) fn generate(folder: &Path, size: u64) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut random = fastrand::Rng::with_seed(7);
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let landing = folder.join("landing");
        let mut file = fs::File::create(&landing)?;
        let mut chunk = vec![0; 1 << 20];
        let mut left = size;
        while left > 0 {
            let n = usize::try_from(left.min(chunk.len() as u64))?;
            random.fill(&mut chunk[..n]);
            hasher.update(&chunk[..n]);
            file.write_all(&chunk[..n])?;
            left -= n as u64;
        }
        let blob = hasher.finish();
        fs::rename(&landing, folder.join(blob.hex()))?;
        let put = |bytes: &[u8]| -> Result<Digest> {
            let digest = Digest::of(Algorithm::Sha256, bytes);
            fs::write(folder.join(digest.hex()), bytes)?;
            Ok(digest)
        };
        let config =
            br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": MediaType::OCI_MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": put(config)?, "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": blob, "size": size}],
        });
        let manifest = put(manifest.to_string().as_bytes())?;
        Ok(Self {
            blobs: folder.to_owned(),
            manifest,
            blob,
            blob_size: size,
        })
    }

    /// Uses the largest blob of a layout, and any image manifest in it.
    pub(crate) fn from_layout(layout: &Path) -> Result<Self> {
        let blobs = layout.join("blobs/sha256");
        let mut largest: Option<(u64, Digest)> = None;
        let mut manifest = None;
        for entry in fs::read_dir(&blobs).with_context(|| format!("reading {}", blobs.display()))? {
            let entry = entry?;
            let Ok(digest) =
                format!("sha256:{}", entry.file_name().to_string_lossy()).parse::<Digest>()
            else {
                continue;
            };
            let size = entry.metadata()?.len();
            if size < 1 << 20
                && fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("\"layers\""))
            {
                manifest = Some(digest);
            }
            largest = largest.max(Some((size, digest)));
        }
        let (blob_size, blob) = largest.context("the layout has no blobs")?;
        Ok(Self {
            blobs,
            manifest: manifest.context("the layout has no image manifest")?,
            blob,
            blob_size,
        })
    }

    pub(crate) fn blob_path(&self) -> String {
        format!("/v2/{REPOSITORY}/blobs/{}", self.blob)
    }

    pub(crate) fn manifest_path(&self) -> String {
        format!("/v2/{REPOSITORY}/manifests/{}", self.manifest)
    }

    pub(crate) fn tag_path(&self) -> String {
        format!("/v2/{REPOSITORY}/manifests/v1")
    }

    /// The digest and the content type for a path of the API.
    pub(crate) fn find(&self, path: &str) -> Option<(Digest, &'static str)> {
        let rest = path.strip_prefix("/v2/")?.strip_prefix(REPOSITORY)?;
        if let Some(reference) = rest.strip_prefix("/manifests/") {
            let digest = if reference == "v1" {
                self.manifest
            } else {
                reference.parse().ok()?
            };
            return Some((digest, MediaType::OCI_MANIFEST));
        }
        let digest = rest.strip_prefix("/blobs/")?.parse().ok()?;
        Some((digest, "application/octet-stream"))
    }
}
