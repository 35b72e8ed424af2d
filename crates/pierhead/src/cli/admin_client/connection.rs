//! Sends HTTP requests to the admin listener of the running daemon, and reads the responses.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::{Buf as _, Bytes, BytesMut};
use http::uri::Authority;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::admin::api::{ErrorResponse, Event, HEADER};

/// Time limit of the connection to the admin listener, which usually is on this host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size in bytes of one line of JSON from the admin listener.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The error for an admin listener that accepts no connection.
#[derive(Debug, thiserror::Error)]
#[error(
    "nothing responds at http://{authority} ({error}): start pierhead with `pierhead serve`, \
     or pass the address of its admin listener with --admin http://HOST:PORT"
)]
pub(crate) struct UnreachableListener {
    pub(super) authority: Authority,
    pub(super) error: io::Error,
}

impl UnreachableListener {
    /// Whether the connection attempt took [`CONNECT_TIMEOUT`], or the timeout of the kernel.
    pub(super) fn is_timeout(&self) -> bool {
        self.error.kind() == io::ErrorKind::TimedOut
    }
}

/// A client of the admin listener.
pub(crate) struct AdminClient {
    authority: Authority,
}

impl AdminClient {
    pub(crate) fn new(authority: Authority) -> Self {
        Self { authority }
    }

    /// Sends a GET request, and parses the JSON document of the response.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// Sends a GET request, and returns the text of the response.
    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(Method::GET, path, None::<&()>).await?;
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends a request with a JSON body, and parses the JSON document of the response.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<T> {
        let response = self.send(method, path, body).await?;
        let bytes = response
            .into_body()
            .collect()
            .await
            .context("pierhead aborted its response")?
            .to_bytes();
        serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "{} is not an admin listener of pierhead, or pierhead has another version there",
                self.authority
            )
        })
    }

    /// Sends a POST request, and returns the response as a stream of events.
    pub(crate) async fn events(
        &self,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Events> {
        let response = self.send(Method::POST, path, body).await?;
        Ok(Events {
            body: response.into_body(),
            buffer: BytesMut::new(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Response<Incoming>> {
        let body = body
            .map(serde_json::to_vec)
            .transpose()?
            .unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(HEADER, "1")
            .body(Full::new(Bytes::from(body)))?;
        let stream = self.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The task ends when the response ends. Errors of the connection also appear in the
        // response.
        tokio::spawn(connection);
        let response = sender
            .send_request(request)
            .await
            .with_context(|| format!("{} does not respond with HTTP", self.authority))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        match serde_json::from_slice::<ErrorResponse>(&bytes) {
            Ok(body) => Err(anyhow!(body.error)),
            Err(_) => Err(anyhow!(
                "{} responds with {status} and is no admin listener of pierhead: check --admin",
                self.authority
            )),
        }
    }

    async fn connect(&self) -> Result<TcpStream, UnreachableListener> {
        let host = self
            .authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let port = self.authority.port_u16().unwrap_or(5001);
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)));
        connecting
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| UnreachableListener {
                authority: self.authority.clone(),
                error,
            })
    }
}

/// A stream of newline-delimited JSON.
pub(crate) struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// Waits for the next event. Returns `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                return serde_json::from_slice(&line)
                    .map(Some)
                    .context("pierhead sent an event that this version cannot parse");
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                bail!("pierhead sent a line of more than 1 MiB");
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.context("pierhead aborted its response")?;
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
