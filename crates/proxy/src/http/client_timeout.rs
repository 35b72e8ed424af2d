//! A connection whose other side must keep moving: reads before the first request, and writes always.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::limits::connections::{ConnectionActivity, ResponseInProgress};

/// Bytes until hyper knows the protocol and keeps time by itself: the preface of HTTP/2.
const PREFACE: usize = 24;

/// Wraps a socket or a TLS stream. A write that the other side takes nothing of for `limit` fails, and
/// so does the read of a connection that has not said anything for `limit`.
pub(crate) struct StallTimeout<S> {
    io: S,
    limit: Duration,
    read: usize,
    silent: Option<Pin<Box<Sleep>>>,
    /// Made at the first write that has to wait: most connections never do.
    stuck: Option<Pin<Box<Sleep>>>,
    is_stuck: bool,
    activity: Arc<ConnectionActivity>,
    /// Set while response bytes wait for the client.
    answering: Option<ResponseInProgress>,
}

impl<S> StallTimeout<S> {
    pub(crate) fn new(io: S, limit: Duration, activity: Arc<ConnectionActivity>) -> Self {
        Self {
            io,
            limit,
            read: 0,
            silent: None,
            stuck: None,
            is_stuck: false,
            activity,
            answering: None,
        }
    }

    fn watch_write<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_stuck = false;
            self.answering = None;
            return written;
        }
        let sleep = self
            .stuck
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        if !self.is_stuck {
            self.is_stuck = true;
            self.answering = self.activity.hold();
            sleep.as_mut().reset(Instant::now() + self.limit);
        }
        match sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client takes nothing",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(context, buffer);
        if this.read >= PREFACE {
            return polled;
        }
        this.read += buffer.filled().len() - before;
        if polled.is_ready() {
            return polled;
        }
        let limit = this.limit;
        match this
            .silent
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)))
            .as_mut()
            .poll(context)
        {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client says nothing",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
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

    fn activity() -> Arc<ConnectionActivity> {
        Arc::new(ConnectionActivity::uncounted(Arc::new(
            ClientUsage::operator(),
        )))
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = StallTimeout::new(server, Duration::from_secs(30), activity());
        let writer = tokio::spawn(async move { server.write_all(&[0; 1000]).await });
        let mut some = [0; 100];
        client.read_exact(&mut some).await.unwrap();
        // The clock jumps: whoever waits for anything but the limit would wait for ever.
        let error = writer.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_but_steady_reader_is_served() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = StallTimeout::new(server, Duration::from_secs(30), activity());
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
    async fn silence_ends_only_a_connection_that_never_spoke() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = StallTimeout::new(server, Duration::from_secs(30), activity());
        let mut some = [0; 64];
        client.write_all(b"GET").await.unwrap();
        assert_eq!(server.read(&mut some).await.unwrap(), 3);
        assert_eq!(
            server.read(&mut some).await.unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = StallTimeout::new(server, Duration::from_secs(30), activity());
        client.write_all(&[b'x'; PREFACE]).await.unwrap();
        assert_eq!(server.read(&mut some).await.unwrap(), PREFACE);
        let late = async {
            tokio::time::sleep(Duration::from_secs(300)).await;
            client.write_all(b"late").await.unwrap();
        };
        let (_, read) = tokio::join!(late, server.read(&mut some));
        assert_eq!(read.unwrap(), 4);
    }
}
