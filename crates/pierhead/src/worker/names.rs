//! Paths of what is asked for.
//!
//! The registry is named by `ns`, as containerd names it to a mirror: pierhead understands that, and a plain registry,
//! which is asked for what it has under the same name, does not mind.

use pierhead_oci::{Digest, Endpoint, Name, Platform, Reference, Target};

/// Of a manifest.
pub(super) fn manifest(image: &Reference, target: Target) -> String {
    path(image, |name| Endpoint::Manifest { name, target })
}

/// Of a blob.
pub(super) fn blob(image: &Reference, digest: Digest) -> String {
    path(image, |name| Endpoint::Blob { name, digest })
}

/// Where bundles are asked for.
pub(super) fn bundle(image: &Reference) -> String {
    path(image, |name| Endpoint::Bundle { name })
}

/// Where the order of a start is sent.
pub(super) fn trace(image: &Reference) -> String {
    path(image, |name| Endpoint::Trace { name })
}

/// Of one content of an image, by its manifest.
pub(super) fn file(image: &Reference, content: Digest, manifest: Digest) -> String {
    path(image, |name| Endpoint::File {
        name,
        digest: content,
        image: manifest,
    })
}

fn path(image: &Reference, endpoint: impl FnOnce(Name) -> Endpoint) -> String {
    let path = endpoint(Name::from(image.repository.clone())).to_path();
    let mark = if path.contains('?') { '&' } else { '?' };
    let registry = image.registry.to_string();
    let ns: String = form_urlencoded::byte_serialize(registry.as_bytes()).collect();
    format!("{path}{mark}ns={ns}")
}

/// The one that was named, or else this machine's.
pub(super) fn platform(named: Option<&Platform>) -> Platform {
    named.cloned().unwrap_or_else(this_machine)
}

/// The platform that images are run for here.
fn this_machine() -> Platform {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Platform {
        os: "linux".to_owned(),
        architecture: architecture.to_owned(),
        variant: None,
    }
}
