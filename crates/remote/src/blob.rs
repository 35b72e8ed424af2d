//! Blobs: a stream that its upstream may cut as often as the retry budget allows.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use pierhead_oci::{Digest, Repository};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::Error;
use crate::authorize::request;
use crate::exchange::{Answer, refusal, require_identity};
use crate::metrics::{InFlight, Kind};
use crate::origin::Origin;
use crate::range::ContentRange;
use crate::retry::{Patience, after, retrying};

/// Resumes in a row that bring next to nothing, before the stream gives up. With the header limit of 4 s this
/// rides out a restart of an upstream.
const PATIENCE: Patience = Patience {
    attempts: 6,
    rate_limit: Duration::from_secs(30),
};

/// Fewer bytes than this in the stall time are a stall too: a drip would hold its place among the
/// fetches for ever.
const LEAST_PROGRESS: usize = 16 << 10;

/// So many bytes show that an upstream is worth one more retry.
const WORTH_A_RETRY: usize = 256 << 10;

/// Which blob.
#[derive(Clone)]
struct Subject {
    origin: Origin,
    repository: Repository,
    path: String,
}

/// A response from some offset on.
struct Opened {
    body: Option<Incoming>,
    /// Bytes to throw away: the upstream began earlier than asked to.
    skip: u64,
    size: Option<u64>,
}

impl Subject {
    fn new(origin: Origin, repository: &Repository, digest: &Digest) -> Self {
        Self {
            origin,
            repository: repository.clone(),
            path: format!("/v2/{repository}/blobs/{digest}"),
        }
    }

    async fn ask(&self, method: &Method, offset: u64) -> Result<Answer, Error> {
        let mut headers = HeaderMap::new();
        if offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            headers.insert(RANGE, range.map_err(|_| self.origin.protocol("no range"))?);
        }
        let uri = self.origin.url(&self.path)?;
        request(
            &self.origin,
            Kind::Blob,
            method,
            uri,
            headers,
            &self.repository,
        )
        .await
    }

    /// Asks for all from `offset`; `known` is the size that an earlier answer told.
    async fn open(&self, offset: u64, known: Option<u64>) -> Result<Opened, Error> {
        let answer = self.ask(&Method::GET, offset).await?;
        let headers = answer.response.headers();
        let text = headers
            .get(CONTENT_RANGE)
            .and_then(|value| value.to_str().ok());
        let range = text.and_then(ContentRange::parse);
        let length = length(headers);
        let (skip, size) = match (answer.response.status().as_u16(), range) {
            (200, _) => (offset, length),
            (206, Some(ContentRange::Part { first, last, total }))
                if offset > 0 && first == offset =>
            {
                if length.is_some_and(|length| length != last - first + 1) {
                    return Err(self
                        .origin
                        .protocol("the length and the range of its answer differ"));
                }
                (0, total)
            }
            (206, _) => {
                return Err(self
                    .origin
                    .protocol(format!("it sent another part than the one from {offset}")));
            }
            (416, Some(ContentRange::Unsatisfied { total })) if total == offset => {
                self.agree(Some(total), known)?;
                return Ok(Opened {
                    body: None,
                    skip: 0,
                    size: Some(total),
                });
            }
            (416, _) => {
                return Err(self
                    .origin
                    .protocol(format!("it has nothing from {offset} on")));
            }
            _ => return Err(refusal(&self.origin, &answer)),
        };
        require_identity(&self.origin, headers)?;
        let size = self.agree(size, known)?;
        if size.is_some_and(|size| size < offset) {
            return Err(self
                .origin
                .protocol(format!("its blob ends before {offset}")));
        }
        self.origin.budget.succeeded();
        Ok(Opened {
            body: Some(answer.response.into_body()),
            skip,
            size,
        })
    }

    /// What an upstream says of a size, it says every time.
    fn agree(&self, told: Option<u64>, known: Option<u64>) -> Result<Option<u64>, Error> {
        match (told, known) {
            (Some(told), Some(known)) if told != known => Err(self.origin.protocol(format!(
                "it said that the blob has {known} bytes, and now {told}"
            ))),
            (told, known) => Ok(told.or(known)),
        }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The size, by HEAD.
pub(crate) async fn size(
    origin: Origin,
    repository: &Repository,
    digest: &Digest,
) -> Result<Option<u64>, Error> {
    let subject = Subject::new(origin, repository, digest);
    retrying(&subject.origin, Patience::DOCUMENT, || async {
        let answer = subject.ask(&Method::HEAD, 0).await?;
        match answer.response.status().as_u16() {
            200 => {
                subject.origin.budget.succeeded();
                Ok(length(answer.response.headers()))
            }
            // Signed URLs of object stores are often good for GET alone.
            400..500 if answer.elsewhere => Ok(None),
            405 => Ok(None),
            _ => Err(refusal(&subject.origin, &answer)),
        }
    })
    .await
}

/// Opens a blob. Waits for its turn first.
pub(crate) async fn open(
    origin: Origin,
    repository: &Repository,
    digest: &Digest,
    offset: u64,
) -> Result<BlobStream, Error> {
    let permit = Arc::clone(&origin.shared.fetches).acquire_owned().await;
    let permit = permit.map_err(|_| origin.transport("the client is shut down"))?;
    let in_flight = origin.metrics.fetch();
    let subject = Subject::new(origin, repository, digest);
    let Opened { body, skip, size } = retrying(&subject.origin, Patience::BLOB, || {
        subject.open(offset, None)
    })
    .await?;
    let state = body.map_or(State::Ended, State::Reading);
    Ok(BlobStream {
        subject,
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
        advanced: 0,
        uncredited: 0,
        _turn: (permit, in_flight),
    })
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
    size: Option<u64>,
    start: u64,
    /// Where the next byte lies that the caller has not been given.
    position: u64,
    skip: u64,
    state: State,
    /// Arrived, but not yet to be handed on for the sake of the bandwidth cap.
    held: Option<(Bytes, Instant)>,
    /// Time spent waiting, and bytes that came, since the last [`LEAST_PROGRESS`].
    waited: Duration,
    trickle: usize,
    /// When the present wait began; it goes on when `next` is called again.
    waiting: Option<Instant>,
    failures: u32,
    /// Bytes handed on since the last failure.
    advanced: usize,
    uncredited: usize,
    _turn: (OwnedSemaphorePermit, InFlight),
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
                    let limit = self.subject.origin.shared.limits.stall_timeout;
                    let began = *self.waiting.get_or_insert_with(Instant::now);
                    let deadline = began + limit.saturating_sub(self.waited);
                    let outcome = timeout_at(deadline, body.frame()).await;
                    self.waiting = None;
                    self.waited += began.elapsed();
                    match outcome {
                        Ok(Some(Ok(frame))) => self.arrived(frame.into_data().unwrap_or_default()),
                        Ok(Some(Err(error))) => self.cut(&format!("the blob broke off: {error}")),
                        Ok(None) => self.ended(),
                        Err(_) => self.cut(&format!("the blob stands still for {limit:?}")),
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
        let origin = &self.subject.origin;
        origin.metrics.received.inc_by(as_u64(bytes.len()));
        self.trickle += bytes.len();
        if self.trickle >= LEAST_PROGRESS {
            (self.trickle, self.waited) = (0, Duration::ZERO);
        }
        let skipped = usize::try_from(self.skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
        let reserved = origin
            .shared
            .bandwidth
            .as_ref()
            .map(|line| line.reserve(bytes.len()));
        bytes = bytes.split_off(skipped);
        self.skip -= as_u64(skipped);
        if bytes.is_empty() {
            return Ok(());
        }
        self.position += as_u64(bytes.len());
        if self.size.is_some_and(|size| self.position > size) {
            return Err(origin.protocol("its blob is longer than it said"));
        }
        self.advanced = self.advanced.saturating_add(bytes.len());
        if self.advanced >= LEAST_PROGRESS {
            self.failures = 0;
        }
        self.uncredited += bytes.len();
        while self.uncredited >= WORTH_A_RETRY {
            self.uncredited -= WORTH_A_RETRY;
            origin.budget.progressed();
        }
        self.held = Some((bytes, reserved.unwrap_or_else(Instant::now)));
        Ok(())
    }

    fn ended(&mut self) -> Result<(), Error> {
        if self.skip > 0 || self.size.is_some_and(|size| self.position < size) {
            return self.cut("the blob ended early");
        }
        self.state = State::Ended;
        Ok(())
    }

    fn cut(&mut self, why: &str) -> Result<(), Error> {
        let error = self.subject.origin.transport(why);
        self.again(error)
    }

    /// Plans a resume, or gives up with `error`.
    fn again(&mut self, error: Error) -> Result<(), Error> {
        let origin = &self.subject.origin;
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
        self.state = State::Resuming(Mutex::new(Box::pin(async move {
            if let Some(wait) = wait {
                sleep(wait).await;
            }
            subject.open(position, size).await
        })));
        Ok(())
    }

    fn resumed(&mut self, opened: Opened) -> Result<(), Error> {
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
