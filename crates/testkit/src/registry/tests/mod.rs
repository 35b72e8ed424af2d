//! A registry without faults answers as the spec says; with them, as each of them says.

mod access;
mod faults;
mod protocol;

use pierhead_oci::Digest;

use super::*;
use crate::http::{Connection, Request as Ask, Response};
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

/// GET with these headers.
async fn ask(registry: &FakeRegistry, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = headers
        .iter()
        .fold(Ask::get(path), |request, (name, value)| {
            request.header(name, *value)
        });
    request.send(registry.addr()).await.expect("an answer")
}

/// Whether GET brings no head at all, the connection being broken.
async fn breaks(registry: &FakeRegistry, path: &str) -> std::io::ErrorKind {
    Ask::get(path)
        .send(registry.addr())
        .await
        .expect_err("no answer")
        .kind()
}

async fn open(registry: &FakeRegistry) -> Connection {
    Connection::open(registry.addr())
        .await
        .expect("a connection")
}
