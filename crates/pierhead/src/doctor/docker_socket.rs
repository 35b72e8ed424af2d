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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    /// The mirrors of a dockerd that sends `response`, or the error.
    async fn mirrors_of(response: String) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let dockerd = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut head = [0; 4096];
            let bytes = stream.read(&mut head).await.expect("a request");
            let head = String::from_utf8_lossy(&head[..bytes]).into_owned();
            // The client may leave before it has read a response that is too large.
            let _ = stream.write_all(response.as_bytes()).await;
            head
        });
        let found = mirrors(&socket).await.map_err(|error| format!("{error:#}"));
        let head = dockerd.await.expect("dockerd runs");
        assert!(head.starts_with("GET /info HTTP/1.1\r\n"), "{head}");
        found
    }

    fn ok(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    #[tokio::test]
    async fn the_mirrors_of_dockerd_are_read() {
        for (body, expected) in [
            (
                r#"{"RegistryConfig":{"Mirrors":["http://a:5000/","http://b/"]}}"#,
                &["http://a:5000/", "http://b/"][..],
            ),
            (r#"{"RegistryConfig":{"Mirrors":[]}}"#, &[]),
            (r#"{"RegistryConfig":{"Mirrors":null}}"#, &[]),
            (r#"{"RegistryConfig":{"Mirrors":[7]}}"#, &[]),
            ("{}", &[]),
        ] {
            let found = mirrors_of(ok(body)).await.expect(body);
            assert_eq!(found, expected, "{body}");
        }
    }

    #[tokio::test]
    async fn a_dockerd_without_a_usable_response_is_an_error() {
        let large = "x".repeat(MAX_RESPONSE_BYTES + 1);
        for (response, part) in [
            (
                "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_owned(),
                "dockerd responds with 500",
            ),
            (ok("<html>"), "expected value"),
            (ok(&large), "length limit exceeded"),
            ("SSH-2.0\r\n".to_owned(), "invalid HTTP"),
        ] {
            let error = mirrors_of(response).await.expect_err(part);
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = mirrors(Path::new("/nowhere/docker.sock"))
            .await
            .expect_err("no socket");
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}
