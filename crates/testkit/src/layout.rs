//! Reads images from an OCI image layout on disk, for example programs that measure real images.

use std::path::{Path, PathBuf};
use std::{fs, io};

use pierhead_oci::Digest;
use serde_json::Value;

/// The annotation in `index.json` with the name of an image.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// An OCI image layout: a folder with `index.json` and `blobs/`.
#[derive(Clone, Debug)]
pub struct OciLayout {
    folder: PathBuf,
}

/// An image of a layout.
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
    /// The media type in the manifest.
    pub media_type: String,
    /// The diff ID in the config.
    pub diff_id: Digest,
    /// The file of the compressed layer.
    pub path: PathBuf,
}

impl OciLayout {
    /// Names the folder of a layout. Reads nothing.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Reads the image with this name. From an index of several platforms, reads the image for
    /// amd64.
    ///
    /// # Errors
    /// Errors of the file system; an unknown name; documents that violate the image specification.
    pub fn image(&self, name: &str) -> io::Result<LayoutImage> {
        let index = parse(&fs::read(self.folder.join("index.json"))?)?;
        let is_named = |entry: &&Value| entry["annotations"][REF_NAME] == name;
        let mut descriptor = find(&index["manifests"], is_named)?;
        let mut manifest = self.document(&descriptor)?;
        if manifest["manifests"].is_array() {
            let is_amd64 = |entry: &&Value| entry["platform"]["architecture"] == "amd64";
            descriptor = find(&manifest["manifests"], is_amd64)?;
            manifest = self.document(&descriptor)?;
        }
        let config = self.document(&manifest["config"])?;
        let mut layers = Vec::new();
        let entries = manifest["layers"].as_array().into_iter().flatten();
        for (nth, entry) in entries.enumerate() {
            layers.push(LayoutLayer {
                media_type: entry["mediaType"].as_str().unwrap_or_default().to_owned(),
                diff_id: digest(&config["rootfs"]["diff_ids"][nth])?,
                path: self.path(&digest(&entry["digest"])?),
            });
        }
        Ok(LayoutImage {
            manifest: digest(&descriptor["digest"])?,
            layers,
        })
    }

    /// Returns the path of the file of a blob.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        let blobs = self.folder.join("blobs");
        blobs.join(digest.algorithm().as_str()).join(digest.hex())
    }

    fn document(&self, descriptor: &Value) -> io::Result<Value> {
        parse(&fs::read(self.path(&digest(&descriptor["digest"])?))?)
    }
}

fn find(entries: &Value, is_wanted: impl Fn(&&Value) -> bool) -> io::Result<Value> {
    let found = entries.as_array().into_iter().flatten().find(is_wanted);
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
        let layout = OciLayout::new(folder.path());
        fs::create_dir_all(folder.path().join("blobs/sha256")).expect("created");
        let image = Image::of_tars("amd64", &[vec![0; 1024], vec![0; 2048]]);
        let (blobs, documents) = (image.blobs.iter(), image.documents.iter());
        let files = blobs.map(|it| (it.digest, &it.bytes));
        for (digest, bytes) in files.chain(documents.map(|it| (it.digest, &it.bytes))) {
            fs::write(layout.path(&digest), bytes).expect("written");
        }
        let root = image.root_document().descriptor();
        let named = |mut entry: Value, name: &str| {
            entry["annotations"] = json!({ REF_NAME: name });
            entry
        };
        let mut amd64 = root.clone();
        amd64["platform"] = json!({"os": "linux", "architecture": "amd64"});
        let platforms = json!({"schemaVersion": 2, "manifests": [amd64]}).to_string();
        let platforms_digest = crate::images::digest_of(platforms.as_bytes());
        fs::write(layout.path(&platforms_digest), &platforms).expect("written");
        let entry = json!({"digest": platforms_digest.to_string(), "size": platforms.len()});
        let index = json!({"manifests": [named(root, "app:1"), named(entry, "app:2")]});
        fs::write(folder.path().join("index.json"), index.to_string()).expect("written");
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
