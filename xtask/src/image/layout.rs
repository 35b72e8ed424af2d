//! Writes an OCI image layout on disk: blobs by digest, and the index of images.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::layer::Tree;

/// The specification whose media types an image has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Media types of the OCI image specification.
    Oci,
    /// Media types of Docker's image manifest version 2, schema 2.
    Docker,
}

/// How a layer is compressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// gzip with an empty header.
    Gzip,
    /// gzip without compression, for incompressible data.
    GzipStored,
    /// zstd.
    Zstd,
}

/// A layer in a layout.
#[derive(Clone)]
pub(crate) struct Layer {
    /// Digest of the compressed blob.
    digest: String,
    /// Size of the compressed blob in bytes.
    pub(crate) size: u64,
    /// Digest of the uncompressed tar archive, for the image config.
    diff_id: String,
    packing: Packing,
}

/// An OCI image layout in a folder.
pub(crate) struct Layout {
    path: PathBuf,
    manifests: Vec<Value>,
}

impl Layout {
    /// Creates an empty layout in a new folder.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path.join("blobs/sha256"))?;
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(Self {
            path: path.to_owned(),
            manifests: Vec::new(),
        })
    }

    /// Packs `tree` into a layer. The tar archive is streamed and never complete in memory.
    ///
    /// # Errors
    /// The layout cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "a build artifact, which the next run makes again after a crash"
    )]
    pub(crate) fn layer(&self, tree: &Tree, packing: Packing) -> Result<Layer> {
        let staged = self.path.join("staged");
        let mut blob = Hashing::new(BufWriter::new(File::create(&staged)?));
        let diff_id = match packing {
            Packing::Gzip | Packing::GzipStored => {
                let level = match packing {
                    Packing::GzipStored => Compression::none(),
                    _ => Compression::new(6),
                };
                let gzip = GzBuilder::new().write(&mut blob, level);
                let mut archive = Hashing::new(gzip);
                tree.write(&mut archive)?;
                let (gzip, diff_id, _) = archive.finish();
                gzip.finish()?;
                diff_id
            }
            Packing::Zstd => {
                let mut archive = Hashing::new(zstd::Encoder::new(&mut blob, 3)?);
                tree.write(&mut archive)?;
                let (zstd, diff_id, _) = archive.finish();
                zstd.finish()?;
                diff_id
            }
        };
        blob.flush()?;
        let (_, digest, size) = blob.finish();
        fs::rename(&staged, self.blob(&digest))?;
        Ok(Layer {
            digest,
            size,
            diff_id,
            packing,
        })
    }

    /// Stores an image with these layers, and `run` as the execution parameters of its config.
    /// Returns the descriptor of the manifest.
    ///
    /// # Errors
    /// The layout cannot be written.
    pub(crate) fn image(
        &self,
        dialect: Dialect,
        arch: &str,
        layers: &[Layer],
        run: &Value,
    ) -> Result<Value> {
        let created = "2025-01-01T00:00:00Z";
        let config = json!({
            "created": created,
            "architecture": arch,
            "os": "linux",
            "config": run,
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|it| it.diff_id.as_str()).collect::<Vec<_>>(),
            },
            "history": layers
                .iter()
                .map(|_| json!({"created": created, "created_by": "cargo xtask"}))
                .collect::<Vec<_>>(),
        });
        let config = self.put(&config, config_type(dialect))?;
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| {
                json!({
                    "mediaType": layer_type(dialect, layer.packing),
                    "digest": layer.digest,
                    "size": layer.size,
                })
            })
            .collect();
        let media_type = manifest_type(dialect);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config,
            "layers": layers,
        });
        let mut descriptor = self.put(&manifest, media_type)?;
        descriptor["platform"] = json!({"architecture": arch, "os": "linux"});
        Ok(descriptor)
    }

    /// Stores an index of the manifests of several platforms, with annotations if there are any.
    /// Returns the descriptor of the index.
    ///
    /// # Errors
    /// The layout cannot be written.
    pub(crate) fn index(&self, manifests: &[Value], annotations: &Value) -> Result<Value> {
        let media_type = "application/vnd.oci.image.index.v1+json";
        let mut index =
            json!({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests});
        if !annotations.is_null() {
            index["annotations"] = annotations.clone();
        }
        self.put(&index, media_type)
    }

    /// Gives an image or index the name `name:tag`.
    pub(crate) fn name(&mut self, mut descriptor: Value, reference: &str) {
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": reference});
        self.manifests.push(descriptor);
    }

    /// Writes the layout's index. Before this call, the layout contains no names.
    ///
    /// # Errors
    /// The layout cannot be written.
    pub(crate) fn finish(self) -> Result<()> {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": self.manifests,
        });
        fs::write(
            self.path.join("index.json"),
            serde_json::to_vec_pretty(&index)?,
        )?;
        Ok(())
    }

    fn put(&self, document: &Value, media_type: &str) -> Result<Value> {
        let bytes = serde_json::to_vec_pretty(document)?;
        let mut sink = Hashing::new(io::sink());
        sink.write_all(&bytes)?;
        let (_, digest, size) = sink.finish();
        fs::write(self.blob(&digest), &bytes)?;
        Ok(json!({"mediaType": media_type, "digest": digest, "size": size}))
    }

    fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        self.path.join("blobs/sha256").join(hex)
    }
}

fn manifest_type(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Oci => "application/vnd.oci.image.manifest.v1+json",
        Dialect::Docker => "application/vnd.docker.distribution.manifest.v2+json",
    }
}

fn config_type(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Oci => "application/vnd.oci.image.config.v1+json",
        Dialect::Docker => "application/vnd.docker.container.image.v1+json",
    }
}

fn layer_type(dialect: Dialect, packing: Packing) -> &'static str {
    match (dialect, packing) {
        (Dialect::Oci, Packing::Zstd) => "application/vnd.oci.image.layer.v1.tar+zstd",
        (Dialect::Oci, _) => "application/vnd.oci.image.layer.v1.tar+gzip",
        (Dialect::Docker, Packing::Zstd) => "application/vnd.docker.image.rootfs.diff.tar.zstd",
        (Dialect::Docker, _) => "application/vnd.docker.image.rootfs.diff.tar.gzip",
    }
}

/// A writer that counts and hashes the bytes that it passes on.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    count: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            count: 0,
        }
    }

    fn finish(self) -> (W, String, u64) {
        let hex: String = self
            .hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        (self.inner, format!("sha256:{hex}"), self.count)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
