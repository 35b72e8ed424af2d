//! The body of a response: bytes in memory, or a stream of frames that pierhead reads only as fast
//! as the client reads them.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pierhead_bundle_server::SentFile;
use pierhead_cache::VerifiedRange;
use pierhead_host::{CpuPacer, PIECE_BYTES, metered};

use crate::bundle::record_stream::{FileRange, RecordStream};
use crate::error::Error;
use crate::http::client_progress::{BodyProgress, ClientProgress};
use crate::limits::connections::ResponseInProgress;
use crate::limits::memory::MemoryReservation;
use crate::metrics::{EndpointKind, Metrics};
use crate::pull::blob::BlobSource;

/// Maximum bytes of a response body whose head waits for the first piece of the body, within
/// `limits.response_timeout`.
const MAX_AWAITED_BODY: u64 = 128 << 10;

/// The next piece of a body, for a connection that can use `sendfile`.
pub(crate) enum BodyPiece {
    Bytes(Bytes),
    /// A range of a file, for `sendfile`.
    File {
        file: FileSource,
        offset: u64,
        len: u64,
    },
}

/// The file that `sendfile` sends from.
pub(crate) enum FileSource {
    /// A verified range of a blob in the cache.
    VerifiedRange(VerifiedRange),
    /// A pack file of the bundle server. The worker, not pierhead, verifies the records in it.
    SentFile(SentFile),
}

impl FileSource {
    /// Returns the file that holds byte `offset` (the first byte of the range), and the position of
    /// this byte in the file. `None`: the file is no longer the file that was verified.
    pub(crate) fn at(&self, offset: u64) -> Option<(&File, u64)> {
        match self {
            Self::VerifiedRange(range) => range.file_position(),
            Self::SentFile(opened) => Some((opened.file(), offset)),
        }
    }
}

/// The source of a body's stream.
enum BodyReader {
    Blob(BlobSource),
    Records(RecordStream),
}

impl BodyReader {
    fn is_file(&self) -> bool {
        match self {
            Self::Blob(source) => source.is_file(),
            Self::Records(_) => true,
        }
    }

    /// Returns the next range that `sendfile` can send, at most `max` bytes.
    fn file_range(&self, max: u64) -> Option<BodyPiece> {
        Some(match self {
            Self::Blob(source) => {
                let range = source.verified_range(max)?;
                let (offset, len) = (range.offset(), range.bytes());
                let file = FileSource::VerifiedRange(range);
                BodyPiece::File { file, offset, len }
            }
            Self::Records(records) => {
                let FileRange { file, offset, len } = records.resident_range(max)?;
                let file = FileSource::SentFile(file);
                BodyPiece::File { file, offset, len }
            }
        })
    }

    fn advance(&mut self, bytes: u64) {
        match self {
            Self::Blob(source) => source.advance(bytes),
            Self::Records(records) => records.advance(bytes),
        }
    }

    async fn next(&mut self) -> Result<Bytes, Error> {
        match self {
            Self::Blob(source) => source.next().await,
            Self::Records(records) => records.next().await,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Blob(source) => source.name(),
            Self::Records(records) => records.name(),
        }
    }

    fn offset(&self) -> u64 {
        match self {
            Self::Blob(source) => source.offset(),
            Self::Records(records) => records.offset(),
        }
    }
}

/// The memory that a body needs while it is sent.
pub(crate) enum MemoryNeed {
    /// The memory of all bytes of the body.
    Bytes(usize),
    /// The memory of one frame, because frames are in memory one after another.
    Stream,
    /// No memory if `sendfile` sends the body, otherwise the memory of one frame.
    File,
}

/// The body of a response.
pub(crate) struct Body {
    content: BodyContent,
    /// The account of this response, which is set when the response begins. Dropping the account
    /// counts and logs how the response ended.
    account: Option<ResponseAccount>,
    /// Prevents pierhead from closing this connection to make room for another client's connection.
    in_progress: Option<ResponseInProgress>,
}

enum BodyContent {
    Bytes(Bytes),
    Stream(BodyStream),
}

/// A body as a stream, whose next frame is read when the connection polls for it. If a read fails,
/// the stream yields an error, which aborts the connection: the client must not take an incomplete
/// body for a complete one.
struct BodyStream {
    state: StreamState,
    /// The piece that [`Body::read_first_piece`] read.
    first: Option<BodyPiece>,
    /// Remaining bytes of the body, without `first` if it is bytes. `None`: the size is known only
    /// at the end.
    remaining: Option<u64>,
    /// Whether the body is empty, and its source has not yet confirmed this. The bytes of a download
    /// are known to be right only at the end of the download.
    is_empty_unverified: bool,
    progress: Option<BodyProgress>,
    /// The queue for CPU time, which delays each piece of a long body.
    pacer: Option<Arc<CpuPacer>>,
    /// Set when `sendfile` failed for this body. From then on, pierhead reads and verifies all
    /// bytes instead of sending them by `sendfile`.
    copies_only: bool,
    reservation: Option<Arc<MemoryReservation>>,
    /// Name of the content whose read failed, for the log.
    failed_content: Option<String>,
}

impl BodyContent {
    fn failed_content(&self) -> &str {
        match self {
            Self::Stream(stream) => stream.failed_content.as_deref().unwrap_or_default(),
            Self::Bytes(_) => "",
        }
    }
}

type PendingRead = Pin<Box<dyn Future<Output = (Box<BodyReader>, Result<Bytes, Error>)> + Send>>;

enum StreamState {
    Idle(Box<BodyReader>),
    /// A future that reads the next frame. `poll_frame` polls this future later, so it is boxed,
    /// which costs one allocation per frame.
    Reading(PendingRead),
    Done,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::bytes(Bytes::new())
    }

    pub(crate) fn bytes(bytes: Bytes) -> Self {
        Self {
            content: BodyContent::Bytes(bytes),
            account: None,
            in_progress: None,
        }
    }

    /// Creates a body of the bytes of `source`. `length` is the number of bytes, if known.
    pub(crate) fn stream(source: Box<BlobSource>, length: Option<u64>) -> Self {
        Self::reader(BodyReader::Blob(*source), length)
    }

    /// Creates a body of a bundle, or of a single file of an image.
    pub(crate) fn records(mut records: RecordStream, length: Option<u64>) -> Self {
        records.take_ready();
        Self::reader(BodyReader::Records(records), length)
    }

    fn reader(reader: BodyReader, length: Option<u64>) -> Self {
        Self {
            content: BodyContent::Stream(BodyStream {
                state: StreamState::Idle(Box::new(reader)),
                first: None,
                remaining: length,
                is_empty_unverified: length == Some(0),
                progress: None,
                pacer: None,
                copies_only: false,
                reservation: None,
                failed_content: None,
            }),
            account: None,
            in_progress: None,
        }
    }

    /// Returns the memory that the body needs while it is sent.
    pub(crate) fn memory_need(&self) -> MemoryNeed {
        match &self.content {
            BodyContent::Bytes(bytes) => MemoryNeed::Bytes(bytes.len()),
            BodyContent::Stream(BodyStream {
                state: StreamState::Idle(source),
                ..
            }) if source.is_file() => MemoryNeed::File,
            BodyContent::Stream(_) => MemoryNeed::Stream,
        }
    }

    /// Attaches a memory reservation to the body. The reservation ends when no byte of the body is
    /// in memory.
    pub(crate) fn with_reservation(mut self, reservation: Arc<MemoryReservation>) -> Self {
        match &mut self.content {
            BodyContent::Bytes(bytes) => *bytes = reservation.attach(std::mem::take(bytes)),
            BodyContent::Stream(stream) => stream.reservation = Some(reservation),
        }
        self
    }

    /// Makes the body watch whether the client reads it, and pass `pacer` if it is long.
    pub(crate) fn with_progress(
        mut self,
        kind: EndpointKind,
        progress: &Arc<ClientProgress>,
        pacer: Option<&Arc<CpuPacer>>,
    ) -> Self {
        let is_long = matches!(
            kind,
            EndpointKind::Blob | EndpointKind::Bundle | EndpointKind::File
        );
        if let BodyContent::Stream(stream) = &mut self.content {
            stream.progress = Some(progress.body());
            stream.pacer = pacer.filter(|_| is_long).cloned();
        }
        self
    }

    /// Makes the body count how the response ends.
    pub(crate) fn accounted(mut self, account: ResponseAccount) -> Self {
        self.account = Some(account);
        self
    }

    /// Reads the first piece of the body before the head of the response is sent, so that a failure
    /// can still become an error response. Waits until `until` for the first piece of a body of at
    /// most [`MAX_AWAITED_BODY`]. The first piece of a larger body is read only if it is ready. The
    /// head of an empty body is the whole response, so it always waits for the end of the source.
    /// `sends_files`: `sendfile` sends the body. Cancel safe.
    ///
    /// # Errors
    /// The error of the read, and the name of the content.
    pub(crate) async fn read_first_piece(
        &mut self,
        sends_files: bool,
        until: tokio::time::Instant,
    ) -> Result<(), (Error, String)> {
        let BodyContent::Stream(stream) = &mut self.content else {
            return Ok(());
        };
        if sends_files {
            stream.first = stream.file();
        }
        if stream.first.is_some() {
            return Ok(());
        }
        let waits = stream.remaining.is_some_and(|it| it <= MAX_AWAITED_BODY);
        let read = poll_fn(|context| match stream.poll_next(context) {
            Poll::Pending if !waits => Poll::Ready(None),
            polled => polled,
        });
        match tokio::time::timeout_at(until, read).await {
            Ok(Some(Ok(bytes))) => stream.first = Some(BodyPiece::Bytes(bytes)),
            Ok(Some(Err(error))) => {
                return Err((error, stream.failed_content.take().unwrap_or_default()));
            }
            Err(_) if stream.is_empty_unverified => {
                return Err((Error::Timeout, String::new()));
            }
            // The body is at its end, or its first piece is not ready.
            Ok(None) | Err(_) => {}
        }
        Ok(())
    }

    /// Whether [`Body::piece`] returns without waiting.
    pub(crate) fn is_piece_ready(&self) -> bool {
        match &self.content {
            BodyContent::Bytes(_) => true,
            BodyContent::Stream(stream) => stream.first.is_some() || stream.is_at_end(),
        }
    }

    /// Marks the connection as busy with a response until the last byte of this body is sent.
    pub(crate) fn with_response_in_progress(
        mut self,
        in_progress: Option<ResponseInProgress>,
    ) -> Self {
        self.in_progress = in_progress;
        self
    }

    /// The queue for CPU time. The caller passes pieces that it sends by `sendfile` through this
    /// queue. [`Body::piece`] itself delays all other pieces.
    pub(crate) fn pacer(&self) -> Option<&CpuPacer> {
        match &self.content {
            BodyContent::Stream(stream) => stream.pacer.as_deref(),
            BodyContent::Bytes(_) => None,
        }
    }

    /// Returns the next piece, or `None` at the end. If the piece is a range of a file, the caller
    /// must then call [`Body::file_sent`] or [`Body::copy_only`]. Cancel safe.
    pub(crate) async fn piece(&mut self) -> Option<Result<BodyPiece, Error>> {
        if let BodyContent::Stream(stream) = &mut self.content {
            let file = match stream.first {
                Some(BodyPiece::Bytes(_)) => None,
                Some(BodyPiece::File { .. }) => stream.first.take(),
                None => stream.file(),
            };
            if let Some(file) = file {
                return Some(Ok(file));
            }
        }
        let frame = poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await?;
        Some(frame.map(BodyPiece::Bytes))
    }

    /// Records that `sendfile` sent this number of bytes.
    pub(crate) fn file_sent(&mut self, bytes: u64) {
        if let BodyContent::Stream(stream) = &mut self.content
            && let StreamState::Idle(reader) = &mut stream.state
        {
            reader.advance(bytes);
            if let Some(remaining) = &mut stream.remaining {
                *remaining = remaining.saturating_sub(bytes);
            }
        }
        if let Some(account) = &mut self.account {
            account.sent(bytes);
        }
    }

    /// After this call, the body returns no range of a file: all further bytes are read and
    /// verified.
    pub(crate) fn copy_only(&mut self) {
        if let BodyContent::Stream(stream) = &mut self.content {
            stream.copies_only = true;
        }
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Error>>> {
        let this = &mut *self;
        let next = match &mut this.content {
            BodyContent::Bytes(bytes) if bytes.is_empty() => None,
            BodyContent::Bytes(bytes) => Some(Ok(std::mem::take(bytes))),
            BodyContent::Stream(stream) => ready!(stream.poll_next(context)),
        };
        if let Some(account) = &mut this.account {
            match &next {
                Some(Ok(bytes)) => account.sent(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
                Some(Err(error)) => account.failed(error, this.content.failed_content()),
                None => account.is_complete = true,
            }
        }
        Poll::Ready(next)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let next = ready!(self.poll_next(context));
        Poll::Ready(next.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            BodyContent::Bytes(bytes) => bytes.is_empty(),
            BodyContent::Stream(stream) => stream.first.is_none() && stream.is_at_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Bytes(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            BodyContent::Stream(stream) => stream
                .unsent()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl BodyStream {
    /// Number of bytes that the connection has not taken yet, if known.
    fn unsent(&self) -> Option<u64> {
        let first = match &self.first {
            Some(BodyPiece::Bytes(bytes)) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Some(BodyPiece::File { .. }) | None => 0,
        };
        self.remaining.map(|remaining| remaining + first)
    }

    /// Whether there is nothing to read after `first`.
    fn is_at_end(&self) -> bool {
        self.is_read() || matches!(self.state, StreamState::Done)
    }

    /// Whether all bytes of a body of known size are read.
    fn is_read(&self) -> bool {
        self.remaining == Some(0) && !self.is_empty_unverified
    }

    /// Returns the next range that `sendfile` can send.
    fn file(&self) -> Option<BodyPiece> {
        let StreamState::Idle(source) = &self.state else {
            return None;
        };
        if self.copies_only {
            return None;
        }
        let max = if self.pacer.is_some() {
            PIECE_BYTES
        } else {
            u64::MAX
        };
        source.file_range(self.remaining?.min(max))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        // A piece of a file is read instead: its bytes still count as remaining.
        if let Some(BodyPiece::Bytes(bytes)) = self.first.take() {
            return Poll::Ready(Some(Ok(bytes)));
        }
        if let Some(progress) = &self.progress {
            progress.frame_taken();
        }
        loop {
            match std::mem::replace(&mut self.state, StreamState::Done) {
                StreamState::Done => return Poll::Ready(None),
                StreamState::Idle(_) if self.is_read() => return Poll::Ready(None),
                StreamState::Idle(mut source) => {
                    let pacer = self.pacer.clone();
                    self.state = StreamState::Reading(Box::pin(async move {
                        if let Some(pacer) = &pacer {
                            pacer.pass().await;
                        }
                        let bytes = metered(pacer.as_deref(), source.next()).await;
                        (source, bytes)
                    }));
                }
                StreamState::Reading(mut read) => {
                    let Poll::Ready((source, bytes)) = read.as_mut().poll(context) else {
                        self.state = StreamState::Reading(read);
                        return Poll::Pending;
                    };
                    return Poll::Ready(self.frame_read(source, bytes));
                }
            }
        }
    }

    fn frame_read(
        &mut self,
        source: Box<BodyReader>,
        bytes: Result<Bytes, Error>,
    ) -> Option<Result<Bytes, Error>> {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                self.failed_content = Some(source.name());
                return Some(Err(error));
            }
        };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        match &mut self.remaining {
            Some(0) if bytes.is_empty() => {
                self.is_empty_unverified = false;
                return None;
            }
            Some(remaining) if bytes.is_empty() || length > *remaining => {
                self.failed_content = Some(source.name());
                return Some(Err(Error::Truncated {
                    at: source.offset(),
                }));
            }
            None if bytes.is_empty() => return None,
            Some(remaining) => *remaining -= length,
            None => {}
        }
        if let Some(progress) = &self.progress {
            progress.frame_sent();
        }
        self.state = StreamState::Idle(source);
        Some(Ok(match &self.reservation {
            Some(reservation) => reservation.attach(bytes),
            None => bytes,
        }))
    }
}

/// Counts and logs how one response ends: complete, cancelled by the client, or failed.
pub(crate) struct ResponseAccount {
    metrics: Arc<Metrics>,
    kind: EndpointKind,
    started: Instant,
    expected: Option<u64>,
    sent: u64,
    is_complete: bool,
    has_failed: bool,
}

impl ResponseAccount {
    /// Creates the account. `expected` is the number of bytes of the body, if known.
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        kind: EndpointKind,
        started: Instant,
        expected: Option<u64>,
    ) -> Self {
        Self {
            metrics,
            kind,
            started,
            expected,
            sent: 0,
            is_complete: false,
            has_failed: false,
        }
    }

    fn sent(&mut self, bytes: u64) {
        if self.sent == 0 {
            self.metrics
                .first_byte(self.kind, self.started.elapsed().as_secs_f64());
        }
        self.sent += bytes;
        self.metrics.sent(self.kind, bytes);
    }

    /// Logs a failed read. `content` is the name of the content whose read failed.
    fn failed(&mut self, error: &Error, content: &str) {
        self.has_failed = true;
        self.metrics.aborted.inc();
        tracing::warn!(endpoint = ?self.kind, content, sent = self.sent, %error, "response aborted");
    }
}

impl Drop for ResponseAccount {
    fn drop(&mut self) {
        let complete = self.is_complete || self.expected == Some(self.sent);
        self.metrics
            .ended(self.kind, self.started.elapsed().as_secs_f64());
        if !complete && !self.has_failed {
            // An incomplete body without a failed read is no error: clients regularly close
            // connections in the middle of a body.
            self.metrics.cancelled.inc();
        }
        let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(endpoint = ?self.kind, bytes = self.sent, complete, duration_ms, "response ended");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_first_piece_that_fails_at_once_fails_before_the_head() {
        for (length, sends_files) in [(100, true), (200_000, true), (200_000, false)] {
            let mut body = Body::records(RecordStream::ended("content"), Some(length));
            let until = tokio::time::Instant::now() + Duration::from_secs(60);
            let (error, content) = body.read_first_piece(sends_files, until).await.unwrap_err();
            assert!(matches!(error, Error::Truncated { at: 0 }), "{error}");
            assert_eq!(content, "content");
        }
    }
}
