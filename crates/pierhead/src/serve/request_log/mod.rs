//! The request log of `request_log.file`: one line per request, the input of `pierhead-replay`.
//!
//! The cache puts a record of each request into a bounded queue, and a separate thread writes the
//! records. While the queue is full, pierhead counts new records but does not log them; clients get
//! their responses as usual.

mod hash_secret;
mod log_file;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use pierhead_cache::{Outcome, Recorder};
use pierhead_eviction::Access;
use pierhead_eviction::request_log::{Record, RecordedOutcome};
use pierhead_host::{BackgroundTask, Panics};
use pierhead_oci::{Algorithm, Digest, Hasher};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use hash_secret::HashSecret;
use log_file::LogFile;

/// Maximum number of requests that wait for the writer: about 1.6 MB of memory, for up to 160 000
/// requests per second.
const MAX_QUEUED: usize = 16_384;
/// Interval at which the writer empties the queue.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of lines of one write to the request log: about 14 KB of text.
const MAX_WRITE_LINES: usize = 256;

/// A handle of the thread that writes the request log, until [`RequestLogWriter::stop`] ends this
/// thread.
pub(crate) struct RequestLogWriter {
    queue: Arc<RequestQueue>,
    stop: Sender<()>,
    writer: JoinHandle<()>,
}

type QueuedRequest = (Access<Digest>, Outcome);

/// Requests that wait for the writer.
#[derive(Default)]
pub(crate) struct RequestQueue {
    queued: Mutex<Vec<QueuedRequest>>,
    recorded: Counter,
    dropped: Counter,
}

impl RequestLogWriter {
    /// Starts the thread that appends to the request log in `file`. At half of `max_size` bytes,
    /// `file` becomes `file.1` and a new file begins. The hash secret is in the data folder, which
    /// this process has locked; a missing secret is created. Blocks.
    ///
    /// # Errors
    /// The file cannot be written, is not a request log, or another process writes to it.
    pub(crate) fn start(
        queue: Arc<RequestQueue>,
        file: &Path,
        max_size: u64,
        data: &Path,
        panics: &Panics,
    ) -> anyhow::Result<Self> {
        let secret = hash_secret::load(data)
            .with_context(|| format!("no secret for the request log in {}", data.display()))?;
        let mut log = LogFile::new(file, max_size / 2);
        log.open()
            .with_context(|| format!("cannot write the request log {}", file.display()))?;
        let (stop, stopped) = channel();
        let writer = {
            let queue = queue.clone();
            let panics = panics.clone();
            std::thread::Builder::new()
                .name("request-log".into())
                .spawn(move || {
                    let write = || queue.write(&secret, &mut log, &stopped);
                    let wait =
                        |pause| stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
                    panics.restart(BackgroundTask::RequestLog, write, wait);
                })?
        };
        Ok(Self {
            queue,
            stop,
            writer,
        })
    }

    /// Registers the counters of the request log. The caller gives the prefix of their names.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "recorded",
            "Requests written to the request log",
            self.queue.recorded.clone(),
        );
        registry.register(
            "dropped",
            "Requests missing in the request log: the writer was too slow, or the disk failed",
            self.queue.dropped.clone(),
        );
    }

    /// Writes the queued requests and ends the thread. Blocks until the thread has ended.
    pub(crate) fn stop(self) {
        drop(self.stop);
        let _ = self.writer.join();
    }
}

impl RequestQueue {
    /// Returns the function that the cache calls for each request.
    pub(crate) fn recorder(self: &Arc<Self>) -> Recorder {
        let queue = self.clone();
        Arc::new(move |access, outcome| queue.push(*access, outcome))
    }

    fn push(&self, access: Access<Digest>, outcome: Outcome) {
        let mut queued = self.queued.lock();
        if queued.len() < MAX_QUEUED {
            queued.push((access, outcome));
        } else {
            self.dropped.inc();
        }
    }

    fn write(&self, secret: &HashSecret, log: &mut LogFile, stopped: &Receiver<()>) {
        let (mut batch, mut failed) = (Vec::new(), false);
        loop {
            let is_stopped = stopped.recv_timeout(WRITE_INTERVAL) != Err(RecvTimeoutError::Timeout);
            std::mem::swap(&mut *self.queued.lock(), &mut batch);
            self.flush(&batch, secret, log, &mut failed);
            batch.clear();
            if is_stopped {
                return;
            }
        }
    }

    /// Writes a batch of queued requests to the file. `failed` says whether the last write failed,
    /// so that consecutive failures are logged once. An empty batch does not change `failed`.
    fn flush(
        &self,
        batch: &[QueuedRequest],
        secret: &HashSecret,
        log: &mut LogFile,
        failed: &mut bool,
    ) {
        let mut text = String::new();
        for part in batch.chunks(MAX_WRITE_LINES) {
            text.clear();
            for (access, outcome) in part {
                text.push_str(&line(secret, access, *outcome).to_string());
                text.push('\n');
            }
            let count = u64::try_from(part.len()).unwrap_or(u64::MAX);
            match log.append(&text) {
                Ok(()) => {
                    self.recorded.inc_by(count);
                    *failed = false;
                }
                Err(error) => {
                    self.dropped.inc_by(count);
                    if !std::mem::replace(failed, true) {
                        tracing::warn!(file = %log.path().display(), %error, "cannot write the request log");
                    }
                }
            }
        }
    }
}

fn line(secret: &HashSecret, access: &Access<Digest>, outcome: Outcome) -> Record {
    // The key is the first 64 bits of the SHA-256 hash over the secret, whose length is fixed, and
    // the digest. Without the secret, no reader can map a key to a digest or forge a key.
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(secret.as_slice());
    hasher.update(access.key.as_bytes());
    let hash = hasher.finish();
    let key = hash.as_bytes().first_chunk();
    Record {
        second: access.tick,
        key: key.map_or(0, |key| u64::from_be_bytes(*key)),
        size: access.size,
        cost_ms: milliseconds(access.cost),
        shared: access.shared,
        outcome: match outcome {
            Outcome::Hit => RecordedOutcome::Hit,
            Outcome::Miss => RecordedOutcome::Miss,
            Outcome::Bypass => RecordedOutcome::Passed,
        },
    }
}

fn milliseconds(seconds: f32) -> u32 {
    let time = Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX);
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
