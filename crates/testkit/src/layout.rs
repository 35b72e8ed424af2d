//! Reads and writes OCI image layouts on disk, for tests and for example programs that measure real
//! images.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use pierhead_oci::{Algorithm, Digest, Hasher, MediaType};
use serde_json::{Value, json};

/// The annotation in `index.json` that names an image.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The media type of an image config.
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// An OCI image layout: a folder with `oci-layout`, `index.json` and `blobs/`.
#[derive(Clone, Debug)]
pub struct OciLayout {
    folder: PathBuf,
}

/// A named image in an OCI image layout.
#[derive(Clone, Debug)]
pub struct LayoutImage {
    /// The name in the index of the layout, such as `redis:7`.
    pub name: String,
    /// The digest to which the name refers: that of an image index or a manifest.
    pub root: Digest,
    /// The manifest of each platform; one manifest for an image without an image index.
    pub manifests: Vec<LayoutManifest>,
}

/// A manifest of a [`LayoutImage`].
#[derive(Clone, Debug)]
pub struct LayoutManifest {
    /// The digest of the manifest.
    pub digest: Digest,
    /// `os/architecture` from the image index; empty for an image without an image index.
    pub platform: String,
    /// The image config.
    pub config: LayoutBlob,
    /// The layers, the lowest first.
    pub layers: Vec<LayoutBlob>,
}

/// A blob of a [`LayoutManifest`], as its descriptor states it.
#[derive(Clone, Debug)]
pub struct LayoutBlob {
    /// The media type of the blob.
    pub media_type: String,
    /// The digest of the blob.
    pub digest: Digest,
    /// The size of the blob in bytes.
    pub size: u64,
}

impl LayoutImage {
    /// The manifest for `linux` on this architecture, in the terms of OCI.
    pub fn for_architecture(&self, architecture: &str) -> Option<&LayoutManifest> {
        let wanted = format!("linux/{architecture}");
        let fits = |it: &&LayoutManifest| it.platform.is_empty() || it.platform == wanted;
        self.manifests.iter().find(fits)
    }
}

/// A layer of an image, for programs that read its file.
#[derive(Clone, Debug)]
pub struct LayoutLayer {
    /// The media type of the layer.
    pub media_type: String,
    /// The digest of the uncompressed layer.
    pub diff_id: Digest,
    /// The file of the layer.
    pub path: PathBuf,
}

/// The architecture of this machine in the terms of OCI: `amd64` or `arm64`.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl OciLayout {
    /// Creates the value for the layout in this folder, without reading any file.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Creates a layout without images. Before [`OciLayout::write_index`], the folder has no
    /// `index.json`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder.join("blobs/sha256"))?;
        let marker = json!({ "imageLayoutVersion": "1.0.0" });
        fs::write(folder.join("oci-layout"), marker.to_string())?;
        Ok(Self::new(folder))
    }

    /// The folder of the layout.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The descriptors in `index.json`, with their annotations.
    ///
    /// # Errors
    /// Errors of the file system; an index that violates the image specification.
    pub fn entries(&self) -> io::Result<Vec<Value>> {
        let index = parse(&fs::read(self.folder.join("index.json"))?)?;
        match index {
            Value::Object(mut index) => match index.remove("manifests") {
                Some(Value::Array(entries)) => Ok(entries),
                _ => Err(io::Error::other("an index without manifests")),
            },
            _ => Err(io::Error::other("an index that is no object")),
        }
    }

    /// The name of a descriptor of [`OciLayout::entries`].
    pub fn name_of(entry: &Value) -> Option<&str> {
        entry["annotations"][REF_NAME].as_str()
    }

    /// Adds a blob with the bytes that `write` writes. Returns its descriptor.
    ///
    /// # Errors
    /// The errors of `write` and of the file system.
    #[expect(clippy::disallowed_methods, reason = "a file of a test")]
    pub fn add<E: From<io::Error>>(
        &self,
        media_type: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<Value, E> {
        let staged = self.folder.join("blobs/sha256/staged");
        let mut blob = NewBlob {
            file: BufWriter::with_capacity(1 << 20, File::create(&staged)?),
            hasher: Hasher::new(Algorithm::Sha256),
            size: 0,
        };
        write(&mut blob)?;
        blob.flush()?;
        let digest = blob.hasher.finish();
        fs::rename(&staged, self.path(digest))?;
        Ok(json!({ "mediaType": media_type, "digest": digest, "size": blob.size }))
    }

    /// Adds a manifest, an index or a config. Without a media type of its own, it is a config.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn add_json(&self, document: &Value) -> io::Result<Value> {
        let media_type = document["mediaType"].as_str().unwrap_or(CONFIG);
        self.add(media_type, |blob| {
            blob.write_all(document.to_string().as_bytes())
        })
    }

    /// Writes `index.json` with these names (`repository:tag`) and descriptors.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write_index(&self, images: &[(String, Value)]) -> io::Result<()> {
        let entries = images.iter().map(|(name, descriptor)| {
            let mut entry = descriptor.clone();
            entry["annotations"] = json!({ REF_NAME: name });
            entry
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": MediaType::OCI_INDEX,
            "manifests": entries.collect::<Vec<_>>(),
        });
        fs::write(self.folder.join("index.json"), index.to_string())
    }

    /// Reads all named images of the layout.
    ///
    /// # Errors
    /// Errors of the file system; documents that violate the image specification.
    pub fn images(&self) -> io::Result<Vec<LayoutImage>> {
        let entries = self.entries()?;
        let named = |entry| Some((Self::name_of(entry)?, entry));
        let named = entries.iter().filter_map(named);
        named
            .map(|(name, entry)| self.read_image(name, entry))
            .collect()
    }

    /// Reads the image with this name.
    ///
    /// # Errors
    /// As [`OciLayout::images`]; an unknown name.
    pub fn image(&self, name: &str) -> io::Result<LayoutImage> {
        let entries = self.entries()?;
        let mut entries = entries.iter();
        let entry = entries.find(|entry| Self::name_of(entry) == Some(name));
        let unknown = || io::Error::other(format!("the layout has no image {name}"));
        self.read_image(name, entry.ok_or_else(unknown)?)
    }

    fn read_image(&self, name: &str, entry: &Value) -> io::Result<LayoutImage> {
        let root = self.document(entry)?;
        let manifests = match root["manifests"].as_array() {
            None => vec![self.manifest(entry, String::new())?],
            Some(entries) => {
                let manifests = entries.iter().map(|entry| {
                    let platform = &entry["platform"];
                    let part = |name: &str| platform[name].as_str().unwrap_or_default();
                    let platform = format!("{}/{}", part("os"), part("architecture"));
                    self.manifest(entry, platform)
                });
                manifests.collect::<io::Result<_>>()?
            }
        };
        Ok(LayoutImage {
            name: name.to_owned(),
            root: descriptor_digest(entry)?,
            manifests,
        })
    }

    fn manifest(&self, descriptor: &Value, platform: String) -> io::Result<LayoutManifest> {
        let manifest = self.document(descriptor)?;
        let layers = manifest["layers"].as_array();
        let layers = layers.ok_or_else(|| io::Error::other("a manifest without layers"))?;
        Ok(LayoutManifest {
            digest: descriptor_digest(descriptor)?,
            platform,
            config: blob(&manifest["config"])?,
            layers: layers.iter().map(blob).collect::<io::Result<_>>()?,
        })
    }

    /// Reads the layers of the image with this name for `linux` on this architecture, the lowest
    /// first.
    ///
    /// # Errors
    /// As [`OciLayout::image`] and [`OciLayout::diff_ids`]; no manifest for the architecture.
    pub fn layers(&self, name: &str, architecture: &str) -> io::Result<Vec<LayoutLayer>> {
        let image = self.image(name)?;
        let missing = || io::Error::other(format!("{name} has no manifest for {architecture}"));
        let manifest = image.for_architecture(architecture).ok_or_else(missing)?;
        let layers = manifest.layers.iter().zip(self.diff_ids(manifest)?);
        let layers = layers.map(|(layer, diff_id)| LayoutLayer {
            media_type: layer.media_type.clone(),
            diff_id,
            path: self.path(layer.digest),
        });
        Ok(layers.collect())
    }

    /// Reads the config of a manifest, and returns the diff IDs of its layers.
    ///
    /// # Errors
    /// Errors of the file system; a config without valid diff IDs.
    pub fn diff_ids(&self, manifest: &LayoutManifest) -> io::Result<Vec<Digest>> {
        let config = parse(&fs::read(self.path(manifest.config.digest))?)?;
        let diff_ids = config["rootfs"]["diff_ids"].as_array();
        let diff_ids = diff_ids.ok_or_else(|| io::Error::other("a config without diff IDs"))?;
        diff_ids.iter().map(digest).collect()
    }

    /// Returns the path of the file of a blob or document. `digest`: a [`Digest`], or its text.
    pub fn path(&self, digest: impl Display) -> PathBuf {
        let file = digest.to_string().replacen(':', "/", 1);
        self.folder.join("blobs").join(file)
    }

    /// Reads the document of a descriptor.
    ///
    /// # Errors
    /// Errors of the file system; a document that is not JSON.
    pub fn document(&self, descriptor: &Value) -> io::Result<Value> {
        parse(&fs::read(self.path(digest(&descriptor["digest"])?))?)
    }
}

/// The digest of a descriptor.
///
/// # Errors
/// The descriptor has no valid digest.
pub fn descriptor_digest(descriptor: &Value) -> io::Result<Digest> {
    digest(&descriptor["digest"])
}

/// A blob that is being written.
struct NewBlob {
    file: BufWriter<File>,
    hasher: Hasher,
    size: u64,
}

impl Write for NewBlob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn blob(descriptor: &Value) -> io::Result<LayoutBlob> {
    let size = descriptor["size"].as_u64();
    Ok(LayoutBlob {
        media_type: descriptor["mediaType"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        digest: descriptor_digest(descriptor)?,
        size: size.ok_or_else(|| io::Error::other("a descriptor without a size"))?,
    })
}

fn parse(bytes: &[u8]) -> io::Result<Value> {
    Ok(serde_json::from_slice(bytes)?)
}

fn digest(text: &Value) -> io::Result<Digest> {
    let text = text.as_str().unwrap_or_default();
    text.parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::images::Image;

    #[test]
    fn an_image_is_found_by_its_name_and_platform() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = OciLayout::create(folder.path()).expect("created");
        let image = Image::of_tars("amd64", &[vec![0; 1024], vec![0; 2048]]);
        let (blobs, documents) = (image.blobs.iter(), image.documents.iter());
        let files = blobs.map(|it| (it.digest, &it.bytes));
        for (digest, bytes) in files.chain(documents.map(|it| (it.digest, &it.bytes))) {
            let added = layout.add("any/type", |blob| blob.write_all(bytes));
            let expected = json!({"mediaType": "any/type", "digest": digest, "size": bytes.len()});
            assert_eq!(added.expect("written"), expected);
            assert!(fs::read(layout.path(digest)).is_ok_and(|found| found == *bytes));
        }
        let root = image.root_document().descriptor();
        let mut amd64 = root.clone();
        amd64["platform"] = json!({"os": "linux", "architecture": "amd64"});
        let platforms = json!({"schemaVersion": 2, "mediaType": MediaType::OCI_INDEX,
            "manifests": [amd64]});
        let entry = layout.add_json(&platforms).expect("written");
        assert_eq!(entry["mediaType"], MediaType::OCI_INDEX);
        assert!(layout.entries().is_err(), "a layout without an index");
        let names = [("app:1".to_owned(), root), ("app:2".to_owned(), entry)];
        layout.write_index(&names).expect("written");
        let entries = layout.entries().expect("an index");
        let found: Vec<_> = entries.iter().filter_map(OciLayout::name_of).collect();
        assert_eq!(found, ["app:1", "app:2"]);
        for name in ["app:1", "app:2"] {
            let found = layout.image(name).expect("an image");
            assert_eq!(found.name, name);
            let manifest = found.for_architecture("amd64").expect("a manifest");
            assert_eq!(manifest.digest, image.root, "{name}");
            assert_eq!(manifest.layers.len(), 2);
            let diff_ids = layout.diff_ids(manifest).expect("a config");
            let expected = [1024, 2048].map(|size| crate::images::digest_of(&vec![0; size]));
            assert_eq!(diff_ids, expected);
            for blob in manifest.layers.iter().chain([&manifest.config]) {
                let file = layout.path(blob.digest).metadata().expect("a file");
                assert_eq!(file.len(), blob.size);
            }
        }
        let of_index = layout.image("app:2").expect("an image");
        assert_eq!(of_index.manifests[0].platform, "linux/amd64");
        assert!(of_index.for_architecture("arm64").is_none());
        let all = layout.images().expect("all images");
        let roots: Vec<_> = all.iter().map(|image| image.root).collect();
        assert_eq!(roots, [image.root, of_index.root]);
        assert!(layout.image("app:3").is_err());
    }
}
