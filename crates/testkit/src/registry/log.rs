//! The log of requests, which tests read and wait on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::wait::TIME_LIMIT;

/// Which of the three ports a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The registry.
    Registry,
    /// The token server.
    Tokens,
    /// Where blobs are redirected to.
    Cdn,
}

/// One request and what became of it up to now.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Which port it came to.
    pub role: Role,
    /// `GET`, …
    pub method: String,
    /// As it was sent, without the query.
    pub path: String,
    /// What follows the `?`.
    pub query: Option<String>,
    /// All headers, in order of arrival among those of one name.
    pub headers: HeaderMap,
    /// The body, where it had one.
    pub body: Bytes,
    /// Where it came from.
    pub peer: SocketAddr,
    /// Counts connections from 0 over all ports: two requests with the same number shared one.
    pub connection: u64,
    /// The status sent, when one was.
    pub status: Option<u16>,
    /// Bytes of the body handed to the socket.
    pub sent: u64,
    /// Whether nothing more will be sent for it.
    pub done: bool,
}

impl RecordedRequest {
    /// The value of a header as text; `None` when it was not there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A decoded parameter of the query.
    pub fn param(&self, name: &str) -> Option<String> {
        let query = self.query.as_deref()?;
        form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }
}

/// A request under way; dropping it means that nothing more is sent.
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

/// What a connection holds of the request that it answers.
pub(super) struct Tracked {
    entry: Arc<Entry>,
    changed: Arc<watch::Sender<u64>>,
}

impl Tracked {
    pub(super) fn answered(&self, status: u16) {
        self.entry.status.store(status, Ordering::SeqCst);
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.entry.sent.fetch_add(bytes as u64, Ordering::SeqCst);
        self.changed.send_modify(|version| *version += 1);
    }
}

impl Drop for Tracked {
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

    pub(super) fn add(&self, request: RecordedRequest) -> Tracked {
        let entry = Arc::new(Entry {
            request,
            status: AtomicU16::new(0),
            sent: AtomicU64::new(0),
            done: AtomicBool::new(false),
        });
        self.entries.lock().push(Arc::clone(&entry));
        self.changed.send_modify(|version| *version += 1);
        Tracked {
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
            "the requests did not come; there were {:#?}",
            self.requests()
        );
    }
}
