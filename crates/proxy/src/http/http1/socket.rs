//! The TCP socket of the HTTP/1.1 fast path: reads heads, sends bytes and files, and applies a
//! deadline to every wait.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use pierhead_host::CpuPacer;
use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::http::body::FileSource;
use crate::http::http1::client_deadline::ClientDeadline;
use crate::http::http1::head::MAX_HEAD;

/// Bytes of one read. Typical request heads are half as long.
pub(crate) const READ_BYTES: usize = 1024;

/// The socket of one connection. Every wait for the client has a deadline.
pub(crate) struct Socket<'a> {
    pub(crate) stream: TcpStream,
    /// Bytes that were read but not parsed yet. The buffer uses no memory while the connection is
    /// idle.
    pub(crate) buffer: BytesMut,
    pub(crate) deadline: &'a ClientDeadline,
    /// Time limit for a request's head and for the idle time before it.
    pub(crate) head: Duration,
    /// Time limit for a client that does not read its response.
    pub(crate) stall: Duration,
}

/// The result of sending a part of a file by `sendfile`.
pub(crate) enum FileSendResult {
    /// `sendfile` sent this number of bytes, at least one.
    Sent(u64),
    /// The file no longer has the verified bytes. The caller must read and verify the content
    /// instead.
    Unavailable,
}

impl Socket<'_> {
    /// Reads more of a request's head. Returns 0 at the end of the connection. Also returns 0 at
    /// shutdown, unless a part of a head has arrived.
    pub(crate) async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| {
            if self.buffer.is_empty() && self.deadline.is_shutdown() {
                return Poll::Ready(Ok(0));
            }
            ready!(self.stream.poll_read_ready(context))?;
            self.buffer.reserve(READ_BYTES);
            let mut chunk = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut chunk);
            let polled = Pin::new(&mut self.stream).poll_read(context, &mut read);
            self.buffer.extend_from_slice(read.filled());
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            polled.map_ok(|()| read.filled().len())
        })
        .await
    }

    /// Awaits `work`, unless the client disconnects first. Buffers the bytes that the client sends
    /// during the wait.
    pub(crate) async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            gone = self.wait_for_disconnect() => Err(gone),
        }
    }

    async fn wait_for_disconnect(&mut self) -> io::Error {
        loop {
            // The buffer is full, so pierhead reads no more bytes. Without reads, pierhead notices
            // that the client disconnected only when it sends the response.
            if self.buffer.len() >= MAX_HEAD {
                return std::future::pending().await;
            }
            let read = poll_fn(|context| {
                let mut chunk = [0; READ_BYTES];
                let mut read = ReadBuf::new(&mut chunk);
                ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
                self.buffer.extend_from_slice(read.filled());
                Poll::Ready(Ok::<_, io::Error>(read.filled().len()))
            });
            match read.await {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// Waits until the socket accepts bytes again, for at most `stall`.
    async fn writable(&self) -> io::Result<()> {
        self.deadline.must_read(self.stall);
        poll_fn(|context| self.stream.poll_write_ready(context)).await?;
        self.deadline.clear();
        Ok(())
    }

    /// Sends both slices. `more` tells the kernel that further bytes follow immediately.
    pub(crate) async fn send(&mut self, mut parts: [&[u8]; 2], more: bool) -> io::Result<()> {
        loop {
            let [first, second] = parts;
            if first.is_empty() && second.is_empty() {
                return Ok(());
            }
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Ok(match (first.is_empty(), second.is_empty()) {
                    (false, false) => {
                        let slices = [IoSlice::new(first), IoSlice::new(second)];
                        rustix::io::writev(&self.stream, &slices)?
                    }
                    (_, true) if more => {
                        rustix::net::send(&self.stream, first, flags | SendFlags::MORE)?
                    }
                    (false, true) => rustix::net::send(&self.stream, first, flags)?,
                    (true, _) => rustix::net::send(&self.stream, second, flags)?,
                })
            });
            match sent {
                Ok(sent) => {
                    let of_first = sent.min(first.len());
                    parts = [&first[of_first..], &second[sent - of_first..]];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends up to `len` bytes of the file from `offset`, without a copy through user space.
    /// `pacer` delays the first attempt, and each attempt after a wait for the client.
    ///
    /// # Errors
    /// Returns only errors of the socket. An error of the file is [`FileSendResult::Unavailable`].
    pub(crate) async fn send_file(
        &mut self,
        file: &FileSource,
        offset: u64,
        len: u64,
        pacer: Option<&CpuPacer>,
    ) -> io::Result<FileSendResult> {
        let Some((file, offset)) = file.at(offset) else {
            return Ok(FileSendResult::Unavailable);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        loop {
            if let Some(pacer) = pacer {
                pacer.pass().await;
            }
            let mut at = offset;
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                let _meter = pacer.map(CpuPacer::meter);
                Ok(rustix::fs::sendfile(
                    &self.stream,
                    file,
                    Some(&mut at),
                    len,
                )?)
            });
            match sent {
                Ok(0) => return Ok(FileSendResult::Unavailable),
                Ok(sent) => return Ok(FileSendResult::Sent(u64::try_from(sent).unwrap_or(0))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_socket_error(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "sendfile failed: the file is read instead");
                    return Ok(FileSendResult::Unavailable);
                }
            }
        }
    }
}

/// Whether `sendfile` failed because of the socket, not because of the file.
fn is_socket_error(error: &io::Error) -> bool {
    let socket_errors = [
        Errno::PIPE,
        Errno::CONNRESET,
        Errno::CONNABORTED,
        Errno::NOTCONN,
        Errno::TIMEDOUT,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    socket_errors
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
