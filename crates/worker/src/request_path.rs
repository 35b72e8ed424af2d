//! Builds the paths of a worker's requests to a pierhead server or to a registry.
//!
//! The query parameter `ns` names the registry of the image, as in containerd's requests to a
//! mirror. pierhead selects the upstream by this parameter. Other registries ignore the parameter,
//! and serve their own image of the same name.

use pierhead_oci::{Digest, Endpoint, Name, Reference, Target};

/// Returns the path of a manifest.
pub(crate) fn manifest(image: &Reference, target: Target) -> String {
    path(image, |name| Endpoint::Manifest { name, target })
}

/// Returns the path of a blob.
pub(crate) fn blob(image: &Reference, digest: Digest) -> String {
    path(image, |name| Endpoint::Blob { name, digest })
}

/// Returns the path of the bundle of an image.
pub(crate) fn bundle(image: &Reference) -> String {
    path(image, |name| Endpoint::Bundle { name })
}

/// Returns the path to which a worker sends the trace of a container start.
pub(crate) fn trace(image: &Reference) -> String {
    path(image, |name| Endpoint::Trace { name })
}

/// Returns the path of one file content of an image.
pub(crate) fn file(image: &Reference, content: Digest, manifest: Digest) -> String {
    path(image, |name| Endpoint::File {
        name,
        digest: content,
        image: manifest,
    })
}

fn path(image: &Reference, endpoint: impl FnOnce(Name) -> Endpoint) -> String {
    let path = endpoint(Name::from(image.repository.clone())).to_path();
    let separator = if path.contains('?') { '&' } else { '?' };
    let registry = image.registry.to_string();
    let ns: String = form_urlencoded::byte_serialize(registry.as_bytes()).collect();
    format!("{path}{separator}ns={ns}")
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    #[test]
    fn every_path_names_the_registry_once() {
        let image: Reference = "registry.example:5000/team/app:1"
            .parse()
            .expect("a reference");
        let digest = Digest::of(Algorithm::Sha256, b"content");
        let ns = "ns=registry.example%3A5000";
        for path in [
            manifest(&image, image.target.clone()),
            blob(&image, digest),
            bundle(&image),
            trace(&image),
            file(&image, digest, digest),
        ] {
            assert!(path.starts_with('/'), "{path}");
            assert_eq!(path.matches(ns).count(), 1, "{path}");
            assert_eq!(path.matches('?').count(), 1, "{path}");
        }
        assert_eq!(
            manifest(&image, image.target.clone()),
            format!("/v2/team/app/manifests/1?{ns}")
        );
    }
}
