//! The images of an OCI image layout of testkit, as clients name them: with a repository, a tag and
//! digests as text. The digests of files are computed without the code of pierhead, so that they
//! also check it.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
pub use pierhead_testkit::layout::{LayoutBlob, LayoutImage, OciLayout, architecture};
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
        let images = self.files.images()?;
        images.into_iter().map(|it| self.image(it)).collect()
    }

    fn image(&self, image: LayoutImage) -> Result<Image> {
        let (repository, tag) = image
            .name
            .rsplit_once(':')
            .with_context(|| format!("{:?} has no tag", image.name))?;
        // A name such as `redis` is an official image of Docker Hub.
        let library = if repository.contains('/') {
            ""
        } else {
            "library/"
        };
        let manifests = image.manifests.into_iter().map(|it| Manifest {
            digest: it.digest.to_string(),
            platform: it.platform,
            config: it.config.digest.to_string(),
            layers: it.layers.iter().map(|it| it.digest.to_string()).collect(),
        });
        let mut image = Image {
            repository: format!("{library}{repository}"),
            tag: tag.to_owned(),
            root: image.root.to_string(),
            manifests: manifests.collect(),
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
