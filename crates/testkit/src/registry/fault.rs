//! Faults: what goes wrong, with which requests, how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pierhead_oci::Digest;
use tokio::sync::watch;

use crate::wait::TIME_LIMIT;

/// Something that goes wrong. Several may befall one request. Offsets called `after` count bytes of
/// the body that is being sent, so of the range where one was asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The connection is reset (RST) instead of an answer.
    Reset,
    /// The connection is closed (FIN) instead of an answer.
    Close,
    /// Nothing is ever answered; the connection stays open.
    HangHead,
    /// The answer waits until the gate is released.
    GateHead(Gate),
    /// A line that is not HTTP, then the connection is closed.
    Garbage,
    /// This status with an error body of the spec.
    Status(u16),
    /// This status with a `Retry-After`.
    RetryAfter(u16, String),
    /// 307 to itself, for ever.
    RedirectLoop,
    /// 307 to this URL.
    RedirectTo(String),

    /// After this many bytes the body stops; the connection stays open.
    HangBody(u64),
    /// After this many bytes the body waits until the gate is released.
    GateBody(u64, Gate),
    /// The body trickles at so many bytes a second.
    Slow(u64),
    /// After this many bytes the connection is closed (FIN).
    CutBody(u64),
    /// After this many bytes the connection is reset (RST).
    ResetBody(u64),
    /// `Content-Length` promises so many bytes more than come; then the connection is closed.
    LengthTooLong(u64),
    /// `Content-Length` promises so many bytes less than are sent.
    LengthTooShort(u64),

    /// The content has one bit flipped, at this offset of the content.
    Corrupt(u64),
    /// The content ends after so many bytes, and the headers agree with that.
    Truncate(u64),
    /// So many zero bytes follow the content, and the headers agree with that.
    Pad(u64),
    /// Other content altogether, and the headers agree with that.
    Replace(Bytes),

    /// Adds or replaces a header.
    Header(&'static str, String),
    /// Leaves a header out, for example `docker-content-digest`.
    WithoutHeader(&'static str),
    /// So many bytes of needless headers.
    HugeHeaders(usize),
    /// The body comes in chunks, without `Content-Length`.
    Chunked,
    /// The body ends with the connection, without `Content-Length`.
    UntilClose,
    /// A `Range` is answered by 200 and everything.
    IgnoreRange,
    /// A `Range` is answered by 416 without a word of the size, as registries do that know none with an open end.
    RefuseRange,
    /// A `Range` is answered by 206 with the bytes asked for, but a `Content-Range` that says others.
    WrongContentRange,
}

impl Fault {
    /// Befalls the requests whose path (without query) fits: `*` stands for any run of characters,
    /// slashes included.
    pub fn on(self, pattern: impl Into<String>) -> Rule {
        Rule {
            pattern: pattern.into(),
            method: None,
            fault: self,
            skip: 0,
            times: None,
            before_auth: false,
        }
    }

    /// Befalls requests for this blob, at the registry and at the CDN alike.
    pub fn on_blob(self, digest: &Digest) -> Rule {
        self.on(format!("*/{digest}"))
    }

    /// Befalls requests for manifests.
    pub fn on_manifests(self) -> Rule {
        self.on("/v2/*/manifests/*")
    }

    /// Befalls requests for blobs, at the registry and at the CDN alike.
    pub fn on_blobs(self) -> Rule {
        self.on("*/blobs/*")
    }

    /// Befalls requests for tokens.
    pub fn on_tokens(self) -> Rule {
        self.on("/token")
    }
}

/// A [`Fault`] and the requests that it befalls.
#[derive(Clone, Debug)]
pub struct Rule {
    pattern: String,
    method: Option<&'static str>,
    fault: Fault,
    skip: usize,
    times: Option<usize>,
    before_auth: bool,
}

impl Rule {
    /// Only requests of this method.
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// Only so many requests; without this, always.
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// The first so many requests that fit are spared.
    pub fn skip(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Also befalls requests that lack authorization. Without this those get their 401 and do not
    /// use up the fault.
    pub fn before_auth(mut self) -> Self {
        self.before_auth = true;
        self
    }
}

/// A fault that is set: tells how often it struck and can be taken back.
#[derive(Clone, Debug)]
pub struct Injected {
    rules: Arc<Mutex<Vec<Arc<Active>>>>,
    active: Arc<Active>,
}

impl Injected {
    /// How many requests it befell.
    pub fn hits(&self) -> usize {
        self.active.hits.load(Ordering::SeqCst)
    }

    /// Takes it back; requests under way keep it.
    pub fn remove(&self) {
        self.rules
            .lock()
            .retain(|active| !Arc::ptr_eq(active, &self.active));
    }
}

#[derive(Debug)]
struct Active {
    rule: Rule,
    /// Requests that fitted, the spared ones included.
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

    /// The faults that befall a request, which counts for each of them.
    pub(super) fn strike(&self, method: &str, path: &str, authorized: bool) -> Vec<Fault> {
        let rules = self.0.lock();
        rules
            .iter()
            .filter_map(|active| active.strike(method, path, authorized))
            .collect()
    }
}

impl Active {
    fn strike(&self, method: &str, path: &str, authorized: bool) -> Option<Fault> {
        let Rule {
            pattern,
            method: only,
            fault,
            skip,
            times,
            before_auth,
        } = &self.rule;
        let fits = (authorized || *before_auth)
            && only.is_none_or(|only| only == method)
            && matches(pattern, path);
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

/// `*` is greedy backtracking over bytes: patterns here are short.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, rest)) => path.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).any(|at| tail.get(at..).is_some_and(|tail| matches(rest, tail)))
        }),
    }
}

/// Holds answers back until the test has seen what it wants to see: synchronisation without sleeping.
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
    /// A closed gate.
    pub fn new() -> Self {
        Self {
            waiting: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Opens it, for those who wait and all who come.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// How many answers have come to the gate so far.
    pub fn arrived(&self) -> usize {
        *self.waiting.borrow()
    }

    /// Returns once `count` answers have come to the gate.
    ///
    /// # Panics
    /// After 30 seconds.
    pub async fn reached(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        let arrived =
            tokio::time::timeout(TIME_LIMIT, waiting.wait_for(|&arrived| arrived >= count)).await;
        assert!(
            arrived.is_ok(),
            "{} of {count} answers came to the gate",
            self.arrived()
        );
    }

    /// Waits at the gate. Cancel safe, but each call counts as an arrival.
    pub(super) async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        // The sender lives in `self`, so this cannot fail.
        let _ = self.open.subscribe().wait_for(|&open| open).await;
    }
}
