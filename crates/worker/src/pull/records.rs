//! Fetches the records of a bundle (the compressed frames) over one or several connections, and
//! applies each record to the store.

use std::io::{self, Read as _};
use std::ops::{ControlFlow, Range};
use std::thread;

use crate::store::Apply;
use parking_lot::{Condvar, Mutex};
use pierhead_bundle::api::{BundleQuery, Part};
use pierhead_bundle::format::{Decoder, Event};

use super::connections::{ExtraConnection, ExtraConnections, ShareStream};
use super::context::PullContext;
use super::memory::MemoryBudget;
use super::request::{BundleResponse, request_bundle};
use super::schedule::{FrameAction, FrameSchedule, NextRange};
use crate::http::{Body, RetryBackoff, Session};
use crate::{Error, Server};

const READ_SIZE: usize = 64 << 10;

/// How the fetch of records ended, if without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchOutcome {
    /// All records of the bundle were applied.
    Complete,
    /// The server has replaced the bundle, so the caller has to request the bundle again.
    Changed,
}

/// The fetch of the records of one bundle, whose header has already arrived.
pub(super) struct RecordFetch<'a> {
    context: &'a PullContext<'a>,
    apply: &'a Apply,
    schedule: Mutex<FrameSchedule>,
    /// Notified when a connection has reported which share it receives, or when the fetch has
    /// stopped.
    schedule_changed: Condvar,
    memory: MemoryBudget,
    /// The result of the first connection that fails or receives another bundle. When it is set,
    /// all connections stop.
    stopped: Mutex<Option<Result<FetchOutcome, Error>>>,
}

impl<'a> RecordFetch<'a> {
    pub(super) fn new(
        context: &'a PullContext<'a>,
        apply: &'a Apply,
        schedule: FrameSchedule,
    ) -> Self {
        Self {
            context,
            apply,
            schedule: Mutex::new(schedule),
            schedule_changed: Condvar::new(),
            memory: MemoryBudget::default(),
            stopped: Mutex::new(None),
        }
    }

    /// Fetches all missing records. `first` is the part of the header's response that is not read
    /// yet.
    ///
    /// # Errors
    /// The first error of a connection that remains after its retries.
    pub(super) fn run(
        self,
        first: Option<RecordStream>,
        extra: ExtraConnections,
    ) -> Result<FetchOutcome, Error> {
        let fetch = &self;
        thread::scope(|scope| {
            for (connection, thread) in (1..).zip(extra.into_threads()) {
                scope.spawn(move || {
                    let opened = thread.and_then(|thread| thread.join().ok()).flatten();
                    let (session, share) = match opened {
                        Some(ExtraConnection { session, share }) => (Some(session), share),
                        None => (None, None),
                    };
                    let share = share.filter(|share| fetch.is_of_this_bundle(share));
                    let range = share
                        .as_ref()
                        .map(|share| share.prelude.first..share.prelude.until);
                    fetch.schedule.lock().claim(connection, range);
                    fetch.schedule_changed.notify_all();
                    if let Some(session) = session {
                        let first = share.map(|share| fetch.share_records(share));
                        fetch.report(fetch.run_connection(connection, &session, first));
                    }
                });
            }
            let session = fetch.context.session();
            fetch.report(fetch.run_connection(0, &session, first));
        });
        self.stopped
            .into_inner()
            .unwrap_or(Ok(FetchOutcome::Complete))
    }

    /// Whether a share belongs to the bundle of the header. If the share belongs to another bundle,
    /// the server has replaced the bundle meanwhile, and the worker requests the frames of the
    /// share again.
    fn is_of_this_bundle(&self, share: &ShareStream) -> bool {
        share.etag == self.apply.etag() && share.prelude.digest == self.apply.digest()
    }

    fn share_records(&self, share: ShareStream) -> RecordStream {
        RecordStream {
            body: share.body,
            decoder: Decoder::resumed(self.apply.digest(), self.apply.header()),
            rest: share.buffered,
            end: share.prelude.until,
        }
    }

    /// Stops all connections if `result` is an error or the outcome "another bundle".
    fn report(&self, result: Result<FetchOutcome, Error>) {
        if !matches!(result, Ok(FetchOutcome::Complete)) {
            self.stopped.lock().get_or_insert(result);
            // Takes and releases the lock before the notification. So every connection either sees
            // `stopped` or already waits for the notification.
            drop(self.schedule.lock());
            self.schedule_changed.notify_all();
        }
    }

    /// Runs one connection: first reads its share of the bundle, and then requests one range of
    /// frames after another.
    fn run_connection(
        &self,
        connection: usize,
        session: &Session,
        mut first: Option<RecordStream>,
    ) -> Result<FetchOutcome, Error> {
        let mut backoff = RetryBackoff::new();
        loop {
            let read = match first.take() {
                Some(records) => self.read_records(connection, records, &mut backoff),
                None => match self.next_range(connection) {
                    None => return Ok(FetchOutcome::Complete),
                    Some(range) => self.fetch_range(connection, session, &range, &mut backoff),
                },
            };
            match read {
                Ok(ReadEnd::Complete) => {}
                Ok(ReadEnd::Changed) => return Ok(FetchOutcome::Changed),
                Err(error) => backoff.wait(error)?,
            }
        }
    }

    /// Returns the range of frames that a connection requests next. Returns `None` at the end of
    /// the fetch.
    fn next_range(&self, connection: usize) -> Option<Range<u32>> {
        let mut schedule = self.schedule.lock();
        while self.stopped.lock().is_none() {
            match schedule.next(connection) {
                NextRange::Range(range) => return Some(range),
                NextRange::Nothing => return None,
                NextRange::Wait => self.schedule_changed.wait(&mut schedule),
            }
        }
        None
    }

    fn fetch_range(
        &self,
        connection: usize,
        session: &Session,
        range: &Range<u32>,
        backoff: &mut RetryBackoff,
    ) -> Result<ReadEnd, Error> {
        let query = BundleQuery {
            part: Some(Part {
                etag: self.apply.etag().to_owned(),
                first: range.start,
                end: Some(range.end),
            }),
            ..self.apply.query().clone()
        };
        let response = match request_bundle(session, &self.context.image, &query) {
            // The server prepares the bundle again. The caller requests the header again, and that
            // request waits until the bundle is ready.
            Err(Error::Refused {
                detail: Some(_), ..
            }) => return Ok(ReadEnd::Changed),
            response => response?,
        };
        match response {
            BundleResponse::Bundle { etag, body } if etag == self.apply.etag() => {
                let records = RecordStream {
                    body,
                    decoder: Decoder::resumed(self.apply.digest(), self.apply.header()),
                    rest: Vec::new(),
                    end: range.end,
                };
                self.read_records(connection, records, backoff)
            }
            _ => Ok(ReadEnd::Changed),
        }
    }

    /// Reads and applies records up to the end of the range of frames that this connection has.
    fn read_records(
        &self,
        connection: usize,
        records: RecordStream,
        backoff: &mut RetryBackoff,
    ) -> Result<ReadEnd, Error> {
        let (end, server) = (records.end, self.context.server);
        decode(server, &self.memory, records, |event| {
            if self.stopped.lock().is_some() {
                return Ok(ControlFlow::Break(ReadEnd::Complete));
            }
            let (frame, record) = match event {
                Event::Record {
                    frame,
                    coding,
                    payload,
                } => (frame, Some((coding, payload))),
                Event::Unsent { frame } => (frame, None),
                Event::Continued(_) => return Ok(ControlFlow::Continue(())),
                Event::Header { .. } => return Ok(ControlFlow::Break(ReadEnd::Changed)),
                Event::End(_) => {
                    // The frames after the last record may have no record.
                    self.schedule.lock().ended(connection);
                    return Ok(ControlFlow::Continue(()));
                }
            };
            match self.schedule.lock().action(connection, frame) {
                FrameAction::Apply => {}
                FrameAction::Skip => return Ok(ControlFlow::Continue(())),
                FrameAction::Stop => return Ok(ControlFlow::Break(ReadEnd::Complete)),
            }
            // If the server did not send this frame, the worker requests its contents one by one at
            // the end.
            if let Some((coding, payload)) = record {
                self.apply.record(frame, coding, payload)?;
            }
            backoff.reset();
            self.context.progress.set(server.received());
            let more = self.schedule.lock().applied(connection, frame, end);
            Ok(match more {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(ReadEnd::Complete),
            })
        })
    }
}

/// Why a connection stopped reading one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// All frames that the connection wanted have arrived.
    Complete,
    /// The response belongs to another bundle than the header.
    Changed,
}

/// A response of the server that contains records of a bundle.
pub(super) struct RecordStream {
    pub(super) body: Body,
    pub(super) decoder: Decoder,
    /// Bytes of the response that are read but not decoded yet.
    pub(super) rest: Vec<u8>,
    /// The response contains no frame from this number on.
    pub(super) end: u32,
}

/// Decodes the records of a response, until `each` returns `Break` or the bundle ends.
fn decode(
    server: &Server,
    memory: &MemoryBudget,
    mut records: RecordStream,
    mut each: impl FnMut(Event) -> Result<ControlFlow<ReadEnd>, Error>,
) -> Result<ReadEnd, Error> {
    let doing = || {
        format!(
            "the transfer of a bundle from {} was interrupted",
            server.url()
        )
    };
    let mut reservation = memory.reserve();
    let mut rest = std::mem::take(&mut records.rest);
    let mut buffer = vec![0; READ_SIZE];
    let mut bytes = &rest[..];
    reservation.grow(rest.len());
    loop {
        while let Some(event) = records.decoder.feed(&mut bytes)? {
            if let ControlFlow::Break(end) = each(event)? {
                return Ok(end);
            }
            reservation.shrink(bytes.len());
        }
        // Frees the buffered share after its last byte was decoded.
        drop(std::mem::take(&mut rest));
        let read = records.body.read(&mut buffer);
        let read = read.map_err(Error::connection(doing()))?;
        if read == 0 {
            return match records.decoder.is_ended() {
                true => Ok(ReadEnd::Complete),
                false => Err(Error::connection(doing())(
                    io::ErrorKind::UnexpectedEof.into(),
                )),
            };
        }
        reservation.grow(read);
        bytes = &buffer[..read];
    }
}
