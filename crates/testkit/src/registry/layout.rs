//! Adds the images of an OCI image layout on disk to the fake registry, for images that are too
//! large for memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use pierhead_oci::{Digest, MediaType};
use serde_json::Value;

use super::FakeRegistry;
use crate::layout::{OciLayout, descriptor_digest};

impl FakeRegistry {
    /// Adds every image of a layout whose name is `repository:tag`. Returns these names. Manifests
    /// are read into memory, and blobs stay in their files.
    ///
    /// # Errors
    /// A file cannot be read, or the layout violates the image specification.
    pub fn push_layout(&self, folder: &Path) -> io::Result<Vec<String>> {
        let layout = OciLayout::new(folder);
        let mut names = Vec::new();
        for entry in &layout.entries()? {
            let Some(name) = OciLayout::name_of(entry) else {
                continue;
            };
            let (repository, tag) = name
                .rsplit_once(':')
                .ok_or_else(|| invalid("a name without a tag"))?;
            let root = descriptor_digest(entry)?;
            Walk {
                registry: self,
                layout: &layout,
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
    layout: &'a OciLayout,
    repository: &'a str,
    seen: BTreeSet<Digest>,
}

impl Walk<'_> {
    /// Adds a manifest or index, together with all documents and blobs to which it refers.
    fn document(&mut self, digest: Digest, descriptor: &Value) -> io::Result<()> {
        if !self.seen.insert(digest) {
            return Ok(());
        }
        let bytes = fs::read(self.layout.path(digest))?;
        let document: Value = serde_json::from_slice(&bytes)?;
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
                .put_blob_file(self.repository, digest, &self.layout.path(digest));
        }
        Ok(())
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
