//! The trace that `serve` records of itself: one line a request, for `pierhead-replay`.
//!
//! Requests leave a note in a bounded list; a thread of its own writes it. What does not fit is counted.

mod output;
mod secret;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use pierhead_cache::{Outcome, Recorder};
use pierhead_eviction::Access;
use pierhead_eviction::request_log::{Record, RecordedOutcome};
use pierhead_host::{BackgroundTask, Panics};
use pierhead_oci::{Algorithm, Digest, Hasher};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use output::Output;
use secret::Secret;

/// Requests that may wait for the writer: about 1.6 MB, and 160 000 requests a second.
const WAITING: usize = 16_384;
/// How often the writer looks.
const EVERY: Duration = Duration::from_millis(100);
/// Lines of the request log in one write: some 14 KB.
const AT_ONCE: usize = 256;

/// Writes what requests note until it is stopped.
pub(crate) struct Trace {
    notes: Arc<Notes>,
    stop: Sender<()>,
    writer: JoinHandle<()>,
}

type Note = (Access<Digest>, Outcome);

/// What requests leave for the writer.
#[derive(Default)]
pub(crate) struct Notes {
    waiting: Mutex<Vec<Note>>,
    recorded: Counter,
    dropped: Counter,
}

impl Trace {
    /// Goes on with the trace in `file`, which is given up for a new one at `max_size` bytes together with the one
    /// before it, `file.1`. The secret is in the data folder, which is ours by now; made when it is missing. Blocks.
    ///
    /// # Errors
    /// The file cannot be written, is no trace, or another process records in it.
    pub(crate) fn start(
        notes: Arc<Notes>,
        file: &Path,
        max_size: u64,
        data: &Path,
        panics: &Panics,
    ) -> anyhow::Result<Self> {
        let secret = secret::load(data)
            .with_context(|| format!("no secret for traces in {}", data.display()))?;
        let mut output = Output::new(file, max_size / 2);
        output
            .start()
            .with_context(|| format!("cannot record a trace in {}", file.display()))?;
        let (stop, stopped) = channel();
        let writer = {
            let notes = notes.clone();
            let panics = panics.clone();
            std::thread::Builder::new()
                .name("trace".into())
                .spawn(move || {
                    let write = || notes.write(&secret, &mut output, &stopped);
                    let wait =
                        |pause| stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
                    panics.restart(BackgroundTask::RequestLog, write, wait);
                })?
        };
        Ok(Self {
            notes,
            stop,
            writer,
        })
    }

    /// Registers the counters; the caller gives the prefix.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "recorded",
            "Requests written to the trace",
            self.notes.recorded.clone(),
        );
        registry.register(
            "dropped",
            "Requests that the writer of the trace was too slow for, or the disk refused",
            self.notes.dropped.clone(),
        );
    }

    /// Writes what waits, and ends. Blocks.
    pub(crate) fn stop(self) {
        drop(self.stop);
        let _ = self.writer.join();
    }
}

impl Notes {
    /// For the cache.
    pub(crate) fn recorder(self: &Arc<Self>) -> Recorder {
        let notes = self.clone();
        Arc::new(move |access, outcome| notes.note(*access, outcome))
    }

    fn note(&self, access: Access<Digest>, outcome: Outcome) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING {
            waiting.push((access, outcome));
        } else {
            self.dropped.inc();
        }
    }

    fn write(&self, secret: &Secret, output: &mut Output, stopped: &Receiver<()>) {
        let (mut batch, mut failed) = (Vec::new(), false);
        loop {
            let over = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(&mut *waiting, &mut batch);
            }
            self.flush(&batch, secret, output, &mut failed);
            batch.clear();
            if over {
                return;
            }
        }
    }

    /// `failed` is whether the last write failed: that is told once. No requests say nothing about it.
    fn flush(&self, batch: &[Note], secret: &Secret, output: &mut Output, failed: &mut bool) {
        let mut text = String::new();
        for part in batch.chunks(AT_ONCE) {
            text.clear();
            for (access, outcome) in part {
                text.push_str(&line(secret, access, *outcome).to_string());
                text.push('\n');
            }
            let count = u64::try_from(part.len()).unwrap_or(u64::MAX);
            match output.append(&text) {
                Ok(()) => {
                    self.recorded.inc_by(count);
                    *failed = false;
                }
                Err(error) => {
                    self.dropped.inc_by(count);
                    if !std::mem::replace(failed, true) {
                        tracing::warn!(file = %output.path().display(), %error, "the trace cannot be written");
                    }
                }
            }
        }
    }
}

fn line(secret: &Secret, access: &Access<Digest>, outcome: Outcome) -> Record {
    // SHA-256 over a secret of fixed length, cut to a quarter: nobody without the secret can tell which
    // digest a key is, nor make one that looks like it.
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
            Outcome::Kept => RecordedOutcome::Miss,
            Outcome::Passed => RecordedOutcome::Passed,
        },
    }
}

fn milliseconds(seconds: f32) -> u32 {
    let time = Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX);
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
