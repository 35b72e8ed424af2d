//! The fake upstream registry of all benchmarks. In contrast to that of testkit, it keeps no log and
//! checks no faults, and writes from a file or generator straight to a blocking socket, so that it
//! takes little CPU time from the measured process.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pierhead_oci::Digest;
use pierhead_tests::http::server::{self, ReceivedRequest};

/// The contents of a registry.
pub(crate) trait Content: Send + Sync + 'static {
    /// The document for a path of the API, without its query.
    fn find(&self, path: &str) -> Result<Option<Document<'_>>>;
}

/// Sends the bytes of a range.
type Body<'a> = Box<dyn FnOnce(&TcpStream, Range<u64>) -> Result<()> + 'a>;

/// A manifest or a blob.
pub(crate) struct Document<'a> {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) body: Body<'a>,
}

/// Serves all connections until the process ends. An error ends one connection: the client notices
/// it, and the results show it.
pub(crate) fn serve(listener: TcpListener, content: Arc<impl Content>) {
    server::serve(listener, move |request, stream| {
        match answer(&*content, stream, request) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
}

/// The first and the last byte of a `Range` header, each of which may be missing.
type Requested = (Option<u64>, Option<u64>);

fn requested(request: &ReceivedRequest) -> Result<Option<Requested>> {
    let Some(range) = request
        .header("range")
        .and_then(|it| it.strip_prefix("bytes="))
    else {
        return Ok(None);
    };
    let (first, last) = range.split_once('-').context("no range")?;
    let number = |text: &str| (!text.is_empty()).then(|| text.parse()).transpose();
    Ok(Some((number(first)?, number(last)?)))
}

fn answer(content: &impl Content, mut stream: &TcpStream, request: &ReceivedRequest) -> Result<()> {
    let (path, requested) = (request.path(), requested(request)?);
    if path == "/v2/" {
        return Ok(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")?);
    }
    let Some(document) = content.find(path)? else {
        return Ok(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?);
    };
    let size = document.size;
    let range = match requested {
        None | Some((None, None)) => 0..size,
        Some((None, Some(count))) => size.saturating_sub(count)..size,
        Some((Some(first), last)) => first..last.map_or(size, |last| size.min(last + 1)),
    };
    let (from, end) = (range.start, range.end);
    ensure!(from <= end, "{path} has no byte {from}");
    let status = match requested {
        None => "200 OK".to_owned(),
        Some(_) => format!(
            "206 Partial Content\r\nContent-Range: bytes {from}-{}/{size}",
            end.saturating_sub(1)
        ),
    };
    // Sends head and body in one write. With two writes, the second would wait for an
    // acknowledgement of the first.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nDocker-Content-Digest: {digest}\r\nETag: \"{digest}\"\r\nContent-Length: {}\r\n\r\n",
        document.media_type,
        end - from,
        digest = document.digest,
    );
    stream.write_all(head.as_bytes())?;
    if request.method() != "HEAD" {
        (document.body)(stream, range)?;
    }
    Ok(())
}
