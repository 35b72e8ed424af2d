//! Records the requests to the fake registry. Tests read these records, and wait for requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::wait::TIME_LIMIT;

/// The port of the fake registry that received a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The port of the registry.
    Registry,
    /// The port of the token server.
    Tokens,
    /// The port of the CDN, to which the registry redirects requests for blobs.
    Cdn,
}

/// One request, with the state of its response.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The port that received the request.
    pub role: Role,
    /// The method of the request: `GET`, …
    pub method: String,
    /// The path as the client sent it, without the query.
    pub path: String,
    /// The query, without the `?`.
    pub query: Option<String>,
    /// All headers. Values of one name keep their order.
    pub headers: HeaderMap,
    /// The body of the request, which may be empty.
    pub body: Bytes,
    /// The address of the client.
    pub peer: SocketAddr,
    /// Number of the connection, counted from 0 over all ports. Requests on one connection have the
    /// same number.
    pub connection: u64,
    /// The status code that the registry has sent; `None` before that.
    pub status: Option<u16>,
    /// Number of body bytes of the response that were written to the socket.
    pub sent: u64,
    /// Whether the response has ended.
    pub done: bool,
}

impl RecordedRequest {
    /// Returns the value of a header as text, or `None` if the header is missing.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns a decoded parameter of the query.
    pub fn param(&self, name: &str) -> Option<String> {
        let query = self.query.as_deref()?;
        form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }
}

/// A recorded request with the progress of its response.
pub(super) struct Entry {
    request: RecordedRequest,
    status: AtomicU16,
    sent: AtomicU64,
    done: AtomicBool,
}

impl Entry {
    fn snapshot(&self) -> RecordedRequest {
        let status = self.status.load(Ordering::SeqCst);
        RecordedRequest {
            status: (status != 0).then_some(status),
            sent: self.sent.load(Ordering::SeqCst),
            done: self.done.load(Ordering::SeqCst),
            ..self.request.clone()
        }
    }
}

/// The handle of a connection to its current request. Dropping this handle marks the response as
/// ended.
pub(super) struct LoggedRequest {
    entry: Arc<Entry>,
    changed: Arc<watch::Sender<u64>>,
}

impl LoggedRequest {
    pub(super) fn answered(&self, status: u16) {
        self.entry.status.store(status, Ordering::SeqCst);
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.entry.sent.fetch_add(bytes as u64, Ordering::SeqCst);
        self.changed.send_modify(|version| *version += 1);
    }
}

impl Drop for LoggedRequest {
    fn drop(&mut self) {
        self.entry.done.store(true, Ordering::SeqCst);
        self.changed.send_modify(|version| *version += 1);
    }
}

#[derive(Default)]
pub(super) struct Log {
    entries: Mutex<Vec<Arc<Entry>>>,
    connections: AtomicU64,
    changed: Arc<watch::Sender<u64>>,
}

impl Log {
    pub(super) fn connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn add(&self, request: RecordedRequest) -> LoggedRequest {
        let entry = Arc::new(Entry {
            request,
            status: AtomicU16::new(0),
            sent: AtomicU64::new(0),
            done: AtomicBool::new(false),
        });
        self.entries.lock().push(Arc::clone(&entry));
        self.changed.send_modify(|version| *version += 1);
        LoggedRequest {
            entry,
            changed: Arc::clone(&self.changed),
        }
    }

    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.entries
            .lock()
            .iter()
            .map(|entry| entry.snapshot())
            .collect()
    }

    pub(super) fn clear(&self) {
        self.entries.lock().clear();
    }

    pub(super) async fn wait_for(&self, mut enough: impl FnMut(&[RecordedRequest]) -> bool) {
        let mut changed = self.changed.subscribe();
        let waited =
            tokio::time::timeout(TIME_LIMIT, changed.wait_for(|_| enough(&self.requests()))).await;
        assert!(
            waited.is_ok(),
            "the awaited requests did not arrive; there were {:#?}",
            self.requests()
        );
    }
}
