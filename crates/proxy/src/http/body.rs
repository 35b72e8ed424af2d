//! The body of an answer: nothing, a few bytes, or a stream of frames read as the client takes them.

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

/// What leaves next, for a socket that can send files.
pub(crate) enum BodyPiece {
    Bytes(Bytes),
    /// A range of a file that can leave as it is.
    File {
        file: FileSource,
        offset: u64,
        len: u64,
    },
}

/// What holds a file that is sent from.
pub(crate) enum FileSource {
    /// A range of a committed blob, checked already.
    VerifiedRange(VerifiedRange),
    /// A pack, whose records are checked by who gets them.
    SentFile(SentFile),
}

impl FileSource {
    /// The file in which byte `offset`, the first of the range, lies, and where; `None` when it is not the one that was checked.
    pub(crate) fn at(&self, offset: u64) -> Option<(&File, u64)> {
        match self {
            Self::VerifiedRange(sendable) => sendable.file_position(),
            Self::SentFile(opened) => Some((opened.file(), offset)),
        }
    }
}

/// What a stream reads from.
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

    fn sendable(&self, max: u64) -> Option<BodyPiece> {
        Some(match self {
            Self::Blob(source) => {
                let sendable = source.verified_range(max)?;
                let (offset, len) = (sendable.offset(), sendable.bytes());
                let file = FileSource::VerifiedRange(sendable);
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

/// What of an answer is or will be in memory.
pub(crate) enum MemoryNeed {
    /// All of it.
    Bytes(usize),
    /// Frames, one after the other.
    Stream,
    /// As of a stream, where files cannot be sent as they are.
    File,
}

/// See the head of this module.
pub(crate) struct Body {
    content: BodyContent,
    /// Set once the answer is on its way; says what became of it when dropped.
    account: Option<ResponseAccount>,
    /// Protects the connection from being closed for another client.
    answering: Option<ResponseInProgress>,
}

enum BodyContent {
    Bytes(Bytes),
    Stream(BodyStream),
}

/// Reads the next frame only when asked for it. A failure is an error frame, so that the connection
/// is cut: a body is never ended cleanly when it is wrong.
struct BodyStream {
    state: StreamState,
    /// `None` when the size is known at the end only.
    remaining: Option<u64>,
    progress: Option<BodyProgress>,
    /// Where each piece passes, if it has to.
    pacer: Option<Arc<CpuPacer>>,
    /// Only bytes that were looked at may leave: the file could not be sent as it is.
    copy: bool,
    held: Option<Arc<MemoryReservation>>,
    /// What was read when it failed, for the log.
    blob: Option<String>,
}

impl BodyContent {
    fn blob(&self) -> &str {
        match self {
            Self::Stream(stream) => stream.blob.as_deref().unwrap_or_default(),
            Self::Bytes(_) => "",
        }
    }
}

type PendingRead = Pin<Box<dyn Future<Output = (Box<BodyReader>, Result<Bytes, Error>)> + Send>>;

enum StreamState {
    Idle(Box<BodyReader>),
    /// One allocation a frame; a boxed future is what lets an async read be polled from here.
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
            answering: None,
        }
    }

    /// What `source` gives; `length` bytes when that is known.
    pub(crate) fn stream(source: Box<BlobSource>, length: Option<u64>) -> Self {
        Self::reader(BodyReader::Blob(*source), length)
    }

    /// A bundle, or a file of an image.
    pub(crate) fn records(mut records: RecordStream, length: Option<u64>) -> Self {
        records.take_ready();
        Self::reader(BodyReader::Records(records), length)
    }

    fn reader(reader: BodyReader, length: Option<u64>) -> Self {
        Self {
            content: BodyContent::Stream(BodyStream {
                state: StreamState::Idle(Box::new(reader)),
                remaining: length,
                progress: None,
                pacer: None,
                copy: false,
                held: None,
                blob: None,
            }),
            account: None,
            answering: None,
        }
    }

    /// What of it is or will be in memory.
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

    /// Lets `held` count for as long as anything of it is in memory.
    pub(crate) fn held(mut self, held: Arc<MemoryReservation>) -> Self {
        match &mut self.content {
            BodyContent::Bytes(bytes) => *bytes = held.attach(std::mem::take(bytes)),
            BodyContent::Stream(stream) => stream.held = Some(held),
        }
        self
    }

    /// Counts what becomes of the answer, watches whether its client takes it, and lets what is long wait at `pacer`.
    pub(crate) fn accounted(
        mut self,
        account: ResponseAccount,
        progress: &Arc<ClientProgress>,
        pacer: Option<&Arc<CpuPacer>>,
    ) -> Self {
        let is_long = matches!(
            account.kind,
            EndpointKind::Blob | EndpointKind::Bundle | EndpointKind::File
        );
        self.account = Some(account);
        if let BodyContent::Stream(stream) = &mut self.content {
            stream.progress = Some(progress.body());
            stream.pacer = pacer.filter(|_| is_long).cloned();
        }
        self
    }

    /// Marks a response in progress until this whole body is sent.
    pub(crate) fn answering(mut self, answering: Option<ResponseInProgress>) -> Self {
        self.answering = answering;
        self
    }

    /// Where a piece of a file passes before it is sent. Bytes have passed when they are handed over.
    pub(crate) fn pacer(&self) -> Option<&CpuPacer> {
        match &self.content {
            BodyContent::Stream(stream) => stream.pacer.as_deref(),
            BodyContent::Bytes(_) => None,
        }
    }

    /// The next piece; `None` at the end. What is said to be a file's is still to be sent: see
    /// [`Body::sent`] and [`Body::copy`]. Cancel safe.
    pub(crate) async fn piece(&mut self) -> Option<Result<BodyPiece, Error>> {
        if let BodyContent::Stream(stream) = &self.content
            && let Some(file) = stream.file()
        {
            return Some(Ok(file));
        }
        let frame = poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await?;
        Some(frame.map(BodyPiece::Bytes))
    }

    /// Takes note of bytes that were sent from the file.
    pub(crate) fn sent(&mut self, bytes: u64) {
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

    /// From now on bytes only, which are checked one by one.
    pub(crate) fn copy(&mut self) {
        if let BodyContent::Stream(stream) = &mut self.content {
            stream.copy = true;
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
                Some(Err(error)) => account.failed(error, this.content.blob()),
                None => account.complete = true,
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
            BodyContent::Stream(stream) => {
                stream.remaining == Some(0) || matches!(stream.state, StreamState::Done)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Bytes(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            BodyContent::Stream(stream) => stream
                .remaining
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl BodyStream {
    /// The next range that can leave from a file.
    fn file(&self) -> Option<BodyPiece> {
        let StreamState::Idle(source) = &self.state else {
            return None;
        };
        if self.copy {
            return None;
        }
        let most = if self.pacer.is_some() {
            PIECE_BYTES
        } else {
            u64::MAX
        };
        source.sendable(self.remaining?.min(most))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if let Some(progress) = &self.progress {
            progress.client_took_it();
        }
        loop {
            match std::mem::replace(&mut self.state, StreamState::Done) {
                StreamState::Done => return Poll::Ready(None),
                StreamState::Idle(_) if self.remaining == Some(0) => return Poll::Ready(None),
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
                    return Poll::Ready(self.take(source, bytes));
                }
            }
        }
    }

    fn take(
        &mut self,
        source: Box<BodyReader>,
        bytes: Result<Bytes, Error>,
    ) -> Option<Result<Bytes, Error>> {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                self.blob = Some(source.name());
                return Some(Err(error));
            }
        };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        match &mut self.remaining {
            Some(remaining) if bytes.is_empty() || length > *remaining => {
                self.blob = Some(source.name());
                return Some(Err(Error::Truncated {
                    at: source.offset(),
                }));
            }
            None if bytes.is_empty() => return None,
            Some(remaining) => *remaining -= length,
            None => {}
        }
        if let Some(progress) = &self.progress {
            progress.wait_for_client();
        }
        self.state = StreamState::Idle(source);
        Some(Ok(match &self.held {
            Some(held) => held.attach(bytes),
            None => bytes,
        }))
    }
}

/// What becomes of one answer, for the metrics and the log.
pub(crate) struct ResponseAccount {
    metrics: Arc<Metrics>,
    kind: EndpointKind,
    started: Instant,
    expected: Option<u64>,
    sent: u64,
    complete: bool,
    failed: bool,
}

impl ResponseAccount {
    /// `expected`: bytes that the body will have, `None` when that is not known.
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
            complete: false,
            failed: false,
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

    /// `blob`: of which, for whoever has to find it.
    fn failed(&mut self, error: &Error, blob: &str) {
        self.failed = true;
        self.metrics.cut.inc();
        tracing::warn!(endpoint = ?self.kind, blob, sent = self.sent, %error, "answer cut");
    }
}

impl Drop for ResponseAccount {
    fn drop(&mut self) {
        let complete = self.complete || self.expected == Some(self.sent);
        self.metrics
            .ended(self.kind, self.started.elapsed().as_secs_f64());
        if !complete && !self.failed {
            // Clients close connections in the middle of bodies as a matter of course: no error.
            self.metrics.gone.inc();
        }
        let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(endpoint = ?self.kind, bytes = self.sent, complete, duration_ms, "answer ended");
    }
}
