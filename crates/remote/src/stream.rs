//! A blob as a stream that its upstream may cut as often as the retry budget allows.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use pierhead_oci::{Digest, Repository};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::Error;
use crate::blob::{Opened, Subject};
use crate::failover::Addresses;
use crate::fetches::Turn;
use crate::metrics::InFlight;
use crate::origin::{Limits, Origin, Place};
use crate::retry::{Patience, after};

/// Resumes in a row that bring next to nothing, before the stream gives up. With the header limit of 4 s this
/// rides out a restart of an upstream.
const PATIENCE: Patience = Patience {
    attempts: 6,
    rate_limit: Duration::from_secs(30),
    down: Duration::from_secs(10),
};

/// Fewer bytes than this in the stall time are a stall, whatever the minimum rate: a drip would hold its
/// place among the fetches for ever. So many, on the other hand, are progress.
const LEAST_PROGRESS: usize = 16 << 10;

/// Nothing at all for this part of the stall time is enough to try another connection while there is a try left, and
/// to give up one that has brought nothing yet: clients have no time limit of their own for a body.
const SILENT_PART: u32 = 3;

/// So many bytes show that an upstream is worth one more retry.
const WORTH_A_RETRY: usize = 256 << 10;

/// Bytes that have to come within the stall time.
fn enough(limits: &Limits) -> usize {
    let millis = u64::try_from(limits.stall_timeout.as_millis()).unwrap_or(u64::MAX);
    let least = limits.minimum_rate.saturating_mul(millis) / 1000;
    usize::try_from(least).map_or(usize::MAX, |least| least.max(LEAST_PROGRESS))
}

/// Opens a blob. Waits for its turn first.
pub(crate) async fn open(
    addresses: Addresses,
    repository: &Repository,
    digest: &Digest,
    offset: u64,
) -> Result<BlobStream, Error> {
    let first = addresses.first()?;
    let turn = first.shared.fetches.turn().await;
    let turn = turn.ok_or_else(|| first.transport("the client is shut down"))?;
    let in_flight = first.metrics.fetch();
    let subject = Subject::new(addresses, repository, digest);
    let Opened {
        origin,
        body,
        skip,
        size,
    } = subject.open(Patience::BLOB, None, offset, None).await?;
    let state = body.map_or(State::Ended, State::Reading);
    Ok(BlobStream {
        subject,
        senders: vec![Arc::clone(&origin.place)],
        origin,
        size,
        start: offset,
        position: offset,
        skip,
        state,
        held: None,
        waited: Duration::ZERO,
        trickle: 0,
        waiting: None,
        failures: 0,
        starved: 0,
        advanced: 0,
        uncredited: 0,
        _turn: (turn, in_flight),
    })
}

/// The addresses that a blob came from.
pub struct Senders {
    places: Vec<Arc<Place>>,
    digest: Digest,
}

impl Senders {
    /// What they sent has another digest: the next fetch of this blob asks other addresses first, where there
    /// are any.
    pub fn sent_wrong(&self) {
        for place in &self.places {
            place.distrust.note(self.digest);
        }
    }
}

type Resuming = Pin<Box<dyn Future<Output = Result<Opened, Error>> + Send>>;

enum State {
    Reading(Incoming),
    /// Held here rather than on the stack of `next`, so that a caller who gives up waiting and comes
    /// back finds it where it was. The lock is never taken: it makes the stream `Sync` for its holders.
    Resuming(Mutex<Resuming>),
    Ended,
}

/// The bytes of a blob as they arrive: one unbroken run, whatever happens to the connections below.
/// Dropping it ends the fetch.
pub struct BlobStream {
    subject: Subject,
    /// Who sends.
    origin: Origin,
    /// And who has sent, each once.
    senders: Vec<Arc<Place>>,
    size: Option<u64>,
    start: u64,
    /// Where the next byte lies that the caller has not been given.
    position: u64,
    skip: u64,
    state: State,
    /// Arrived, but not yet to be handed on for the sake of the bandwidth cap.
    held: Option<(Bytes, Instant)>,
    /// Time spent waiting, and bytes that came, since there were enough of them.
    waited: Duration,
    trickle: usize,
    /// When the present wait began; it goes on when `next` is called again.
    waiting: Option<Instant>,
    failures: u32,
    /// Cuts in a row because too little came.
    starved: usize,
    /// Bytes handed on since the last failure.
    advanced: usize,
    uncredited: usize,
    _turn: (Turn, InFlight),
}

impl BlobStream {
    /// Total bytes of the blob, whatever the offset; `None` when the upstream does not say.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Where the first byte lies: the offset asked for. An upstream that cannot begin there has its
    /// earlier bytes thrown away.
    pub fn offset(&self) -> u64 {
        self.start
    }

    /// Which address of the upstream sends now, as the log and the metrics call it.
    pub fn address(&self) -> &str {
        self.origin.health.address()
    }

    /// Who has sent so far.
    pub fn senders(&self) -> Senders {
        Senders {
            places: self.senders.clone(),
            digest: *self.subject.digest(),
        }
    }

    /// The next bytes, not empty; `None` at the end. After an error there are no more.
    ///
    /// The bytes are not verified against the digest. At the end they are as many as [`size`](Self::size)
    /// says. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            if let Some((_, when)) = &self.held {
                let when = *when;
                if Instant::now() < when {
                    sleep_until(when).await;
                }
                if let Some((bytes, _)) = self.held.take() {
                    return Some(Ok(bytes));
                }
            }
            let step = match &mut self.state {
                State::Ended => return None,
                State::Resuming(resuming) => match exclusive(resuming).as_mut().await {
                    Ok(opened) => self.resumed(opened),
                    Err(error) => self.again(error),
                },
                State::Reading(body) => {
                    let limit = self.origin.shared.limits.stall_timeout;
                    let began = *self.waiting.get_or_insert_with(Instant::now);
                    let mut deadline = began + limit.saturating_sub(self.waited);
                    if self.advanced == 0 || self.starved < self.subject.addresses.count() {
                        deadline = deadline.min(began + limit / SILENT_PART);
                    }
                    let outcome = timeout_at(deadline, body.frame()).await;
                    self.waiting = None;
                    self.waited += began.elapsed();
                    match outcome {
                        Ok(Some(Ok(frame))) => self.arrived(frame.into_data().unwrap_or_default()),
                        Ok(Some(Err(error))) => self.cut(&format!("the blob broke off: {error}")),
                        Ok(None) => self.ended(),
                        Err(_) => self.starve(),
                    }
                }
            };
            if let Err(error) = step {
                self.state = State::Ended;
                return Some(Err(error));
            }
        }
    }

    fn arrived(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        let origin = &self.origin;
        origin.metrics.received.inc_by(as_u64(bytes.len()));
        self.trickle += bytes.len();
        if self.trickle >= enough(&origin.shared.limits) {
            (self.trickle, self.waited, self.starved) = (0, Duration::ZERO, 0);
        }
        let skipped = usize::try_from(self.skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
        let reserved = origin.shared.bandwidth.reserve(bytes.len());
        bytes = bytes.split_off(skipped);
        self.skip -= as_u64(skipped);
        if bytes.is_empty() {
            return Ok(());
        }
        self.position += as_u64(bytes.len());
        if self.size.is_some_and(|size| self.position > size) {
            origin.distrust.note(*self.subject.digest());
            return Err(origin.protocol("its blob is longer than it said"));
        }
        let before = self.advanced;
        self.advanced = self.advanced.saturating_add(bytes.len());
        if self.advanced >= LEAST_PROGRESS {
            self.failures = 0;
            if before < LEAST_PROGRESS {
                origin.health.body(true);
            }
        }
        self.uncredited += bytes.len();
        while self.uncredited >= WORTH_A_RETRY {
            self.uncredited -= WORTH_A_RETRY;
            origin.budget.progressed();
        }
        self.held = Some((bytes, reserved));
        Ok(())
    }

    fn ended(&mut self) -> Result<(), Error> {
        if self.skip > 0 || self.size.is_some_and(|size| self.position < size) {
            return self.cut("the blob ended early");
        }
        self.origin.health.body(true);
        self.state = State::Ended;
        Ok(())
    }

    fn cut(&mut self, why: &str) -> Result<(), Error> {
        let error = self.broken(why);
        self.again(error)
    }

    fn broken(&self, why: &str) -> Error {
        if self.advanced < LEAST_PROGRESS {
            self.origin.health.body(false);
        }
        self.origin.transport(why)
    }

    /// Too little came: nothing to speak of, or less than the minimum rate.
    fn starve(&mut self) -> Result<(), Error> {
        self.starved += 1;
        let limits = &self.origin.shared.limits;
        let (came, waited, stall) = (self.trickle, self.waited, limits.stall_timeout);
        let is_still = came < LEAST_PROGRESS || waited < stall;
        let why = match is_still {
            true => format!("the blob stands still: {came} bytes in {waited:.1?}"),
            false => format!(
                "the blob is slow: {came} bytes in {stall:?}, and the minimum is {} a second",
                limits.minimum_rate
            ),
        };
        // A new connection may fare better, and another address even more; then it is what it is.
        if self.starved > self.subject.addresses.count() {
            return Err(self.broken(&why));
        }
        self.cut(&why)
    }

    /// Plans a resume, or gives up with `error`.
    fn again(&mut self, error: Error) -> Result<(), Error> {
        let origin = &self.origin;
        let Some(wait) = after(&error, self.failures, PATIENCE, origin) else {
            return Err(error);
        };
        tracing::debug!(upstream = %origin.name, at = self.position, %error, "resuming a blob");
        origin.metrics.resumes.inc();
        // A cut after progress is no sign of trouble: go on at once.
        let wait = (self.failures > 0).then_some(wait);
        self.failures += 1;
        self.advanced = 0;
        (self.trickle, self.waited) = (0, Duration::ZERO);
        let (subject, position, size) = (self.subject.clone(), self.position, self.size);
        let last = Arc::clone(&origin.place);
        self.state = State::Resuming(Mutex::new(Box::pin(async move {
            if let Some(wait) = wait {
                sleep(wait).await;
            }
            subject
                .open(Patience::ONCE, Some(&last), position, size)
                .await
        })));
        Ok(())
    }

    fn resumed(&mut self, opened: Opened) -> Result<(), Error> {
        self.origin = opened.origin;
        let place = &self.origin.place;
        if !self.senders.iter().any(|known| Arc::ptr_eq(known, place)) {
            self.senders.push(Arc::clone(place));
        }
        self.skip = opened.skip;
        self.size = opened.size;
        self.state = opened.body.map_or(State::Ended, State::Reading);
        Ok(())
    }
}

fn exclusive<T>(lock: &mut Mutex<T>) -> &mut T {
    lock.get_mut().unwrap_or_else(PoisonError::into_inner)
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
