//! The body of an answer: nothing, a few bytes, or a stream of frames read as the client takes them.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pierhead_bundle_server::library::Opened;
use pierhead_cache::VerifiedRange;
use pierhead_host::{CpuPacer, PIECE_BYTES, metered};

use crate::bundle::record_stream::{Range, Records};
use crate::error::Error;
use crate::http::client_progress::{Pace, Turn};
use crate::limits::connections::Answering;
use crate::limits::memory::Held;
use crate::metrics::{Kind, Metrics};
use crate::pull::blob::Source;

/// What leaves next, for a socket that can send files.
pub(crate) enum Piece {
    Bytes(Bytes),
    /// A range of a file that can leave as it is.
    File {
        file: Sendable,
        offset: u64,
        len: u64,
    },
}

/// What holds a file that is sent from.
pub(crate) enum Sendable {
    /// A range of a committed blob, checked already.
    VerifiedRange(VerifiedRange),
    /// A pack, whose records are checked by who gets them.
    Opened(Opened),
}

impl Sendable {
    /// The file in which byte `offset`, the first of the range, lies, and where; `None` when it is not the one that was checked.
    pub(crate) fn at(&self, offset: u64) -> Option<(&File, u64)> {
        match self {
            Self::VerifiedRange(sound) => sound.place(),
            Self::Opened(opened) => Some((opened.file(), offset)),
        }
    }
}

/// What a stream reads from.
enum Reader {
    Blob(Source),
    Records(Records),
}

impl Reader {
    fn is_file(&self) -> bool {
        match self {
            Self::Blob(source) => source.is_file(),
            Self::Records(_) => true,
        }
    }

    fn sound(&self, max: u64) -> Option<Piece> {
        Some(match self {
            Self::Blob(source) => {
                let sound = source.sound(max)?;
                let (offset, len) = (sound.offset(), sound.bytes());
                let file = Sendable::VerifiedRange(sound);
                Piece::File { file, offset, len }
            }
            Self::Records(records) => {
                let Range { file, offset, len } = records.sound(max)?;
                let file = Sendable::Opened(file);
                Piece::File { file, offset, len }
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
pub(crate) enum Weight {
    /// All of it.
    Bytes(usize),
    /// Frames, one after the other.
    Stream,
    /// As of a stream, where files cannot be sent as they are.
    File,
}

/// See the head of this module.
pub(crate) struct Body {
    content: Content,
    /// Set once the answer is on its way; says what became of it when dropped.
    account: Option<Account>,
    /// Protects the connection from being closed for another client.
    answering: Option<Answering>,
}

enum Content {
    Bytes(Bytes),
    Stream(Stream),
}

/// Reads the next frame only when asked for it. A failure is an error frame, so that the connection
/// is cut: a body is never ended cleanly when it is wrong.
struct Stream {
    state: State,
    /// `None` when the size is known at the end only.
    remaining: Option<u64>,
    turn: Option<Turn>,
    /// Where each piece passes, if it has to.
    pacer: Option<Arc<CpuPacer>>,
    /// Only bytes that were looked at may leave: the file could not be sent as it is.
    copy: bool,
    held: Option<Arc<Held>>,
    /// What was read when it failed, for the log.
    blob: Option<String>,
}

impl Content {
    fn blob(&self) -> &str {
        match self {
            Self::Stream(stream) => stream.blob.as_deref().unwrap_or_default(),
            Self::Bytes(_) => "",
        }
    }
}

type Read = Pin<Box<dyn Future<Output = (Box<Reader>, Result<Bytes, Error>)> + Send>>;

enum State {
    Idle(Box<Reader>),
    /// One allocation a frame; a boxed future is what lets an async read be polled from here.
    Reading(Read),
    Done,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::bytes(Bytes::new())
    }

    pub(crate) fn bytes(bytes: Bytes) -> Self {
        Self {
            content: Content::Bytes(bytes),
            account: None,
            answering: None,
        }
    }

    /// What `source` gives; `length` bytes when that is known.
    pub(crate) fn stream(source: Box<Source>, length: Option<u64>) -> Self {
        Self::reader(Reader::Blob(*source), length)
    }

    /// A bundle, or a file of an image.
    pub(crate) fn records(mut records: Records, length: Option<u64>) -> Self {
        records.take_ready();
        Self::reader(Reader::Records(records), length)
    }

    fn reader(reader: Reader, length: Option<u64>) -> Self {
        Self {
            content: Content::Stream(Stream {
                state: State::Idle(Box::new(reader)),
                remaining: length,
                turn: None,
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
    pub(crate) fn weight(&self) -> Weight {
        match &self.content {
            Content::Bytes(bytes) => Weight::Bytes(bytes.len()),
            Content::Stream(Stream {
                state: State::Idle(source),
                ..
            }) if source.is_file() => Weight::File,
            Content::Stream(_) => Weight::Stream,
        }
    }

    /// Lets `held` count for as long as anything of it is in memory.
    pub(crate) fn held(mut self, held: Arc<Held>) -> Self {
        match &mut self.content {
            Content::Bytes(bytes) => *bytes = held.around(std::mem::take(bytes)),
            Content::Stream(stream) => stream.held = Some(held),
        }
        self
    }

    /// Counts what becomes of the answer, watches whether its client takes it, and lets what is long wait at `pacer`.
    pub(crate) fn accounted(
        mut self,
        account: Account,
        pace: &Arc<Pace>,
        pacer: Option<&Arc<CpuPacer>>,
    ) -> Self {
        let is_long = matches!(account.kind, Kind::Blob | Kind::Bundle | Kind::File);
        self.account = Some(account);
        if let Content::Stream(stream) = &mut self.content {
            stream.turn = Some(pace.turn());
            stream.pacer = pacer.filter(|_| is_long).cloned();
        }
        self
    }

    /// Marks a response in progress until this whole body is sent.
    pub(crate) fn answering(mut self, answering: Option<Answering>) -> Self {
        self.answering = answering;
        self
    }

    /// Where a piece of a file passes before it is sent. Bytes have passed when they are handed over.
    pub(crate) fn pacer(&self) -> Option<&CpuPacer> {
        match &self.content {
            Content::Stream(stream) => stream.pacer.as_deref(),
            Content::Bytes(_) => None,
        }
    }

    /// The next piece; `None` at the end. What is said to be a file's is still to be sent: see
    /// [`Body::sent`] and [`Body::copy`]. Cancel safe.
    pub(crate) async fn piece(&mut self) -> Option<Result<Piece, Error>> {
        if let Content::Stream(stream) = &self.content
            && let Some(file) = stream.file()
        {
            return Some(Ok(file));
        }
        let frame = poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await?;
        Some(frame.map(Piece::Bytes))
    }

    /// Takes note of bytes that were sent from the file.
    pub(crate) fn sent(&mut self, bytes: u64) {
        if let Content::Stream(stream) = &mut self.content
            && let State::Idle(reader) = &mut stream.state
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
        if let Content::Stream(stream) = &mut self.content {
            stream.copy = true;
        }
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Error>>> {
        let this = &mut *self;
        let next = match &mut this.content {
            Content::Bytes(bytes) if bytes.is_empty() => None,
            Content::Bytes(bytes) => Some(Ok(std::mem::take(bytes))),
            Content::Stream(stream) => ready!(stream.poll_next(context)),
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
            Content::Bytes(bytes) => bytes.is_empty(),
            Content::Stream(stream) => {
                stream.remaining == Some(0) || matches!(stream.state, State::Done)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Bytes(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Content::Stream(stream) => stream
                .remaining
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl Stream {
    /// The next range that can leave from a file.
    fn file(&self) -> Option<Piece> {
        let State::Idle(source) = &self.state else {
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
        source.sound(self.remaining?.min(most))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if let Some(turn) = &self.turn {
            turn.ours();
        }
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Poll::Ready(None),
                State::Idle(_) if self.remaining == Some(0) => return Poll::Ready(None),
                State::Idle(mut source) => {
                    let pacer = self.pacer.clone();
                    self.state = State::Reading(Box::pin(async move {
                        if let Some(pacer) = &pacer {
                            pacer.pass().await;
                        }
                        let bytes = metered(pacer.as_deref(), source.next()).await;
                        (source, bytes)
                    }));
                }
                State::Reading(mut read) => {
                    let Poll::Ready((source, bytes)) = read.as_mut().poll(context) else {
                        self.state = State::Reading(read);
                        return Poll::Pending;
                    };
                    return Poll::Ready(self.take(source, bytes));
                }
            }
        }
    }

    fn take(
        &mut self,
        source: Box<Reader>,
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
        if let Some(turn) = &self.turn {
            turn.theirs();
        }
        self.state = State::Idle(source);
        Some(Ok(match &self.held {
            Some(held) => held.around(bytes),
            None => bytes,
        }))
    }
}

/// What becomes of one answer, for the metrics and the log.
pub(crate) struct Account {
    metrics: Arc<Metrics>,
    kind: Kind,
    started: Instant,
    expected: Option<u64>,
    sent: u64,
    complete: bool,
    failed: bool,
}

impl Account {
    /// `expected`: bytes that the body will have, `None` when that is not known.
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        kind: Kind,
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

impl Drop for Account {
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
