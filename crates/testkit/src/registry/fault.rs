//! Faults that tests inject into the fake registry, and the rules that select the affected
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pierhead_oci::Digest;
use tokio::sync::watch;

use super::log::RecordedRequest;
use crate::wait::TIME_LIMIT;

/// A fault of the fake registry. Several faults may affect one request. Offsets in the body of a
/// response count the sent bytes; for a range request, only the bytes of the range are sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The connection is reset (RST) instead of a response.
    Reset,
    /// The connection is closed (FIN) instead of a response.
    Close,
    /// The response never comes, and the connection stays open.
    HangHead,
    /// The response waits until the gate is released.
    GateHead(Gate),
    /// The response is a line that is not HTTP, and the connection is closed.
    Garbage,
    /// Sends this number of interim (1xx) responses before the head.
    Interim(usize),
    /// The response has this status, with an error body of the specification.
    Status(u16),
    /// The response has this status, with a `Retry-After` header of this value.
    RetryAfter(u16, String),
    /// The response is always a 307 to the same URL.
    RedirectLoop,
    /// The response is a 307 to this URL.
    RedirectTo(String),

    /// After this many bytes, the registry sends no more of the body, but the connection stays
    /// open.
    HangBody(u64),
    /// After this many bytes the body waits until the gate is released.
    GateBody(u64, Gate),
    /// The body is sent at this number of bytes per second.
    Slow(u64),
    /// After this many bytes the connection is closed (FIN).
    CutBody(u64),
    /// After this many bytes the connection is reset (RST).
    ResetBody(u64),
    /// `Content-Length` is larger than the body by this number of bytes, and the connection is
    /// closed after the body.
    LengthTooLong(u64),
    /// `Content-Length` is smaller than the body by this number of bytes.
    LengthTooShort(u64),

    /// One bit is flipped at this offset of the blob.
    Corrupt(u64),
    /// The blob is truncated to this number of bytes, with headers that match the shorter blob.
    Truncate(u64),
    /// This number of zero bytes follows the blob, with headers that match the longer blob.
    Pad(u64),
    /// The blob has these bytes instead, with headers that match these bytes.
    Replace(Bytes),

    /// The response has this header. If the header has a value already, this value replaces it.
    Header(&'static str, String),
    /// The response lacks this header, for example `docker-content-digest`.
    WithoutHeader(&'static str),
    /// The response has this number of bytes of unneeded headers.
    HugeHeaders(usize),
    /// The body is chunked, without `Content-Length`.
    Chunked,
    /// The body ends with the connection, without `Content-Length`.
    UntilClose,
    /// A range request gets a 200 with the whole blob.
    IgnoreRange,
    /// The registry ignores `If-Range`, as if the blob had not changed.
    IgnoreIfRange,
    /// A range request gets a 416 without the size, as from registries that do not support ranges
    /// with an open end.
    RefuseRange,
    /// A range request gets a 206 with the right bytes and a wrong `Content-Range`.
    WrongContentRange,
}

impl Fault {
    /// Limits the fault to requests whose path (without query) matches. `*` matches any characters,
    /// including slashes.
    pub fn on(self, pattern: impl Into<String>) -> Rule {
        Rule {
            pattern: pattern.into(),
            method: None,
            fault: self,
            skip: 0,
            times: None,
            before_auth: false,
            range: None,
        }
    }

    /// Limits the fault to requests for this blob, at the registry and at the CDN.
    pub fn on_blob(self, digest: &Digest) -> Rule {
        self.on(format!("*/{digest}"))
    }

    /// Limits the fault to requests for manifests.
    pub fn on_manifests(self) -> Rule {
        self.on("/v2/*/manifests/*")
    }

    /// Limits the fault to requests for blobs, at the registry and at the CDN.
    pub fn on_blobs(self) -> Rule {
        self.on("*/blobs/*")
    }

    /// Limits the fault to requests for tokens.
    pub fn on_tokens(self) -> Rule {
        self.on("/token")
    }
}

/// A [`Fault`] and the requests that it affects.
#[derive(Clone, Debug)]
pub struct Rule {
    pattern: String,
    method: Option<&'static str>,
    fault: Fault,
    skip: usize,
    times: Option<usize>,
    before_auth: bool,
    range: Option<String>,
}

impl Rule {
    /// Limits the fault to requests with this method.
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Limits the fault to this number of requests. The default is no limit.
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// Skips this number of matching requests before the fault takes effect.
    pub fn skip(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Limits the fault to requests whose `Range` header matches. `*` matches any characters:
    /// `bytes=*` matches every range, and `bytes=0-9` matches one range.
    pub fn range(mut self, pattern: impl Into<String>) -> Self {
        self.range = Some(pattern.into());
        self
    }

    /// Makes the fault also affect requests without authorization. By default, such a request gets
    /// its 401, and the fault does not count the request.
    pub fn before_auth(mut self) -> Self {
        self.before_auth = true;
        self
    }
}

/// The handle of an injected fault, which counts the affected requests and can remove the fault.
#[derive(Clone, Debug)]
pub struct Injected {
    rules: Arc<Mutex<Vec<Arc<Active>>>>,
    active: Arc<Active>,
}

impl Injected {
    /// Returns the number of requests that the fault has affected.
    pub fn hits(&self) -> usize {
        self.active.hits.load(Ordering::SeqCst)
    }

    /// Removes the fault. Requests that are in progress are still affected.
    pub fn remove(&self) {
        self.rules
            .lock()
            .retain(|active| !Arc::ptr_eq(active, &self.active));
    }
}

#[derive(Debug)]
struct Active {
    rule: Rule,
    /// Number of matching requests, including requests that the fault skipped.
    seen: AtomicUsize,
    hits: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Rules(Arc<Mutex<Vec<Arc<Active>>>>);

impl Rules {
    pub(super) fn add(&self, rule: Rule) -> Injected {
        let active = Arc::new(Active {
            rule,
            seen: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
        });
        self.0.lock().push(Arc::clone(&active));
        Injected {
            rules: Arc::clone(&self.0),
            active,
        }
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Returns the faults that affect a request. Each of these faults counts the request.
    pub(super) fn matching(&self, request: &RecordedRequest, authorized: bool) -> Vec<Fault> {
        let rules = self.0.lock();
        rules
            .iter()
            .filter_map(|active| active.matching(request, authorized))
            .collect()
    }
}

impl Active {
    fn matching(&self, request: &RecordedRequest, authorized: bool) -> Option<Fault> {
        let Rule {
            pattern,
            method: only,
            fault,
            skip,
            times,
            before_auth,
            range,
        } = &self.rule;
        let requested = request.header("range").unwrap_or_default();
        let fits = (authorized || *before_auth)
            && only.is_none_or(|only| only == request.method)
            && range.as_ref().is_none_or(|range| matches(range, requested))
            && matches(pattern, &request.path);
        if !fits {
            return None;
        }
        let nth = self.seen.fetch_add(1, Ordering::SeqCst);
        if nth < *skip || times.is_some_and(|times| nth >= skip + times) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::SeqCst);
        Some(fault.clone())
    }
}

/// Matches by backtracking over bytes, which is fast enough because patterns are short.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, rest)) => path.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).any(|at| tail.get(at..).is_some_and(|tail| matches(rest, tail)))
        }),
    }
}

/// Delays responses until the test releases them, so that tests can synchronise without sleeping.
#[derive(Clone, Debug)]
pub struct Gate {
    waiting: Arc<watch::Sender<usize>>,
    open: Arc<watch::Sender<bool>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self {
            waiting: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Opens the gate for responses that wait and for later responses.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// Returns the number of responses that have reached the gate.
    pub fn arrived(&self) -> usize {
        *self.waiting.borrow()
    }

    /// Waits until `count` responses have reached the gate.
    ///
    /// # Panics
    /// Panics if fewer responses reach the gate within 30 seconds.
    pub async fn reached(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        let arrived =
            tokio::time::timeout(TIME_LIMIT, waiting.wait_for(|&arrived| arrived >= count)).await;
        assert!(
            arrived.is_ok(),
            "{} of {count} responses reached the gate",
            self.arrived()
        );
    }

    /// Waits until the gate is open. The call is cancel safe, but each call counts as one arrived
    /// response.
    pub(super) async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        // This call cannot fail, because `self` has the sender.
        let _ = self.open.subscribe().wait_for(|&open| open).await;
    }
}
