//! Opens the OCI image layout of a benchmark, or generates one, and serves it as a registry. testkit
//! reads and writes the layout.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_tests::layout::{LayoutBlob, LayoutImage, OciLayout, architecture};
use serde_json::{Value, json};

use crate::registry::{self, Content, Document};

/// A folder with `index.json` and blobs.
#[derive(Clone)]
pub(crate) struct Layout {
    files: OciLayout,
    /// The image of each `name:tag`.
    images: BTreeMap<String, LayoutImage>,
}

/// An image of a layout, for this machine.
pub(crate) struct Image {
    /// The digest of the tag: that of the manifest, or of an index that contains it.
    pub(crate) root: Digest,
    /// Digest of the manifest for this platform.
    pub(crate) manifest: Digest,
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
}

/// A blob of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

impl Image {
    /// Size of the compressed layers in bytes.
    pub(crate) fn compressed(&self) -> u64 {
        self.layers.iter().map(|it| it.size).sum()
    }
}

impl From<&LayoutBlob> for Blob {
    fn from(blob: &LayoutBlob) -> Self {
        Self {
            digest: blob.digest,
            size: blob.size,
        }
    }
}

impl Layout {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let files = OciLayout::new(folder);
        let images = files.images();
        let images = images.with_context(|| format!("{} is not a layout", folder.display()))?;
        let named = images.into_iter().map(|image| {
            // The registry of the name is ignored.
            let name = image.name.rsplit('/').next().unwrap_or_default().to_owned();
            (name, image)
        });
        let images = named.collect();
        Ok(Self { files, images })
    }

    /// The names of all images.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.images.keys().map(String::as_str)
    }

    pub(crate) fn image(&self, name: &str) -> Result<Image> {
        let image = self.images.get(name);
        let image = image.with_context(|| format!("no {name} in the layout"))?;
        let manifest = image.for_architecture(architecture());
        let manifest = manifest.context("not for this machine")?;
        Ok(Image {
            root: image.root,
            manifest: manifest.digest,
            config: (&manifest.config).into(),
            layers: manifest.layers.iter().map(Blob::from).collect(),
        })
    }

    /// The path of a blob or manifest.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.files.path(digest)
    }

    fn json(&self, digest: &Digest) -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.blob(digest))?)?)
    }

    /// For each number, generates two versions of an image with that number of small files. An
    /// update changes one file in a hundred.
    pub(crate) fn generate(folder: &Path, files: &[u32]) -> Result<Self> {
        let mut writer = Writer::new(folder)?;
        for (files, version) in files.iter().flat_map(|&files| [(files, 1), (files, 2)]) {
            let tar = tar(files, version)?;
            writer.image(
                &format!("files{files}:{version}"),
                &[tar],
                Compression::fast(),
            )?;
        }
        writer.finish()
    }

    /// Generates images of incompressible layers with these sizes in bytes.
    pub(crate) fn noise(folder: &Path, images: &[(&str, &[usize])]) -> Result<Self> {
        let mut writer = Writer::new(folder)?;
        let mut random = fastrand::Rng::with_seed(7);
        for (name, sizes) in images {
            let layers = sizes.iter().map(|&size| {
                let mut content = vec![0; size];
                random.fill(&mut content);
                let mut tar = tar::Builder::new(Vec::new());
                append(&mut tar, tar::EntryType::Regular, "content", &content)?;
                Ok(tar.into_inner()?)
            });
            let layers = layers.collect::<Result<Vec<_>>>()?;
            writer.image(name, &layers, Compression::none())?;
        }
        writer.finish()
    }

    /// Serves `library/<name>` at full speed until the process ends.
    pub(crate) fn serve(&self, listener: TcpListener) {
        registry::serve(listener, Arc::new(self.clone()));
    }

    fn named(&self, path: &str) -> Option<(Digest, bool)> {
        let rest = path.strip_prefix("/v2/library/")?;
        if let Some((_, digest)) = rest.split_once("/blobs/") {
            let digest: Digest = digest.parse().ok()?;
            return self.blob(&digest).exists().then_some((digest, false));
        }
        let (name, reference) = rest.split_once("/manifests/")?;
        let digest = match reference.parse() {
            Ok(digest) => digest,
            Err(_) => self.images.get(&format!("{name}:{reference}"))?.root,
        };
        self.blob(&digest).exists().then_some((digest, true))
    }
}

impl Content for Layout {
    fn find(&self, path: &str) -> Result<Option<Document<'_>>> {
        let Some((digest, is_manifest)) = self.named(path) else {
            return Ok(None);
        };
        let media_type = match is_manifest {
            true => {
                let document = self.json(&digest)?;
                let media_type = document["mediaType"].as_str();
                media_type.unwrap_or(MediaType::OCI_MANIFEST).to_owned()
            }
            false => "application/octet-stream".to_owned(),
        };
        let mut file = File::open(self.blob(&digest))?;
        Ok(Some(Document {
            media_type,
            digest,
            size: file.metadata()?.len(),
            body: Box::new(move |mut stream, range| {
                file.seek(SeekFrom::Start(range.start))?;
                io::copy(&mut file.take(range.end - range.start), &mut stream)?;
                Ok(())
            }),
        }))
    }
}

/// Writes a new layout.
struct Writer {
    files: OciLayout,
    images: Vec<(String, Value)>,
}

impl Writer {
    fn new(folder: &Path) -> Result<Self> {
        Ok(Self {
            files: OciLayout::create(folder)?,
            images: Vec::new(),
        })
    }

    /// Adds an image of these tars.
    fn image(&mut self, name: &str, tars: &[Vec<u8>], level: Compression) -> Result<()> {
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for tar in tars {
            let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
            let layer = self.files.add(media_type, |blob| {
                let mut gzip = GzEncoder::new(blob, level);
                gzip.write_all(tar)?;
                gzip.finish().map(drop)
            });
            layers.push(layer?);
            diff_ids.push(Digest::of(Algorithm::Sha256, tar));
        }
        let config = json!({ "architecture": architecture(), "os": "linux",
            "config": { "Entrypoint": ["/folder-0/file-0"] },
            "rootfs": { "type": "layers", "diff_ids": diff_ids } });
        let config = self.files.add_json(&config)?;
        let manifest = json!({ "schemaVersion": 2, "mediaType": MediaType::OCI_MANIFEST,
            "config": config, "layers": layers });
        let entry = self.files.add_json(&manifest)?;
        self.images.push((name.to_owned(), entry));
        Ok(())
    }

    fn finish(self) -> Result<Layout> {
        self.files.write_index(&self.images)?;
        Layout::open(self.files.folder())
    }
}

/// Appends a file. The result depends only on the contents.
fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    kind: tar::EntryType,
    path: &str,
    content: &[u8],
) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_mtime(1_700_000_000);
    header.set_size(content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

/// A tar of files with a few hundred bytes, a hundred per folder.
fn tar(files: u32, version: u32) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut put = |kind, path: &str, content: &[u8]| append(&mut tar, kind, path, content);
    for file in 0..files {
        let folder = format!("folder-{}", file / 100);
        if file % 100 == 0 {
            put(tar::EntryType::Directory, &format!("{folder}/"), b"")?;
        }
        let made_for = if file % 100 == 7 { version } else { 0 };
        let mut random = fastrand::Rng::with_seed(u64::from(file) << 8 | u64::from(made_for));
        let words: Vec<String> = (0..random.usize(1..40))
            .map(|_| format!("word{}", random.u16(..)))
            .collect();
        put(
            tar::EntryType::Regular,
            &format!("{folder}/file-{file}"),
            format!("{file} {}\n", words.join(" ")).as_bytes(),
        )?;
    }
    Ok(tar.into_inner()?)
}
