//! The records of a bundle: over one connection, or over several where the way is long.

use std::io::{self, Read as _};
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pierhead_bundle::api::{Ask, Part};
use pierhead_bundle::format::{Decoder, Event};
use pierhead_oci::Reference;
use pierhead_worker::store::Apply;

use super::super::Error;
use super::super::http::{Body, Server};
use super::super::session::{Patience, Session};
use super::ask::{self, Answered};
use super::flight::Flight;
use super::lanes::{Lane, Lanes, Share};
use super::view::View;
use super::work::{Next, Turn, Work};

/// From this round trip on, more connections are worth their price: below, one fills the line at once.
pub(super) const FAR: Duration = Duration::from_millis(10);
/// Each starts with the 14 KB that TCP lets out at first, and doubles with each round trip: the longer that takes, the more
/// are to begin at once. One for so much of a round trip, within these bounds.
const EACH: Duration = Duration::from_micros(2500);
const CONNECTIONS: (usize, usize) = (8, 64);
/// Read from a socket at a time.
const PIECE: usize = 64 << 10;

/// How many connections to use over a way of that length.
pub(super) fn connections(told: Option<usize>, rtt: Duration) -> usize {
    let many = usize::try_from(rtt.as_micros() / EACH.as_micros()).unwrap_or(usize::MAX);
    let many = many.clamp(CONNECTIONS.0, CONNECTIONS.1);
    told.unwrap_or(if rtt < FAR { 1 } else { many })
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
    /// A lane has said what it was sent, or all is over.
    said: Condvar,
    flight: Flight,
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
        view: &'a View,
    ) -> Self {
        Self {
            server,
            image,
            apply,
            work: Mutex::new(work),
            said: Condvar::new(),
            flight: Flight::default(),
            view,
        }
    }

    /// Fetches what is missing. `first` is the answer that the header came in, read up to behind that; `lanes` are connections beside that one, and what they were sent so far.
    ///
    /// # Errors
    /// The first for good of any connection.
    pub(super) fn run(&self, first: Option<Reading>, lanes: Lanes) -> Result<Fetched, Error> {
        let ended = Ended::default();
        let ended = &ended;
        thread::scope(|scope| {
            for (lane, joining) in (1..).zip(lanes.into_threads()) {
                scope.spawn(move || {
                    let found = joining.and_then(|it| it.join().ok()).flatten();
                    let share = found.as_ref().and_then(|it| it.share.as_ref());
                    let share = share.filter(|share| self.is_of_this(share));
                    let range = share.map(|share| share.prelude.first..share.prelude.until);
                    lock(&self.work).claim(lane, range);
                    self.said.notify_all();
                    if let Some(Lane { session, share }) = found {
                        let share = share.filter(|share| self.is_of_this(share));
                        let first = share.map(|share| self.reading(share));
                        self.note(ended, self.lane(lane, &session, first, ended));
                    }
                });
            }
            let session = Session::new(self.server);
            self.note(ended, self.lane(0, &session, first, ended));
        });
        let found = lock(ended).take();
        found.unwrap_or(Ok(Fetched::All))
    }

    /// Whether it goes with the header that came; else it is of another state of the server, and no loss.
    fn is_of_this(&self, share: &Share) -> bool {
        share.etag == self.apply.etag() && share.prelude.digest == self.apply.digest()
    }

    fn reading(&self, share: Share) -> Reading {
        Reading {
            body: share.body,
            decoder: Decoder::resumed(self.apply.digest(), self.apply.header()),
            rest: share.spool,
            bound: share.prelude.until,
        }
    }

    fn note(&self, outcome: &Ended, result: Result<Fetched, Error>) {
        if !matches!(result, Ok(Fetched::All)) {
            lock(outcome).get_or_insert(result);
            // Whoever waits has looked at the outcome, or is woken.
            drop(lock(&self.work));
            self.said.notify_all();
        }
    }

    /// One connection: what it was sent already, then range after range.
    fn lane(
        &self,
        lane: usize,
        session: &Session,
        first: Option<Reading>,
        outcome: &Ended,
    ) -> Result<Fetched, Error> {
        let mut patience = Patience::new();
        let mut first = first;
        loop {
            let read = match first.take() {
                Some(reading) => self.read(lane, reading, outcome, &mut patience),
                None => match self.next(lane, outcome) {
                    None => return Ok(Fetched::All),
                    Some(range) => self.part(lane, session, &range, outcome, &mut patience),
                },
            };
            match read {
                Ok(End::Over) => {}
                Ok(End::Changed) => return Ok(Fetched::Changed),
                Err(error) => patience.after(error)?,
            }
        }
    }

    /// What a lane is to ask for; `None` at the end.
    fn next(&self, lane: usize, outcome: &Ended) -> Option<Range<u32>> {
        let mut work = lock(&self.work);
        while lock(outcome).is_none() {
            match work.next(lane) {
                Next::Range(range) => return Some(range),
                Next::Nothing => return None,
                Next::Wait => {
                    let woken = self.said.wait(work);
                    work = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        None
    }

    fn part(
        &self,
        lane: usize,
        session: &Session,
        range: &Range<u32>,
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
                self.read(lane, reading, outcome, patience)
            }
            _ => Ok(End::Changed),
        }
    }

    /// Reads records up to the end of what is this connection's.
    fn read(
        &self,
        lane: usize,
        reading: Reading,
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
                    lock(&self.work).ended(lane);
                    return Ok(ControlFlow::Continue(()));
                }
            };
            match lock(&self.work).turn(lane, frame) {
                Turn::Take => {}
                Turn::Skip => return Ok(ControlFlow::Continue(())),
                Turn::Stop => return Ok(ControlFlow::Break(End::Over)),
            }
            // What is not sent is missed at the end, and asked for file by file.
            if let Some((coding, payload)) = record {
                self.apply.record(frame, coding, payload)?;
            }
            patience.renew();
            self.view.at(self.server.received());
            let more = lock(&self.work).brought(lane, frame, bound);
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
pub(super) struct Reading {
    pub(super) body: Body,
    pub(super) decoder: Decoder,
    /// Bytes of it that were read already.
    pub(super) rest: Vec<u8>,
    /// It ends before this frame.
    pub(super) bound: u32,
}

/// Feeds a decoder from an answer until `each` has enough or the bundle ends.
fn pump(
    server: &Server,
    flight: &Flight,
    mut reading: Reading,
    mut each: impl FnMut(Event) -> Result<ControlFlow<End>, Error>,
) -> Result<End, Error> {
    let doing = || format!("the bundle of {} was cut", server.url());
    let mut room = flight.room();
    let mut spool = std::mem::take(&mut reading.rest);
    let mut piece = vec![0; PIECE];
    let mut bytes = &spool[..];
    room.grow(spool.len());
    loop {
        while let Some(event) = reading.decoder.feed(&mut bytes)? {
            if let ControlFlow::Break(end) = each(event)? {
                return Ok(end);
            }
            room.shrink(bytes.len());
        }
        // Others may have theirs still.
        drop(std::mem::take(&mut spool));
        let read = reading.body.read(&mut piece).map_err(Error::cut(doing()))?;
        if read == 0 {
            return match reading.decoder.is_ended() {
                true => Ok(End::Over),
                false => Err(Error::cut(doing())(io::ErrorKind::UnexpectedEof.into())),
            };
        }
        room.grow(read);
        bytes = &piece[..read];
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
