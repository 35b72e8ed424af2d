//! The contents of the fake registry: repositories with blobs, manifests and tags.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use pierhead_oci::Digest;
use serde_json::{Value, json};

use super::content::Content;

#[derive(Default)]
pub(super) struct Store {
    repositories: HashMap<String, Repository>,
}

#[derive(Default)]
struct Repository {
    blobs: HashMap<Digest, Content>,
    /// The documents in the order of their digests, so that lists of referrers are deterministic.
    manifests: BTreeMap<Digest, StoredDocument>,
    tags: BTreeMap<String, Digest>,
}

#[derive(Clone)]
pub(super) struct StoredDocument {
    pub(super) digest: Digest,
    pub(super) media_type: String,
    pub(super) bytes: Bytes,
}

impl Store {
    fn repository(&mut self, name: &str) -> &mut Repository {
        self.repositories.entry(name.to_owned()).or_default()
    }

    pub(super) fn put_blob(&mut self, repository: &str, digest: Digest, content: Content) {
        self.repository(repository).blobs.insert(digest, content);
    }

    pub(super) fn put_manifest(
        &mut self,
        repository: &str,
        digest: Digest,
        media_type: &str,
        bytes: Bytes,
    ) {
        let document = StoredDocument {
            digest,
            media_type: media_type.to_owned(),
            bytes,
        };
        self.repository(repository)
            .manifests
            .insert(digest, document);
    }

    pub(super) fn tag(&mut self, repository: &str, tag: &str, digest: Digest) {
        self.repository(repository)
            .tags
            .insert(tag.to_owned(), digest);
    }

    pub(super) fn untag(&mut self, repository: &str, tag: &str) {
        self.repository(repository).tags.remove(tag);
    }

    pub(super) fn remove(&mut self, repository: &str, digest: &Digest) {
        let repository = self.repository(repository);
        repository.blobs.remove(digest);
        repository.manifests.remove(digest);
    }

    pub(super) fn blob(&self, repository: &str, digest: &Digest) -> Option<Content> {
        self.repositories
            .get(repository)?
            .blobs
            .get(digest)
            .cloned()
    }

    /// Returns a blob that any repository has. The CDN needs this, because its URLs name no
    /// repository.
    pub(super) fn any_blob(&self, digest: &Digest) -> Option<Content> {
        self.repositories
            .values()
            .find_map(|repository| repository.blobs.get(digest))
            .cloned()
    }

    /// Returns a manifest by tag or digest.
    pub(super) fn manifest(&self, repository: &str, target: &str) -> Option<StoredDocument> {
        let repository = self.repositories.get(repository)?;
        let digest = target
            .parse()
            .ok()
            .or_else(|| repository.tags.get(target).copied())?;
        repository.manifests.get(&digest).cloned()
    }

    /// Returns all tags of a repository in lexical order, or `None` for an unknown repository.
    pub(super) fn tags(&self, repository: &str) -> Option<Vec<String>> {
        Some(
            self.repositories
                .get(repository)?
                .tags
                .keys()
                .cloned()
                .collect(),
        )
    }

    /// Returns the descriptors of all manifests whose subject is `digest`, in the order of their
    /// digests.
    pub(super) fn referrers(&self, repository: &str, digest: &Digest) -> Vec<Value> {
        let digest = digest.to_string();
        let manifests = self
            .repositories
            .get(repository)
            .map(|repository| repository.manifests.values());
        manifests
            .into_iter()
            .flatten()
            .filter_map(|document| descriptor(document, &digest))
            .collect()
    }
}

/// Returns the referrers descriptor of a manifest, if the manifest refers to `subject`.
fn descriptor(document: &StoredDocument, subject: &str) -> Option<Value> {
    let parsed: Value = serde_json::from_slice(&document.bytes).ok()?;
    (parsed["subject"]["digest"] == subject).then(|| {
        let fallback = &parsed["config"]["mediaType"];
        let artifact_type = Some(&parsed["artifactType"])
            .filter(|kind| kind.is_string())
            .unwrap_or(fallback);
        let mut descriptor = json!({
            "mediaType": document.media_type,
            "digest": document.digest.to_string(),
            "size": document.bytes.len(),
            "artifactType": artifact_type,
        });
        if parsed["annotations"].is_object() {
            descriptor["annotations"] = parsed["annotations"].clone();
        }
        descriptor
    })
}
