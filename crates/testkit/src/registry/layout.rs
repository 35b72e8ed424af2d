//! Adds the images of an OCI image layout on disk to the fake registry, for images that are too
//! large for memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use pierhead_oci::{Digest, MediaType};
use serde_json::Value;

use super::FakeRegistry;

/// The annotation in `index.json` with the name of an image.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

impl FakeRegistry {
    /// Adds every image of a layout whose name is `repository:tag`. Returns these names. Blobs stay
    /// in their files. Manifests are read.
    ///
    /// # Errors
    /// A file cannot be read, or the layout violates the image specification.
    pub fn push_layout(&self, folder: &Path) -> io::Result<Vec<String>> {
        let index = parse(&fs::read(folder.join("index.json"))?)?;
        let mut names = Vec::new();
        for entry in index["manifests"].as_array().into_iter().flatten() {
            let Some(name) = entry["annotations"][REF_NAME].as_str() else {
                continue;
            };
            let (repository, tag) = name
                .rsplit_once(':')
                .ok_or_else(|| invalid("a name without a tag"))?;
            let root = descriptor_digest(entry)?;
            Walk {
                registry: self,
                folder,
                repository,
                seen: BTreeSet::new(),
            }
            .document(root, entry)?;
            self.tag(repository, tag, root);
            names.push(name.to_owned());
        }
        Ok(names)
    }
}

struct Walk<'a> {
    registry: &'a FakeRegistry,
    folder: &'a Path,
    repository: &'a str,
    seen: BTreeSet<Digest>,
}

impl Walk<'_> {
    /// Adds a manifest or index with all its descendants.
    fn document(&mut self, digest: Digest, descriptor: &Value) -> io::Result<()> {
        if !self.seen.insert(digest) {
            return Ok(());
        }
        let bytes = fs::read(self.path(&digest))?;
        let document = parse(&bytes)?;
        let media_type = document["mediaType"]
            .as_str()
            .or(descriptor["mediaType"].as_str());
        self.registry.put_manifest_as(
            self.repository,
            digest,
            media_type.unwrap_or(MediaType::OCI_MANIFEST),
            bytes,
        );
        for child in document["manifests"].as_array().into_iter().flatten() {
            self.document(descriptor_digest(child)?, child)?;
        }
        let layers = document["layers"].as_array().into_iter().flatten();
        for blob in layers.chain(document.get("config")) {
            let digest = descriptor_digest(blob)?;
            self.registry
                .put_blob_file(self.repository, digest, &self.path(&digest));
        }
        Ok(())
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder
            .join("blobs")
            .join(digest.algorithm().as_str())
            .join(digest.hex())
    }
}

fn parse(bytes: &[u8]) -> io::Result<Value> {
    Ok(serde_json::from_slice(bytes)?)
}

fn descriptor_digest(descriptor: &Value) -> io::Result<Digest> {
    let digest = descriptor["digest"]
        .as_str()
        .ok_or_else(|| invalid("a descriptor without a digest"))?;
    digest.parse().map_err(io::Error::other)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
