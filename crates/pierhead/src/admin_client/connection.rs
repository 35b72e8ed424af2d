//! HTTP to the running daemon.

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

use crate::api::{ErrorResponse, Event, HEADER};

/// It is on this machine: what takes longer does not answer at all.
const CONNECT: Duration = Duration::from_secs(5);
/// Most bytes of a line that the command line reads from the admin listener.
const MAX_LINE: usize = 1 << 20;

/// The admin listener of a running pierhead.
pub(crate) struct AdminClient {
    authority: Authority,
}

impl AdminClient {
    pub(crate) fn new(authority: Authority) -> Self {
        Self { authority }
    }

    /// A document by GET.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// A text by GET.
    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.send(Method::GET, path, None::<&()>).await?;
        let bytes = answer.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A document by any method.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<T> {
        let answer = self.send(method, path, body).await?;
        let bytes = answer
            .into_body()
            .collect()
            .await
            .context("pierhead broke off its answer")?
            .to_bytes();
        serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "{} does not answer like a pierhead of this version",
                self.authority
            )
        })
    }

    /// A stream of events by POST.
    pub(crate) async fn events(
        &self,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Events> {
        let answer = self.send(Method::POST, path, body).await?;
        Ok(Events {
            body: answer.into_body(),
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
        // It ends with the answer; what goes wrong on it shows in the answer, too.
        tokio::spawn(connection);
        let answer = sender
            .send_request(request)
            .await
            .with_context(|| format!("{} does not speak HTTP", self.authority))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        match serde_json::from_slice::<ErrorResponse>(&bytes) {
            Ok(refusal) => Err(anyhow!(refusal.error)),
            Err(_) => Err(anyhow!(
                "{} answers {status} and is no admin listener of pierhead: see --admin",
                self.authority
            )),
        }
    }

    async fn connect(&self) -> anyhow::Result<TcpStream> {
        let host = self
            .authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let port = self.authority.port_u16().unwrap_or(5001);
        let connecting = tokio::time::timeout(CONNECT, TcpStream::connect((host, port)));
        match connecting
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        {
            Ok(stream) => Ok(stream),
            Err(error) => bail!(
                "nothing answers at http://{} ({error}): is pierhead serving? Start it with `pierhead serve`, \
                 or say where its admin listener is with --admin http://HOST:PORT",
                self.authority
            ),
        }
    }
}

/// Newline-delimited JSON as it arrives.
pub(crate) struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                return serde_json::from_slice(&line)
                    .map(Some)
                    .context("pierhead sent a line that this version does not know");
            }
            if self.buffer.len() > MAX_LINE {
                bail!("pierhead sent a line without an end");
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.context("pierhead broke off its answer")?;
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
