//! Each fault does what it says, and a registry without faults does none of it.

use pierhead_oci::Digest;

use super::*;
use crate::http::{self, End};
use crate::images::Image;

const REPOSITORY: &str = "library/thing";
const SIZE: usize = 300_000;

/// A registry with one image of one layer of [`SIZE`] bytes; the layer's digest.
async fn with_layer(builder: Builder) -> (FakeRegistry, Digest) {
    let registry = builder.start().await;
    let image = Image::random(7, &[SIZE]);
    registry.push(REPOSITORY, "latest", &image);
    (registry, image.blobs[1].digest)
}

fn blob_path(digest: &Digest) -> String {
    format!("/v2/{REPOSITORY}/blobs/{digest}")
}

fn manifest_path(target: &str) -> String {
    format!("/v2/{REPOSITORY}/manifests/{target}")
}

#[tokio::test]
async fn without_faults_it_serves_what_was_pushed() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let addr = registry.addr();

    assert_eq!(http::get(addr, "/v2/").await.status, 200);
    let manifest = http::get(addr, &manifest_path("latest")).await;
    assert_eq!(
        manifest.header("content-type"),
        Some("application/vnd.oci.image.manifest.v1+json")
    );
    let root = manifest
        .header("docker-content-digest")
        .map(str::to_owned)
        .expect("a digest");
    assert_eq!(crate::images::digest_of(&manifest.body).to_string(), root);
    assert_eq!(
        manifest.header("etag"),
        Some(format!("\"{root}\"").as_str())
    );
    assert_eq!(
        http::get(addr, &manifest_path(&root)).await.body,
        manifest.body
    );

    let head = http::head(addr, &manifest_path("latest")).await;
    assert_eq!(head.headers, manifest.headers);
    assert!(head.body.is_empty());

    let blob = http::get(addr, &blob_path(&digest)).await;
    assert_eq!((blob.status, blob.end), (200, End::Clean));
    assert_eq!(crate::images::digest_of(&blob.body), digest);
    assert_eq!(
        (registry.gets_of(&digest), registry.heads_of(&digest)),
        (1, 0)
    );
}
