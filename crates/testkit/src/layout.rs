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

/// An image in an OCI image layout.
#[derive(Clone, Debug)]
pub struct LayoutImage {
    /// The digest of the image manifest.
    pub manifest: Digest,
    /// The layers, the lowest first.
    pub layers: Vec<LayoutLayer>,
}

/// A layer of a [`LayoutImage`].
#[derive(Clone, Debug)]
pub struct LayoutLayer {
    /// The media type of the layer, as the manifest states it.
    pub media_type: String,
    /// The diff ID of the layer, as the config states it.
    pub diff_id: Digest,
    /// The file of the compressed layer.
    pub path: PathBuf,
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

    /// Reads the image with this name. From an index of several platforms, reads the image for
    /// amd64.
    ///
    /// # Errors
    /// Errors of the file system, and errors for an unknown name or for documents that violate the
    /// image specification.
    pub fn image(&self, name: &str) -> io::Result<LayoutImage> {
        let is_named = |entry: &&Value| Self::name_of(entry) == Some(name);
        let mut descriptor = find(&self.entries()?, is_named)?;
        let mut manifest = self.document(&descriptor)?;
        if let Some(platforms) = manifest["manifests"].as_array() {
            let is_amd64 = |entry: &&Value| entry["platform"]["architecture"] == "amd64";
            descriptor = find(platforms, is_amd64)?;
            manifest = self.document(&descriptor)?;
        }
        let config = self.document(&manifest["config"])?;
        let mut layers = Vec::new();
        let entries = manifest["layers"].as_array().into_iter().flatten();
        for (nth, entry) in entries.enumerate() {
            layers.push(LayoutLayer {
                media_type: entry["mediaType"].as_str().unwrap_or_default().to_owned(),
                diff_id: digest(&config["rootfs"]["diff_ids"][nth])?,
                path: self.path(digest(&entry["digest"])?),
            });
        }
        Ok(LayoutImage {
            manifest: digest(&descriptor["digest"])?,
            layers,
        })
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

fn find(entries: &[Value], is_wanted: impl Fn(&&Value) -> bool) -> io::Result<Value> {
    let found = entries.iter().find(is_wanted);
    found
        .cloned()
        .ok_or_else(|| io::Error::other("the layout has no such image"))
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
            assert_eq!(found.manifest, image.root, "{name}");
            assert_eq!(found.layers.len(), 2);
            assert_eq!(
                found.layers[1].diff_id,
                crate::images::digest_of(&[0; 2048])
            );
            assert!(found.layers.iter().all(|layer| layer.path.is_file()));
        }
        assert!(layout.image("app:3").is_err());
    }
}
