//! The registry to which the conformance test pushes: a real registry by its API, or the testkit's.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    http::{Request, Response},
    registry::Background,
};

use super::data::Document;
use crate::requests::ask;

/// A registry that accepts pushes.
pub(crate) enum PushTarget<'a> {
    /// A real registry: pushes by `POST` and `PUT`.
    Real(SocketAddr),
    /// The testkit's registry: pushes by function calls.
    Fake(&'a Background),
}

impl PushTarget<'_> {
    pub(crate) fn blob(&self, repository: &str, digest: &str, bytes: &[u8]) -> Result<()> {
        let address = match self {
            Self::Real(address) => *address,
            Self::Fake(fake) => {
                fake.put_blob_as(repository, digest.parse()?, bytes.to_vec());
                return Ok(());
            }
        };
        let path = format!("/v2/{repository}/blobs/uploads/");
        let response = ask(address, &push("POST", &path, &[]))?;
        ensure!(response.status == 202, "POST {path}: {}", response.status);
        let upload = location(&response, address)?;
        let mark = if upload.contains('?') { '&' } else { '?' };
        let upload = format!("{upload}{mark}digest={digest}");
        let request =
            push("PUT", &upload, bytes).header("content-type", "application/octet-stream");
        let done = ask(address, &request)?;
        ensure!(done.status == 201, "PUT of {digest}: {}", done.status);
        Ok(())
    }

    /// Pushes a manifest under its digest, or under a tag.
    pub(crate) fn manifest(
        &self,
        repository: &str,
        tag: Option<&str>,
        document: &Document,
    ) -> Result<()> {
        let Document {
            digest,
            media_type,
            bytes,
        } = document;
        let address = match self {
            Self::Real(address) => *address,
            Self::Fake(fake) => {
                fake.put_manifest_as(repository, digest.parse()?, media_type, bytes.clone());
                if let Some(tag) = tag {
                    fake.tag(repository, tag, digest.parse()?);
                }
                return Ok(());
            }
        };
        let path = format!("/v2/{repository}/manifests/{}", tag.unwrap_or(digest));
        let done = ask(
            address,
            &push("PUT", &path, bytes).header("content-type", *media_type),
        )?;
        let output = String::from_utf8_lossy(&done.body);
        ensure!(done.status == 201, "PUT {path}: {} {output}", done.status);
        Ok(())
    }

    /// Removes a tag.
    pub(crate) fn untag(&self, repository: &str, tag: &str) -> Result<()> {
        let address = match self {
            Self::Real(address) => *address,
            Self::Fake(fake) => {
                fake.untag(repository, tag);
                return Ok(());
            }
        };
        let path = format!("/v2/{repository}/manifests/{tag}");
        let done = ask(address, &Request::new("DELETE", &path))?;
        ensure!(done.status == 202, "DELETE {path}: {}", done.status);
        Ok(())
    }
}

/// A request with a `Content-Length`, even if it is 0.
fn push(method: &str, path: &str, bytes: &[u8]) -> Request {
    let request = Request::new(method, path);
    if bytes.is_empty() {
        request.header("content-length", "0")
    } else {
        request.body(bytes.to_vec())
    }
}

/// The path of a `Location`, which may be an absolute URL.
fn location(response: &Response, address: SocketAddr) -> Result<String> {
    let location = response.header("location").context("no Location")?;
    let path = location.strip_prefix(&format!("http://{address}"));
    Ok(path.unwrap_or(location).to_owned())
}
