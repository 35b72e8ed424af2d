//! The stream of a blob's bytes from an upstream. If a response is interrupted, the stream requests
//! the remaining bytes, as long as the retry budget allows.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use pierhead_oci::{Digest, Repository};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::error::Error;
use crate::metrics::FetchInFlight;
use crate::pull::blob::{BlobRequest, BlobVersion, OpenedBlob, RangeSpec};
use crate::upstream::failover::Candidates;
use crate::upstream::host::{RegistryHost, TimeLimits};
use crate::upstream::retry::{RetryPolicy, next_wait};
use crate::upstream::session::Session;

/// Number of retries of a blob without progress before the stream fails. With the header timeout of
/// 4 s, the retries together last about as long as an upstream takes to restart.
const RESUME_POLICY: RetryPolicy = RetryPolicy {
    attempts: 6,
    max_rate_limit_wait: Duration::from_secs(30),
    max_down_wait: Duration::from_secs(10),
};

/// Minimum progress of a blob per stall timeout in bytes, even if no minimum rate is configured.
/// Without this minimum, a blob of which a few bytes arrive now and then could hold its download
/// slot forever.
const MIN_PROGRESS: usize = 16 << 10;

/// Divisor of the stall timeout for connections that send no bytes. A connection that sends no
/// bytes for this shorter time is ended, and the stream tries another connection if a retry is
/// left. The time is shorter because the client waits for these bytes.
const SILENCE_DIVISOR: u32 = 3;

/// Number of received bytes after which the retry budget of the upstream grows by one retry.
const BYTES_PER_RETRY: usize = 256 << 10;

/// Returns the minimum number of bytes that must arrive within the stall timeout.
fn min_bytes(limits: &TimeLimits) -> usize {
    let millis = u64::try_from(limits.stall_timeout.as_millis()).unwrap_or(u64::MAX);
    let least = limits.minimum_rate.saturating_mul(millis) / 1000;
    usize::try_from(least).map_or(usize::MAX, |least| least.max(MIN_PROGRESS))
}

/// Opens the stream of a blob.
pub(crate) async fn open(
    candidates: Candidates,
    repository: &Repository,
    digest: &Digest,
    offset: u64,
) -> Result<BlobStream, Error> {
    open_request(BlobRequest::new(candidates, repository, digest), offset).await
}

/// Opens the stream of a range of this version of a blob.
pub(crate) async fn open_range(
    candidates: Candidates,
    repository: &Repository,
    digest: &Digest,
    range: Range<u64>,
    version: &BlobVersion,
) -> Result<BlobStream, Error> {
    let blob = BlobRequest::new(candidates, repository, digest);
    open_request(blob.bounded(range.end, version.clone()), range.start).await
}

/// Opens the stream of a range of a blob of which no version is known.
pub(crate) async fn open_unversioned(
    candidates: Candidates,
    repository: &Repository,
    digest: &Digest,
    range: RangeSpec,
) -> Result<BlobStream, Error> {
    let blob = BlobRequest::new(candidates, repository, digest);
    let mut stream = open_request(blob.clone().unversioned(range), 0).await?;
    // If the stream is interrupted, it resumes within the range of the version that the first
    // response stated.
    stream.blob = match (stream.end, stream.version()) {
        (Some(end), Some(version)) => blob.bounded(end, version),
        _ => blob.rest(),
    };
    Ok(stream)
}

async fn open_request(blob: BlobRequest, offset: u64) -> Result<BlobStream, Error> {
    let first = blob.candidates.first()?;
    let in_flight = first.metrics.fetch();
    let OpenedBlob {
        session,
        body,
        start,
        end,
        skip,
        size,
        etag,
    } = blob.open(RetryPolicy::BLOB, None, offset, None).await?;
    let state = body.map_or(State::Ended, State::Reading);
    Ok(BlobStream {
        blob,
        sources: vec![Arc::clone(&session.host)],
        session,
        size,
        etag,
        start,
        end,
        position: start,
        skip,
        state,
        delayed: None,
        waited: Duration::ZERO,
        recent_bytes: 0,
        wait_began: None,
        failures: 0,
        stalls: 0,
        advanced: 0,
        uncredited: 0,
        _in_flight: in_flight,
    })
}

/// The hosts that sent bytes of a blob, for a report of a digest mismatch.
pub struct BlobSources {
    hosts: Vec<Arc<RegistryHost>>,
    digest: Digest,
}

impl BlobSources {
    /// Records that the received bytes do not match the digest of the blob. The next fetch of the
    /// blob asks other hosts first, if there are any.
    pub fn report_mismatch(&self) {
        for host in &self.hosts {
            host.mismatches.insert(self.digest);
        }
    }
}

type Resuming = Pin<Box<dyn Future<Output = Result<OpenedBlob, Error>> + Send>>;

enum State {
    Reading(Incoming),
    /// This future is stored here and not on the stack of `next`, so that `next` is cancel safe.
    /// The mutex is never locked: it only makes the stream `Sync`.
    Resuming(Mutex<Resuming>),
    Ended,
}

/// The bytes of a blob in order, over one or several connections. If the stream is dropped, the
/// fetch ends.
pub struct BlobStream {
    blob: BlobRequest,
    /// The host that currently sends the bytes.
    session: Session,
    /// All hosts that sent bytes of this blob, each host once.
    sources: Vec<Arc<RegistryHost>>,
    size: Option<u64>,
    /// The strong ETag in the last response of the current host.
    etag: Option<HeaderValue>,
    start: u64,
    /// Offset behind the last requested byte. `None`: the stream ends with the blob.
    end: Option<u64>,
    /// The offset of the next byte for the caller.
    position: u64,
    skip: u64,
    state: State,
    /// Bytes that have arrived and that the bandwidth limit delays, with the end of the delay.
    delayed: Option<(Bytes, Instant)>,
    /// Time spent waiting since the last progress, and the bytes that arrived in that time.
    waited: Duration,
    recent_bytes: usize,
    /// The start of the current wait. If `next` is dropped and called again, the wait continues.
    wait_began: Option<Instant>,
    failures: u32,
    /// Number of consecutive times that the stream stalled.
    stalls: usize,
    /// Number of bytes that arrived since the last failure.
    advanced: usize,
    uncredited: usize,
    _in_flight: FetchInFlight,
}

impl BlobStream {
    /// Size of the whole blob in bytes, including the bytes before the offset. `None` if the
    /// upstream does not state the size.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns the version of the blob that the current host stated. `None` if the size is unknown.
    pub fn version(&self) -> Option<BlobVersion> {
        Some(BlobVersion {
            size: self.size?,
            host: Arc::clone(&self.session.host),
            etag: self.etag.clone(),
        })
    }

    /// Returns the offset behind the last byte of the stream. `None` if the offset is unknown.
    pub fn end(&self) -> Option<u64> {
        self.end.or(self.size)
    }

    /// Whether the stream ends before the end of the blob, because a range was requested.
    pub fn is_range(&self) -> bool {
        self.end.is_some()
    }

    /// The offset of the first byte that the stream returns. If the upstream cannot begin at this
    /// offset, the stream discards the earlier bytes.
    pub fn offset(&self) -> u64 {
        self.start
    }

    /// The name of the current upstream address in logs and metrics.
    pub fn address(&self) -> &str {
        self.session.health.address()
    }

    /// Returns the hosts that sent bytes of this blob.
    pub fn sources(&self) -> BlobSources {
        BlobSources {
            hosts: self.sources.clone(),
            digest: *self.blob.digest(),
        }
    }

    /// Returns the next bytes, at least one byte. `None` at the end and after an error. The bytes
    /// are not verified against the digest. If [`size`](Self::size) is known, the stream returns
    /// all bytes up to this size or to the end of the requested range, or an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            if let Some((_, when)) = &self.delayed {
                let when = *when;
                if Instant::now() < when {
                    sleep_until(when).await;
                }
                if let Some((bytes, _)) = self.delayed.take() {
                    return Some(Ok(bytes));
                }
            }
            let step = match &mut self.state {
                State::Ended => return None,
                State::Resuming(resuming) => match resuming.get_mut().as_mut().await {
                    Ok(opened) => self.resumed(opened),
                    Err(error) => self.resume_after(error),
                },
                State::Reading(body) => {
                    let limit = self.session.shared.limits.stall_timeout;
                    let began = *self.wait_began.get_or_insert_with(Instant::now);
                    let mut deadline = began + limit.saturating_sub(self.waited);
                    if self.advanced == 0 || self.stalls < self.blob.candidates.count() {
                        deadline = deadline.min(began + limit / SILENCE_DIVISOR);
                    }
                    let outcome = timeout_at(deadline, body.frame()).await;
                    self.wait_began = None;
                    self.waited += began.elapsed();
                    match outcome {
                        Ok(Some(Ok(frame))) => self.arrived(frame.into_data().unwrap_or_default()),
                        Ok(Some(Err(error))) => {
                            self.interrupted(&format!("the blob broke off: {error}"))
                        }
                        Ok(None) => self.ended(),
                        Err(_) => self.stalled(),
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
        let session = &self.session;
        session.metrics.received.inc_by(as_u64(bytes.len()));
        self.recent_bytes += bytes.len();
        if self.recent_bytes >= min_bytes(&session.shared.limits) {
            (self.recent_bytes, self.waited, self.stalls) = (0, Duration::ZERO, 0);
        }
        let skipped = usize::try_from(self.skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
        let reserved = session.shared.bandwidth.reserve(bytes.len());
        bytes = bytes.split_off(skipped);
        self.skip -= as_u64(skipped);
        if bytes.is_empty() {
            return Ok(());
        }
        self.position += as_u64(bytes.len());
        if self.end().is_some_and(|end| self.position > end) {
            session.mismatches.insert(*self.blob.digest());
            return Err(session.protocol("its blob is longer than the stated size"));
        }
        let before = self.advanced;
        self.advanced = self.advanced.saturating_add(bytes.len());
        if self.advanced >= MIN_PROGRESS {
            self.failures = 0;
            if before < MIN_PROGRESS {
                session.health.body_ended(true);
            }
        }
        self.uncredited += bytes.len();
        while self.uncredited >= BYTES_PER_RETRY {
            self.uncredited -= BYTES_PER_RETRY;
            session.budget.progressed();
        }
        self.delayed = Some((bytes, reserved));
        Ok(())
    }

    fn ended(&mut self) -> Result<(), Error> {
        if self.skip > 0 || self.end().is_some_and(|end| self.position < end) {
            return self.interrupted("the blob ended early");
        }
        self.session.health.body_ended(true);
        self.state = State::Ended;
        Ok(())
    }

    fn interrupted(&mut self, why: &str) -> Result<(), Error> {
        let error = self.broken(why);
        self.resume_after(error)
    }

    fn broken(&self, why: &str) -> Error {
        if self.advanced < MIN_PROGRESS {
            self.session.health.body_ended(false);
        }
        self.session.transport(why)
    }

    /// Handles a body that sends no bytes, or that is slower than the minimum rate.
    fn stalled(&mut self) -> Result<(), Error> {
        self.stalls += 1;
        let limits = &self.session.shared.limits;
        let (came, waited, stall) = (self.recent_bytes, self.waited, limits.stall_timeout);
        let is_still = came < MIN_PROGRESS || waited < stall;
        let why = match is_still {
            true => format!("the blob stalled: {came} bytes in {waited:.1?}"),
            false => format!(
                "the blob is slow: {came} bytes in {stall:?}, below the minimum of {} bytes per second",
                limits.minimum_rate
            ),
        };
        // A new connection or another host may be faster. If there were more stalls than hosts, the
        // stream fails.
        if self.stalls > self.blob.candidates.count() {
            return Err(self.broken(&why));
        }
        self.interrupted(&why)
    }

    /// Plans to resume the stream after a wait, or returns `error` if no retry is left.
    fn resume_after(&mut self, error: Error) -> Result<(), Error> {
        if self.skip == 0 && self.end() == Some(self.position) {
            // Only the end of the response is missing, so no byte is left to request.
            self.state = State::Ended;
            return Ok(());
        }
        let session = &self.session;
        let Some(wait) = next_wait(&error, self.failures, RESUME_POLICY, &session.budget) else {
            return Err(error);
        };
        tracing::debug!(upstream = %session.name, at = self.position, %error, "resuming a blob");
        session.metrics.resumes.inc();
        // An interruption after progress is harmless, so the stream resumes without a wait.
        let wait = (self.failures > 0).then_some(wait);
        self.failures += 1;
        self.advanced = 0;
        (self.recent_bytes, self.waited) = (0, Duration::ZERO);
        let (blob, position, size) = (self.blob.clone(), self.position, self.size);
        let last = Arc::clone(&session.host);
        self.state = State::Resuming(Mutex::new(Box::pin(async move {
            if let Some(wait) = wait {
                sleep(wait).await;
            }
            blob.open(RetryPolicy::ONCE, Some(&last), position, size)
                .await
        })));
        Ok(())
    }

    fn resumed(&mut self, opened: OpenedBlob) -> Result<(), Error> {
        self.session = opened.session;
        let host = &self.session.host;
        if !self.sources.iter().any(|known| Arc::ptr_eq(known, host)) {
            self.sources.push(Arc::clone(host));
        }
        self.skip = opened.skip;
        self.size = opened.size;
        self.etag = opened.etag;
        self.state = opened.body.map_or(State::Ended, State::Reading);
        Ok(())
    }
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
