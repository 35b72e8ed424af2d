//! The records of a bundle: over one connection, or over several where the way is long.

use std::io::{self, Read as _};
use std::ops::{ControlFlow, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pierhead_bundle::api::{Ask, Part};
use pierhead_bundle::format::{Decoder, Event};
use pierhead_bundle::store::Apply;
use pierhead_oci::Reference;

use super::super::Error;
use super::super::http::{Body, Server};
use super::super::session::{Patience, Session};
use super::ask::{self, Answered};
use super::flight::Flight;
use super::view::View;
use super::work::{Turn, Work};

/// From this round trip on, more connections are worth their price: below, one fills the line at once.
const FAR: Duration = Duration::from_millis(10);
/// Each starts with the 14 KB that TCP lets out at first, and doubles: so many together save three round trips.
const CONNECTIONS: usize = 8;
/// Read from a socket at a time.
const PIECE: usize = 64 << 10;

/// How many connections to use over a way of that length.
pub(super) fn connections(told: Option<usize>, rtt: Duration) -> usize {
    told.unwrap_or(if rtt < FAR { 1 } else { CONNECTIONS })
}

/// Why fetching ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    /// Every record was brought.
    All,
    /// The server has another bundle by now: ask anew.
    Changed,
}

/// A bundle whose header was received.
pub(super) struct Fetch<'a> {
    server: &'a Server,
    image: &'a Reference,
    apply: &'a Apply,
    work: Mutex<Work>,
    flight: Flight,
    /// Connections that may be used.
    among: usize,
    view: &'a View,
}

/// Ends the ones that go on when another one has failed.
type Ended = Mutex<Option<Result<Fetched, Error>>>;

impl<'a> Fetch<'a> {
    pub(super) fn new(
        server: &'a Server,
        image: &'a Reference,
        apply: &'a Apply,
        work: Work,
        among: usize,
        view: &'a View,
    ) -> Self {
        Self {
            server,
            image,
            apply,
            work: Mutex::new(work),
            flight: Flight::default(),
            among,
            view,
        }
    }

    /// Fetches what is missing. `first` is the answer that the header came in, its decoder behind the header, and what
    /// was read beyond; `more` are connections beside that one.
    ///
    /// # Errors
    /// The first for good of any connection.
    pub(super) fn run(
        &self,
        first: Option<(Body, Decoder, Vec<u8>)>,
        more: Vec<Session>,
    ) -> Result<Fetched, Error> {
        let ended = Ended::default();
        thread::scope(|scope| {
            for session in more {
                scope.spawn(|| self.note(&ended, self.ranges(session, &ended)));
            }
            let result = self.front(first, &ended);
            self.note(&ended, result);
        });
        let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        ended.unwrap_or(Ok(Fetched::All))
    }

    fn note(&self, outcome: &Ended, result: Result<Fetched, Error>) {
        if !matches!(result, Ok(Fetched::All)) {
            lock(outcome).get_or_insert(result);
        }
    }

    /// The first connection: what it was sent with the header, then whatever nobody else has taken.
    fn front(
        &self,
        first: Option<(Body, Decoder, Vec<u8>)>,
        outcome: &Ended,
    ) -> Result<Fetched, Error> {
        let mut patience = Patience::new();
        if let Some((body, decoder, rest)) = first {
            let reading = Reading {
                body,
                decoder,
                rest,
                bound: lock(&self.work).frames(),
            };
            match self.read(reading, None, outcome, &mut patience) {
                Ok(End::Over) => {}
                Ok(End::Changed) => return Ok(Fetched::Changed),
                Err(error) => patience.after(error)?,
            }
        }
        let session = Session::new(self.server);
        while lock(outcome).is_none() {
            let Some(range) = lock(&self.work).next_front() else {
                return Ok(Fetched::All);
            };
            match self.part(&session, range, None, outcome, &mut patience) {
                Ok(End::Over) => {}
                Ok(End::Changed) => return Ok(Fetched::Changed),
                Err(error) => patience.after(error)?,
            }
        }
        Ok(Fetched::All)
    }

    /// Another connection: range after range.
    fn ranges(&self, session: Session, outcome: &Ended) -> Result<Fetched, Error> {
        let mut patience = Patience::new();
        while lock(outcome).is_none() {
            let Some(range) = lock(&self.work).take(self.among) else {
                return Ok(Fetched::All);
            };
            let mut left = range.clone();
            let result = self.part(&session, range, Some(&mut left), outcome, &mut patience);
            lock(&self.work).give_back(left);
            match result {
                Ok(End::Over) => {}
                Ok(End::Changed) => return Ok(Fetched::Changed),
                Err(error) => patience.after(error)?,
            }
        }
        Ok(Fetched::All)
    }

    fn part(
        &self,
        session: &Session,
        range: Range<u32>,
        left: Option<&mut Range<u32>>,
        outcome: &Ended,
        patience: &mut Patience,
    ) -> Result<End, Error> {
        let ask = Ask {
            part: Some(Part {
                etag: self.apply.etag().to_owned(),
                first: range.start,
                end: Some(range.end),
            }),
            ..self.apply.ask().clone()
        };
        let answered = match ask::once(session, self.image, &ask) {
            // It is being made ready anew: whoever asks for the bundle waits for that.
            Err(Error::Refused {
                detail: Some(_), ..
            }) => return Ok(End::Changed),
            answered => answered?,
        };
        match answered {
            Answered::Bundle { etag, body } if etag == self.apply.etag() => {
                let reading = Reading {
                    body,
                    decoder: Decoder::resumed(self.apply.digest(), self.apply.header()),
                    rest: Vec::new(),
                    bound: range.end,
                };
                self.read(reading, left, outcome, patience)
            }
            _ => Ok(End::Changed),
        }
    }

    /// Reads records up to the end of what is this connection's.
    fn read(
        &self,
        reading: Reading,
        mut left: Option<&mut Range<u32>>,
        outcome: &Ended,
        patience: &mut Patience,
    ) -> Result<End, Error> {
        let bound = reading.bound;
        pump(self.server, &self.flight, reading, |event| {
            if lock(outcome).is_some() {
                return Ok(ControlFlow::Break(End::Over));
            }
            let (frame, record) = match event {
                Event::Record {
                    frame,
                    coding,
                    payload,
                } => (frame, Some((coding, payload))),
                Event::Unsent { frame } => (frame, None),
                Event::Continued(_) => return Ok(ControlFlow::Continue(())),
                Event::Header { .. } => return Ok(ControlFlow::Break(End::Changed)),
                Event::End(_) => {
                    // Frames without a record are behind the last one, too.
                    match &mut left {
                        Some(left) => left.start = left.end,
                        None => lock(&self.work).front_ended(),
                    }
                    return Ok(ControlFlow::Continue(()));
                }
            };
            if left.is_none() {
                match lock(&self.work).turn(frame) {
                    Turn::Take => {}
                    Turn::Skip => return Ok(ControlFlow::Continue(())),
                    Turn::Stop => return Ok(ControlFlow::Break(End::Over)),
                }
            }
            // What is not sent is missed at the end, and asked for file by file.
            if let Some((coding, payload)) = record {
                self.apply.record(frame, coding, payload)?;
            }
            patience.renew();
            self.view.at(self.server.received());
            let more = match &mut left {
                Some(left) => {
                    left.start = frame.saturating_add(1).min(left.end);
                    true
                }
                None => lock(&self.work).brought(frame, bound),
            };
            Ok(match more {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(End::Over),
            })
        })
    }
}

/// How reading one answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All that was wanted of it came.
    Over,
    /// It is of another bundle.
    Changed,
}

/// An answer that is being read.
struct Reading {
    body: Body,
    decoder: Decoder,
    /// Bytes of it that were read already.
    rest: Vec<u8>,
    /// It ends before this frame.
    bound: u32,
}

/// Feeds a decoder from an answer until `each` has enough or the bundle ends.
fn pump(
    server: &Server,
    flight: &Flight,
    mut reading: Reading,
    mut each: impl FnMut(Event) -> Result<ControlFlow<End>, Error>,
) -> Result<End, Error> {
    let doing = || format!("the bundle of {} was cut", server.url());
    let mut piece = vec![0; PIECE];
    let mut bytes = &reading.rest[..];
    let mut room = None;
    loop {
        while let Some(event) = reading.decoder.feed(&mut bytes)? {
            if let ControlFlow::Break(end) = each(event)? {
                return Ok(end);
            }
            room = None;
        }
        if room.is_none() {
            room = reading.decoder.announced().map(|bytes| flight.room(bytes));
        }
        let read = reading.body.read(&mut piece).map_err(Error::cut(doing()))?;
        if read == 0 {
            return match reading.decoder.is_ended() {
                true => Ok(End::Over),
                false => Err(Error::cut(doing())(io::ErrorKind::UnexpectedEof.into())),
            };
        }
        bytes = &piece[..read];
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
