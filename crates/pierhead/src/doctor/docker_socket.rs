//! Asks the running dockerd which mirrors it uses: `GET /info` on its Unix socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// Time limit of `GET /info`. dockerd may be slow, since it counts all containers and images for
/// the response.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response of dockerd that `doctor` reads, in bytes.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// Returns the mirrors of Docker Hub that dockerd uses.
///
/// # Errors
/// No process listens on the socket, or this user has no access.
pub(crate) async fn mirrors(socket: &Path) -> anyhow::Result<Vec<String>> {
    let info = tokio::time::timeout(INFO_TIMEOUT, info(socket))
        .await
        .context("dockerd does not respond")??;
    let mirrors = info["RegistryConfig"]["Mirrors"].as_array();
    Ok(mirrors
        .into_iter()
        .flatten()
        .filter_map(|url| url.as_str().map(str::to_owned))
        .collect())
}

async fn info(socket: &Path) -> anyhow::Result<Value> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends when the response ends.
    tokio::spawn(connection);
    let request = Request::get("/info")
        .header(header::HOST, "docker")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    ensure!(
        response.status().is_success(),
        "dockerd responds with {}",
        response.status()
    );
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| anyhow::anyhow!(error))?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}
