//! Additional upstream connections of one fill. Each connection downloads pieces ahead of the
//! first connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pierhead_cache::{Pieces, Readers};
use pierhead_host::BackgroundTask;
use tokio::task::JoinSet;

use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::downloads::DownloadWaiters;
use crate::pull::blob_connection::{BlobConnection, ConnectionRole};
use crate::pull::blob_request::BlobRequest;
use crate::pull::connection_controller::{
    ConnectionChange, ConnectionController, MEASUREMENT_TIME,
};
use crate::pull::download_slot::{acquire_at_once, at_once};
use crate::pull::fill_ranges::FillRanges;

/// Time that the download of one piece takes. A longer piece costs fewer round trips, and a shorter
/// piece brings the bytes more in the order of the blob.
const PIECE_TIME: Duration = Duration::from_secs(1);
/// Maximum bytes of a piece before the first measurement, and while there is one connection.
pub(crate) const FIRST_PIECE: u64 = 8 << 20;
const MIN_PIECE: u64 = 1 << 20;
const MAX_PIECE: u64 = 64 << 20;

/// What a connection needs to download pieces.
#[derive(Clone)]
pub(crate) struct FillDownload {
    pub(crate) context: Arc<RequestContext>,
    pub(crate) request: BlobRequest,
    pub(crate) ranges: Arc<FillRanges>,
}

/// The additional upstream connections of one fill. Dropping this value ends them.
pub(crate) struct ExtraConnections {
    download: FillDownload,
    pieces: Pieces,
    shared: Arc<SharedCounts>,
    tasks: JoinSet<Result<(), Error>>,
    controller: ConnectionController,
    /// Bytes of the blob that were not staged when the fill began.
    to_download: u64,
    measurement: Measurement,
}

/// The numbers that the connections and the controller share.
#[derive(Default)]
pub(crate) struct SharedCounts {
    /// Number of additional connections that may run.
    allowed: AtomicU32,
    /// Number of additional connections that run.
    running: AtomicU32,
    /// Number of additional connections that have received bytes.
    receiving: AtomicU32,
    /// Maximum bytes of the next piece of a connection.
    piece_bytes: AtomicU64,
}

impl SharedCounts {
    /// Number of additional connections that run.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// Maximum bytes of the next piece of a connection.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.piece_bytes.load(Ordering::Relaxed)
    }
}

/// One measurement of the throughput, over which the number of connections stays the same.
struct Measurement {
    began: Instant,
    arrived: u64,
    receiving: u32,
    /// The throughput of the last measurement, divided by the number of connections.
    rate_per_connection: f64,
}

impl ExtraConnections {
    /// `to_download` is the number of bytes of the blob that are not staged yet.
    pub(crate) fn new(download: FillDownload, pieces: Pieces, to_download: u64) -> Self {
        Self {
            measurement: Measurement {
                began: Instant::now(),
                arrived: download.ranges.arrived(),
                receiving: 0,
                rate_per_connection: 0.0,
            },
            download,
            pieces,
            shared: Arc::new(SharedCounts {
                piece_bytes: AtomicU64::new(FIRST_PIECE),
                ..SharedCounts::default()
            }),
            tasks: JoinSet::new(),
            controller: ConnectionController::default(),
            to_download,
        }
    }

    /// Returns the numbers that the first connection needs.
    pub(crate) fn counts(&self) -> Arc<SharedCounts> {
        self.shared.clone()
    }

    /// Sets the size of the next pieces if `connections` connections run. Near the end, the pieces
    /// are small, so that all connections end at about the same time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn set_piece_bytes(&self, connections: u32) {
        let rate = self.measurement.rate_per_connection;
        let bytes = (rate * PIECE_TIME.as_secs_f64()) as u64;
        let share = self.left() / u64::from(2 * connections);
        let bytes = bytes.min(share).clamp(MIN_PIECE, MAX_PIECE);
        self.shared.piece_bytes.store(bytes, Ordering::Relaxed);
    }

    fn left(&self) -> u64 {
        self.to_download
            .saturating_sub(self.download.ranges.arrived())
    }

    /// Measures the throughput, and adds or ends a connection. The caller calls this about every
    /// [`MEASUREMENT_TIME`].
    pub(crate) async fn control(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if !matches!(ended, Ok(Ok(()))) {
                self.controller.connection_failed();
            }
        }
        let running = self.shared.running.load(Ordering::Relaxed);
        let receiving = self.shared.receiving.load(Ordering::Relaxed);
        let mut allowed = self.shared.allowed.load(Ordering::Relaxed);
        if running < allowed {
            // A connection broke, or had to release its download slot, or no gap is left.
            allowed = running;
            self.shared.allowed.store(allowed, Ordering::Relaxed);
            self.controller.trial_cancelled();
        }
        let (now, arrived) = (Instant::now(), self.download.ranges.arrived());
        // A new connection counts from its first byte on.
        if receiving != self.measurement.receiving || receiving < running.min(allowed) {
            self.restart_measurement(now, arrived, receiving);
            return;
        }
        let elapsed = now.duration_since(self.measurement.began);
        if elapsed < MEASUREMENT_TIME || self.download.ranges.version().is_none() {
            return;
        }
        let rate = (arrived - self.measurement.arrived) as f64 / elapsed.as_secs_f64();
        let connections = receiving + 1;
        self.measurement.rate_per_connection = rate / f64::from(connections);
        self.set_piece_bytes(connections + 1);
        match self.controller.measured(connections, rate, self.left()) {
            ConnectionChange::Keep => {}
            ConnectionChange::Add => {
                if !self.add().await {
                    self.controller.trial_cancelled();
                }
            }
            ConnectionChange::End => {
                let allowed = allowed.saturating_sub(1);
                self.shared.allowed.store(allowed, Ordering::Relaxed);
            }
        }
        self.restart_measurement(now, arrived, receiving);
    }

    fn restart_measurement(&mut self, began: Instant, arrived: u64, receiving: u32) {
        self.measurement = Measurement {
            began,
            arrived,
            receiving,
            ..self.measurement
        };
    }

    /// Starts a connection, if a download slot is free.
    async fn add(&mut self) -> bool {
        // No client waits for these connections in particular, so they are the first to release
        // their slots.
        let waiters = DownloadWaiters::readers(Readers::default());
        let FillDownload {
            context, request, ..
        } = &self.download;
        let Some(slot) = acquire_at_once(context, request, waiters).await else {
            return false;
        };
        self.shared.allowed.fetch_add(1, Ordering::Relaxed);
        let running = RunningConnection::new(self.shared.clone());
        let (download, pieces) = (self.download.clone(), self.pieces.clone());
        let task = async move {
            tokio::select! {
                ended = fill_gaps(&download, &pieces, running) => ended,
                () = slot.yield_requested() => Ok(()),
            }
        };
        let panics = context.cache.panics();
        let task = panics.watch_future(BackgroundTask::FillOwner, task);
        self.tasks.spawn(task);
        true
    }
}

/// Downloads pieces, until no gap is left or fewer connections are allowed.
async fn fill_gaps(
    download: &FillDownload,
    pieces: &Pieces,
    mut running: RunningConnection,
) -> Result<(), Error> {
    let FillDownload {
        context,
        request,
        ranges,
    } = download;
    let role = ConnectionRole::Additional;
    let mut connection = BlobConnection::new((context, request), ranges, role);
    while let Some(max) = running.next_piece_bytes()
        && let Some(mut piece) = at_once(pieces.claim_next(max)).await.flatten()
    {
        let filled = connection.fill_piece(&mut piece, || running.set_receiving());
        filled.await.inspect_err(|error| {
            let digest = &request.digest;
            tracing::debug!(%digest, %error, "an additional connection of a blob download ended");
        })?;
    }
    Ok(())
}

/// One additional connection, which is counted until this value is dropped.
struct RunningConnection {
    shared: Arc<SharedCounts>,
    is_receiving: bool,
}

impl RunningConnection {
    fn new(shared: Arc<SharedCounts>) -> Self {
        shared.running.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            is_receiving: false,
        }
    }

    /// Maximum bytes of the next piece. `None`: the connection has to end.
    fn next_piece_bytes(&self) -> Option<u64> {
        let is_allowed = self.shared.running() <= self.shared.allowed.load(Ordering::Relaxed);
        is_allowed.then(|| self.shared.piece_bytes())
    }

    fn set_receiving(&mut self) {
        if !std::mem::replace(&mut self.is_receiving, true) {
            self.shared.receiving.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for RunningConnection {
    fn drop(&mut self) {
        self.shared.running.fetch_sub(1, Ordering::Relaxed);
        if self.is_receiving {
            self.shared.receiving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
