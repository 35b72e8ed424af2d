//! What the running dockerd has in effect: `GET /info` on its socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// It counts containers and images for this answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a response of dockerd that `doctor` reads.
const MAX_ANSWER: usize = 4 << 20;

/// The mirrors of Docker Hub that it asks.
///
/// # Errors
/// Nobody listens there, or this user may not ask.
pub(crate) async fn mirrors(socket: &Path) -> anyhow::Result<Vec<String>> {
    let info = tokio::time::timeout(PATIENCE, info(socket))
        .await
        .context("dockerd does not answer")??;
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
    // It ends with the answer.
    tokio::spawn(connection);
    let request = Request::get("/info")
        .header(header::HOST, "docker")
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    ensure!(
        answer.status().is_success(),
        "it answers {}",
        answer.status()
    );
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!(error))?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}
