//! The state of one fill (the download of one blob into the cache), shared by three parties: the
//! leader, which passes the downloaded bytes; the worker, which writes these bytes to the medium;
//! and the readers (followers), which read them.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pierhead_host::Panics;
use pierhead_oci::Digest;
use tokio::sync::{Notify, watch};

use crate::blob::open_blob::{BlobOwner, OpenBlob};
use crate::error::Error;
use crate::fill::fill_pieces::FillPieces;
use crate::fill::fill_queue::Queue;
use crate::origin::Origin;
use crate::tier::{ReadAt, Staged};

/// Maximum number of bytes at the end of a blob of known length that pierhead withholds from
/// readers until the digest matches.
const MAX_WITHHELD_BYTES: u64 = 64 * 1024;

/// The state of one fill. Leader, worker and readers of the fill share it.
pub(crate) struct SharedFill {
    pub(crate) digest: Digest,
    /// The registry from which the bytes come.
    pub(crate) origin: Origin,
    /// Start time of the fill, and the number of bytes that all fills together had written at that
    /// time.
    pub(crate) start: (Instant, u64),
    pub(crate) owner: Arc<dyn BlobOwner>,
    pub(crate) progress: Arc<watch::Sender<Progress>>,
    /// The committed blob, once it exists. All readers share this handle.
    pub(crate) committed: OnceLock<Arc<OpenBlob>>,
    /// Reads the staged bytes. This reader is set before the first byte is staged.
    pub(crate) reader: OnceLock<Arc<dyn ReadAt>>,
    /// Disk space reserved for this fill, in bytes.
    pub(crate) reserved: AtomicU64,
    /// Maximum disk space in bytes that the fill needs, computed from the announced length.
    expected: AtomicU64,
    /// Number of staged bytes on the disk, pieces included.
    pub(crate) staged: AtomicU64,
    /// Number of bytes that are staged or about to be staged.
    pub(crate) granted: Mutex<u64>,
    pub(crate) pieces: FillPieces,
    /// Bytes of the daily write budget that are reserved for this fill. Only a thread that holds
    /// the lock of the cache's state changes this value.
    pub(crate) reserved_budget: AtomicU64,
    /// Whether the fill may use the part of the daily write budget that is for small blobs and
    /// documents only.
    pub(crate) small: AtomicBool,
    /// Number of followers that joined the fill so far.
    pub(crate) followers: AtomicU32,
    /// Seconds that a fetch of the blob takes, as the bits of an `f32`. NaN while the time is
    /// unknown.
    cost: AtomicU32,
    /// What the leader does with the error of the fill before the readers get it.
    on_failure: Mutex<Option<OnFailure>>,
    pub(super) queue: Mutex<Queue>,
    /// Notified when the queue has room again, or is closed.
    pub(super) room_available: Notify,
    pub(crate) panics: Panics,
    pub(crate) runtime: tokio::runtime::Handle,
}

/// Called with the error of a fill before the readers get it.
pub(crate) type OnFailure = Box<dyn FnOnce(&Error) + Send>;

/// The progress of a fill, which readers watch.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// Number of times that the fill restarted from byte 0.
    pub(crate) generation: u64,
    /// `None` before [`Fill::begin`](crate::fill::Fill::begin). After that, the size that the
    /// upstream announced, or no size if the upstream announced none.
    pub(crate) size: Option<Option<u64>>,
    /// Number of bytes that are written to the medium.
    pub(crate) written: u64,
    /// Whether the digest matched. If the digest matched, all bytes are valid and no more bytes
    /// will come.
    pub(crate) verified: bool,
    /// The result of the fill. `None` while the fill runs.
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// Properties of a blob that the admission filter and the ranking use for its fill.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// Seconds that a client waits for a fetch of the blob.
    pub(crate) cost: Option<f32>,
    /// Whether to skip the admission filter.
    pub(crate) always: bool,
    /// Whether the blob is a document, or known to be small.
    pub(crate) small: bool,
}

pub(crate) fn fill_ended() -> Error {
    Error::Abandoned("the fill is over".into())
}

impl Progress {
    /// Returns the end of the bytes that a reader of the whole blob may read, once they are
    /// written.
    pub(crate) fn limit(&self) -> u64 {
        match self.size {
            _ if self.verified => self.written,
            None => 0,
            Some(Some(size)) => size.saturating_sub(MAX_WITHHELD_BYTES),
            // The length is unknown, so the last written byte may be the last byte of the blob:
            // readers do not get this byte yet.
            Some(None) => self.written.saturating_sub(1),
        }
    }
}

impl SharedFill {
    /// Creates the state. `written` is the number of bytes that all fills have written so far.
    /// `panics` counts panics of the timer that starts the worker.
    pub(crate) fn new(
        digest: Digest,
        origin: Origin,
        owner: Arc<dyn BlobOwner>,
        written: u64,
        panics: Panics,
    ) -> Self {
        Self {
            digest,
            origin,
            start: (Instant::now(), written),
            owner,
            progress: Arc::new(watch::Sender::new(Progress::default())),
            committed: OnceLock::new(),
            reader: OnceLock::new(),
            reserved: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            staged: AtomicU64::new(0),
            granted: Mutex::new(0),
            pieces: FillPieces::default(),
            reserved_budget: AtomicU64::new(0),
            small: AtomicBool::new(false),
            followers: AtomicU32::new(0),
            cost: AtomicU32::new(f32::NAN.to_bits()),
            on_failure: Mutex::default(),
            queue: Mutex::default(),
            room_available: Notify::new(),
            panics,
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Sets the staged bytes and their reservation, before the worker starts.
    pub(crate) fn set_staged(&self, staged: &dyn Staged, reserved: u64) {
        // The result is ignored: no other code sets `reader`, so setting it succeeds.
        let _ = self.reader.set(staged.reader());
        self.reserved.store(reserved, Ordering::Relaxed);
        let ahead = staged.ahead().iter().map(|piece| piece.end - piece.start);
        let bytes = staged.size() + ahead.sum::<u64>();
        self.staged.store(bytes, Ordering::Relaxed);
        *self.granted.lock() = bytes;
    }

    /// No longer counts `bytes` staged bytes, because the front stream writes them again.
    pub(crate) fn forget_staged(&self, bytes: u64) {
        self.staged.fetch_sub(bytes, Ordering::Relaxed);
        *self.granted.lock() -= bytes;
    }

    /// Sets the call that gets the error of the fill before the readers get it.
    pub(crate) fn set_on_failure(&self, call: OnFailure) {
        *self.on_failure.lock() = Some(call);
    }

    /// Forgets the call, because the fill has succeeded. Readers keep this value for as long as they
    /// read, and the call may own much.
    pub(crate) fn clear_on_failure(&self) {
        *self.on_failure.lock() = None;
    }

    /// Gives `error` to the leader, then to the readers. The fill has no entry in the table of
    /// running fills any more.
    pub(crate) fn publish_failure(&self, error: Error) {
        let call = self.on_failure.lock().take();
        if let Some(call) = call {
            call(&error);
        }
        self.progress
            .send_modify(|progress| progress.outcome = Some(Err(error)));
    }

    /// Returns the number of reserved bytes that are not on the disk yet.
    pub(crate) fn pending(&self) -> u64 {
        let staged = self.staged.load(Ordering::Relaxed);
        self.reserved.load(Ordering::Relaxed).saturating_sub(staged)
    }

    /// Returns the number of seconds that a client waits for a fetch of the blob. `None` while the
    /// time is unknown.
    pub(crate) fn cost(&self) -> Option<f32> {
        let cost = f32::from_bits(self.cost.load(Ordering::Relaxed));
        cost.is_finite().then_some(cost)
    }

    /// Sets the terms and the maximum disk space of the fill in bytes. The maximum is `u64::MAX`
    /// for an unknown length.
    pub(crate) fn set_terms(&self, terms: Terms, expected: u64) {
        if let Some(cost) = terms.cost {
            self.cost.store(cost.to_bits(), Ordering::Relaxed);
        }
        self.small.store(terms.small, Ordering::Relaxed);
        self.expected.store(expected, Ordering::Relaxed);
    }

    /// Returns the maximum disk space of the fill in bytes, computed from the announced length.
    /// `u64::MAX` for an unknown length.
    pub(crate) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }

    /// Waits for the result of the fill. Cancel safe.
    pub(crate) async fn outcome(&self) -> Result<Arc<OpenBlob>, Error> {
        let mut progress = self.progress.subscribe();
        let outcome = progress
            .wait_for(|progress| progress.outcome.is_some())
            .await;
        // `self` owns the sender, so the channel is never closed here.
        outcome
            .ok()
            .and_then(|progress| progress.outcome.clone())
            .unwrap_or_else(|| Err(fill_ended()))?;
        self.committed.get().cloned().ok_or_else(fill_ended)
    }

    /// Waits for the error that ends the fill, and returns it.
    pub(crate) async fn failure(&self) -> Error {
        self.outcome().await.err().unwrap_or_else(fill_ended)
    }
}
