//! Tests of the fake registry: the protocol without faults, access control, and the effect of each
//! fault.

mod access;
mod faults;
mod protocol;

use pierhead_oci::Digest;

use super::*;
use crate::http::{Connection, Request as Ask, Response};
use crate::images::Image;

const REPOSITORY: &str = "library/thing";
const SIZE: usize = 300_000;

/// Starts a registry with one image of one layer of [`SIZE`] bytes. Returns the registry and the
/// digest of the layer.
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

/// Sends a GET request with these headers.
async fn ask(registry: &FakeRegistry, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = headers
        .iter()
        .fold(Ask::get(path), |request, (name, value)| {
            request.header(name, *value)
        });
    request.send(registry.addr()).await.expect("an answer")
}

/// Sends a GET request. The connection must break before the head of the response. Returns the
/// error.
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
