//! Wraps the connection that hyper serves: gives hyper the bytes that were already read, checks
//! line ends, and applies timeouts.
//!
//! 1. hyper first gets the bytes that pierhead's own HTTP/1 server has already read.
//! 2. Each byte passes the [`LineEndChecker`] before hyper gets it.
//! 3. A write fails if the client reads nothing for `limit`. A read fails if the first request does
//!    not arrive within `limit`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::http::line_ends::LineEndChecker;
use crate::limits::connections::{ConnectionActivity, ResponseInProgress};

/// Bytes of the HTTP/2 preface. After this many bytes, hyper knows the protocol and applies its own
/// read timeouts.
const PREFACE: usize = 24;

/// Wraps a socket or a TLS stream for hyper.
pub(crate) struct ClientStream<S> {
    io: S,
    /// Bytes of the connection that pierhead's own HTTP/1 server has already read.
    front: Bytes,
    checker: LineEndChecker,
    limit: Duration,
    read: usize,
    read_timeout: Option<Pin<Box<Sleep>>>,
    /// The timer of a write, created at the first write that has to wait. Most connections need no
    /// timer.
    write_timeout: Option<Pin<Box<Sleep>>>,
    is_write_waiting: bool,
    activity: Arc<ConnectionActivity>,
    /// Set while response bytes wait for the client.
    in_progress: Option<ResponseInProgress>,
}

impl<S> ClientStream<S> {
    /// Wraps `io`. `front` holds the bytes of `io` that were already read.
    pub(crate) fn new(
        (front, io): (Bytes, S),
        checker: LineEndChecker,
        limit: Duration,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        Self {
            io,
            front,
            checker,
            limit,
            read: 0,
            read_timeout: None,
            write_timeout: None,
            is_write_waiting: false,
            activity,
            in_progress: None,
        }
    }

    fn watch_write<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_write_waiting = false;
            self.in_progress = None;
            return written;
        }
        let sleep = self
            .write_timeout
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        if !self.is_write_waiting {
            self.is_write_waiting = true;
            self.in_progress = self.activity.mark_unread_response();
            sleep.as_mut().reset(Instant::now() + self.limit);
        }
        match sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read its response",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> ClientStream<S> {
    /// Reads bytes and passes these bytes through the [`LineEndChecker`].
    fn poll_checked(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.front.is_empty() {
            ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        } else {
            let len = self.front.len().min(buffer.remaining());
            buffer.put_slice(&self.front[..len]);
            self.front.advance(len);
            if self.front.is_empty() {
                self.front = Bytes::new();
            }
        }
        let new = buffer.filled_mut().get_mut(before..).unwrap_or_default();
        let is_end = new.is_empty();
        let passed = self.checker.check(new);
        buffer.set_filled(before + passed);
        // hyper takes a read of 0 bytes for the end of the connection.
        if passed == 0 && !is_end {
            let error = io::Error::new(io::ErrorKind::InvalidData, "the head is too long");
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = this.poll_checked(context, buffer);
        if this.read >= PREFACE {
            return polled;
        }
        this.read += buffer.filled().len() - before;
        if polled.is_ready() {
            return polled;
        }
        let limit = this.limit;
        match this
            .read_timeout
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)))
            .as_mut()
            .poll(context)
        {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client sends no request",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(context, bytes);
        this.watch_write(written, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(context, slices);
        this.watch_write(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(context);
        this.watch_write(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.io).poll_shutdown(context);
        this.watch_write(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::limits::client_usage::ClientUsage;

    fn wrap<S>(io: S, front: &'static str, max: usize) -> ClientStream<S> {
        let client = Arc::new(ClientUsage::operator());
        let activity = Arc::new(ConnectionActivity::uncounted(client));
        let (front, checker) = (
            Bytes::from_static(front.as_bytes()),
            LineEndChecker::new(max),
        );
        ClientStream::new((front, io), checker, Duration::from_secs(30), activity)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_the_client_does_not_read_fails() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = wrap(server, "", 1000);
        let writer = tokio::spawn(async move { server.write_all(&[0; 1000]).await });
        let mut some = [0; 100];
        client.read_exact(&mut some).await.unwrap();
        // tokio's paused clock, which the test uses, jumps to the next timer. If the write waited
        // for anything other than a timer, the test would never end.
        let error = writer.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_but_steady_reader_is_served() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = wrap(server, "", 1000);
        let writer = tokio::spawn(async move { server.write_all(&[0; 100]).await });
        let mut some = [0; 8];
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            client.read_exact(&mut some).await.unwrap();
        }
        client.read_exact(&mut some[..4]).await.unwrap();
        writer.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_times_out_only_before_the_first_request() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = wrap(server, "", 1000);
        let mut some = [0; 64];
        client.write_all(b"GET").await.unwrap();
        assert_eq!(server.read(&mut some).await.unwrap(), 3);
        assert_eq!(
            server.read(&mut some).await.unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = wrap(server, "", 1000);
        client.write_all(&[b'x'; PREFACE]).await.unwrap();
        assert_eq!(server.read(&mut some).await.unwrap(), PREFACE);
        let late = async {
            tokio::time::sleep(Duration::from_secs(300)).await;
            client.write_all(b"late").await.unwrap();
        };
        let (_, read) = tokio::join!(late, server.read(&mut some));
        assert_eq!(read.unwrap(), 4);
    }

    #[tokio::test]
    async fn hyper_gets_a_head_up_to_its_limit_only() {
        let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1500));
        let bad = "GET / HTTP/1.1\nhost: a\r\n\r\n";
        for text in [format!("{long}{bad}"), "a".repeat(100_000)] {
            let mut reader = wrap(text.as_bytes(), "", 1000);
            let mut seen = Vec::new();
            let ended = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut seen).await;
            assert!(ended.is_err());
            assert_eq!(seen, text.as_bytes()[..1000]);
            assert!(reader.checker.head.capacity() <= 2048);
        }
    }

    #[tokio::test]
    async fn bytes_of_the_http1_loop_come_first_and_are_checked() {
        let rest: &[u8] = b"host: a\r\n\r\n";
        let mut reader = wrap(rest, "GET / HTTP/1.1\n", 1000);
        let mut seen = String::new();
        reader.read_to_string(&mut seen).await.unwrap();
        assert_eq!(seen, "GET / HTTP/1.1\0host: a\r\n\r\n");
    }
}
