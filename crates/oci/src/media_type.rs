//! Media types such as `application/vnd.oci.image.manifest.v1+json`: the type `MediaType`, and
//! constants for the media types of manifests and indexes.

use std::fmt;
use std::sync::Arc;

/// A media type in the exact spelling of its sender, at most 255 bytes. pierhead sends this
/// spelling unchanged to clients.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MediaType(Arc<str>);

impl MediaType {
    /// The media type of an OCI manifest: `application/vnd.oci.image.manifest.v1+json`
    pub const OCI_MANIFEST: &'static str = "application/vnd.oci.image.manifest.v1+json";
    /// The media type of an OCI index: `application/vnd.oci.image.index.v1+json`
    pub const OCI_INDEX: &'static str = "application/vnd.oci.image.index.v1+json";
    /// The media type of a Docker manifest: `application/vnd.docker.distribution.manifest.v2+json`
    pub const DOCKER_MANIFEST: &'static str =
        "application/vnd.docker.distribution.manifest.v2+json";
    /// The media type of a Docker manifest list:
    /// `application/vnd.docker.distribution.manifest.list.v2+json`
    pub const DOCKER_LIST: &'static str =
        "application/vnd.docker.distribution.manifest.list.v2+json";

    /// Creates a media type from a `Content-Type` value. `None` if the text is empty, is longer
    /// than 255 bytes, or has characters other than printable ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let fits =
            (1..=255).contains(&text.len()) && text.bytes().all(|b| (b' '..=b'~').contains(&b));
        fits.then(|| Self(text.into()))
    }

    /// Returns the exact text of the media type.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the type without its parameters: `a/b` of `a/b; charset=utf-8`.
    pub fn essence(&self) -> &str {
        self.0.split(';').next().unwrap_or_default().trim()
    }

    /// Whether this is the media type of an OCI or Docker manifest.
    pub fn is_manifest(&self) -> bool {
        [Self::OCI_MANIFEST, Self::DOCKER_MANIFEST]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(self.essence()))
    }

    /// Whether this is the media type of an OCI index or of a Docker manifest list.
    pub fn is_index(&self) -> bool {
        [Self::OCI_INDEX, Self::DOCKER_LIST]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(self.essence()))
    }
}

impl fmt::Display for MediaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
