//! The fake upstream registry of all benchmarks: serves pulls with one thread per connection, until
//! the process ends.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pierhead_oci::Digest;

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

/// Serves all connections.
pub(crate) fn serve(listener: TcpListener, content: Arc<impl Content>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let content = Arc::clone(&content);
            // An error ends one connection. The client notices the error, and the results show it.
            std::thread::spawn(move || converse(&*content, &stream));
        }
    });
}

fn converse(content: &impl Content, stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let mut words = line.split_whitespace();
        let method = words.next().context("no method")?.to_owned();
        let target = words.next().context("no path")?.to_owned();
        let mut requested = None;
        loop {
            line.clear();
            ensure!(
                reader.read_line(&mut line)? > 0,
                "connection closed within the headers"
            );
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(range) = header.strip_prefix("range: bytes=") {
                let (first, last) = range.split_once('-').context("no range")?;
                requested = Some((number(first)?, number(last)?));
            }
        }
        let path = target.split('?').next().unwrap_or_default();
        answer(content, stream, path, method != "HEAD", requested)?;
        line.clear();
    }
    Ok(())
}

/// The first and the last byte of a `Range` header, each of which may be missing.
type Requested = (Option<u64>, Option<u64>);

fn number(text: &str) -> Result<Option<u64>> {
    Ok(match text {
        "" => None,
        digits => Some(digits.parse()?),
    })
}

fn answer(
    content: &impl Content,
    mut stream: &TcpStream,
    path: &str,
    has_body: bool,
    requested: Option<Requested>,
) -> Result<()> {
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
    if has_body {
        (document.body)(stream, range)?;
    }
    Ok(())
}
