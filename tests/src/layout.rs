//! Reads and writes an OCI image layout on disk, and lists its images with their names, platforms
//! and blobs.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
pub use pierhead_testkit::layout::OciLayout;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The images of an OCI image layout.
#[derive(Clone, Debug)]
pub struct Layout {
    files: OciLayout,
}

/// A named image of a layout, with its manifests, configs and layers.
#[derive(Clone, Debug)]
pub struct Image {
    /// Repository without a registry, such as `library/redis`.
    pub repository: String,
    /// The tag of the image.
    pub tag: String,
    /// Digest of the index or manifest that the tag refers to.
    pub root: String,
    /// The manifest of each platform; one manifest for an image without an index.
    pub manifests: Vec<Manifest>,
    /// Size of all blobs and documents in bytes.
    pub size: u64,
    layout: Layout,
}

/// A manifest of an image.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Digest of the manifest.
    pub digest: String,
    /// `os/architecture` from the index; empty without an index.
    pub platform: String,
    /// Digest of the config, which is docker's image ID.
    pub config: String,
    /// Digests of the layers, lowest first.
    pub layers: Vec<String>,
}

impl Layout {
    /// Creates an empty layout.
    pub fn create(folder: &Path) -> Result<Self> {
        Ok(Self {
            files: OciLayout::create(folder)?,
        })
    }

    /// Opens an existing layout.
    pub fn open(folder: &Path) -> Result<Self> {
        ensure!(
            folder.join("index.json").exists(),
            "{} is not an OCI image layout",
            folder.display()
        );
        Ok(Self {
            files: OciLayout::new(folder),
        })
    }

    /// The folder of the layout.
    pub fn folder(&self) -> &Path {
        self.files.folder()
    }

    /// The path of a blob or document.
    pub fn path(&self, digest: &str) -> PathBuf {
        self.files.path(digest)
    }

    /// Adds a blob with the bytes that `write` writes. Returns its descriptor.
    pub fn add(
        &self,
        media_type: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Value> {
        self.files.add(media_type, write)
    }

    /// Adds a document. The media type is the value of the field `mediaType` of the document.
    pub fn add_json(&self, document: &Value) -> Result<Value> {
        Ok(self.files.add_json(document)?)
    }

    /// Writes `index.json` with these names (`repository:tag`) and descriptors.
    pub fn name(&self, images: &[(String, Value)]) -> Result<()> {
        Ok(self.files.write_index(images)?)
    }

    /// All named images of the layout.
    pub fn images(&self) -> Result<Vec<Image>> {
        let entries = self.files.entries()?;
        entries.iter().map(|entry| self.image(entry)).collect()
    }

    fn image(&self, entry: &Value) -> Result<Image> {
        let name = OciLayout::name_of(entry).context("an entry without a name")?;
        let (repository, tag) = name
            .rsplit_once(':')
            .with_context(|| format!("{name:?} has no tag"))?;
        // A name such as `redis` is an official image of Docker Hub.
        let library = if repository.contains('/') {
            ""
        } else {
            "library/"
        };
        let root = text(&entry["digest"])?;
        let document = self.json(&root)?;
        let manifests = match document["manifests"].as_array() {
            None => vec![self.manifest(&root, String::new())?],
            Some(entries) => entries
                .iter()
                .map(|entry| {
                    let platform = &entry["platform"];
                    let platform = format!(
                        "{}/{}",
                        text(&platform["os"])?,
                        text(&platform["architecture"])?
                    );
                    self.manifest(&text(&entry["digest"])?, platform)
                })
                .collect::<Result<_>>()?,
        };
        let mut image = Image {
            repository: format!("{library}{repository}"),
            tag: tag.to_owned(),
            root,
            manifests,
            size: 0,
            layout: self.clone(),
        };
        for digest in image.documents().iter().chain(&image.blobs()) {
            image.size += self
                .path(digest)
                .metadata()
                .with_context(|| digest.clone())?
                .len();
        }
        Ok(image)
    }

    fn manifest(&self, digest: &str, platform: String) -> Result<Manifest> {
        let manifest = self.json(digest)?;
        let layers = manifest["layers"]
            .as_array()
            .context("a manifest without layers")?;
        Ok(Manifest {
            digest: digest.to_owned(),
            platform,
            config: text(&manifest["config"]["digest"])?,
            layers: layers
                .iter()
                .map(|layer| text(&layer["digest"]))
                .collect::<Result<_>>()?,
        })
    }

    fn json(&self, digest: &str) -> Result<Value> {
        let bytes = fs::read(self.path(digest)).with_context(|| digest.to_owned())?;
        serde_json::from_slice(&bytes).with_context(|| digest.to_owned())
    }
}

impl Image {
    /// `repository:tag`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }

    /// The manifest for the architecture of this machine.
    pub fn for_this_platform(&self) -> Result<&Manifest> {
        let here = format!("linux/{}", architecture());
        let fits = |manifest: &&Manifest| manifest.platform.is_empty() || manifest.platform == here;
        self.manifests
            .iter()
            .find(fits)
            .with_context(|| format!("{} is not for {here}", self.name()))
    }

    /// Digests of configs and layers of all platforms, each once.
    pub fn blobs(&self) -> Vec<String> {
        let mut blobs: Vec<String> = self.manifests.iter().flat_map(Manifest::blobs).collect();
        blobs.sort_unstable();
        blobs.dedup();
        blobs
    }

    /// Digests of the index and manifests.
    pub fn documents(&self) -> Vec<String> {
        let mut documents: Vec<String> =
            self.manifests.iter().map(|it| it.digest.clone()).collect();
        if !documents.contains(&self.root) {
            documents.push(self.root.clone());
        }
        documents
    }

    /// The layout that contains the image.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The path of a blob or document of the image.
    pub fn file(&self, digest: &str) -> PathBuf {
        self.layout.path(digest)
    }
}

impl Manifest {
    /// Digests of the config and the layers, each once.
    pub fn blobs(&self) -> Vec<String> {
        let mut blobs = self.layers.clone();
        blobs.push(self.config.clone());
        blobs.sort_unstable();
        blobs.dedup();
        blobs
    }
}

/// The architecture of this machine in the terms of OCI: `amd64` or `arm64`.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An incremental SHA-256 hash.
#[derive(Default)]
pub struct Hash(Sha256);

impl Hash {
    /// Adds bytes to the hash.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes: `sha256:…`.
    pub fn digest(self) -> String {
        let hex: String = self
            .0
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("sha256:{hex}")
    }
}

/// The digest of a file: `sha256:…`.
pub fn digest_of(path: &Path) -> Result<String> {
    let mut hash = Hash::default();
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = io::Read::read(&mut file, &mut buffer)?;
        if read == 0 {
            return Ok(hash.digest());
        }
        hash.update(&buffer[..read]);
    }
}

fn text(value: &Value) -> Result<String> {
    Ok(value
        .as_str()
        .with_context(|| format!("not a string: {value}"))?
        .to_owned())
}
