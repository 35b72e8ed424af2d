//! The trace that `serve` records of itself: one line a request, for `pierhead replay`.
//!
//! Requests leave a note in a bounded list; a thread of its own writes it. What does not fit is counted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use pierhead_cache::{Outcome, Recorder};
use pierhead_eviction::Access;
use pierhead_eviction::trace::own;
use pierhead_oci::{Algorithm, Digest, Hasher};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Requests that may wait for the writer: about 1.6 MB, and 160 000 requests a second.
const WAITING: usize = 16_384;
/// How often the writer looks.
const EVERY: Duration = Duration::from_millis(100);
/// Lines of one write: some 14 KB, which a file is never longer than its bound.
const AT_ONCE: usize = 256;
/// Bytes of the secret that keys are hashed with.
const SECRET: usize = 32;

/// Writes what requests note until it is stopped.
pub(crate) struct Trace {
    notes: Arc<Notes>,
    stop: Sender<()>,
    writer: JoinHandle<()>,
}

/// What requests leave for the writer.
#[derive(Default)]
pub(crate) struct Notes {
    waiting: Mutex<Vec<(Access<Digest>, Outcome)>>,
    recorded: Counter,
    dropped: Counter,
}

impl Trace {
    /// Goes on with the trace in `file`, which is given up for a new one at `max_size` bytes together with the one
    /// before it, `file.1`. The secret is in the data folder, which is ours by now; made when it is missing. Blocks.
    ///
    /// # Errors
    /// The file cannot be written, or is no trace.
    pub(crate) fn start(
        notes: Arc<Notes>,
        file: &Path,
        max_size: u64,
        data: &Path,
    ) -> anyhow::Result<Self> {
        let secret = secret(data)
            .with_context(|| format!("cannot make the secret of traces in {}", data.display()))?;
        let mut output = Output {
            path: file.to_owned(),
            secret,
            max: max_size / 2,
            written: 0,
            file: None,
        };
        output
            .open()
            .with_context(|| format!("cannot record a trace in {}", file.display()))?;
        let (stop, stopped) = channel();
        let writer = {
            let notes = notes.clone();
            std::thread::Builder::new()
                .name("trace".into())
                .spawn(move || notes.write(&mut output, &stopped))?
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

    fn write(&self, output: &mut Output, stopped: &Receiver<()>) {
        let (mut batch, mut failed) = (Vec::new(), false);
        loop {
            let over = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(&mut *waiting, &mut batch);
            }
            let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            match output.write(&batch) {
                Ok(()) => {
                    self.recorded.inc_by(count);
                    failed = false;
                }
                Err(error) => {
                    self.dropped.inc_by(count);
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(file = %output.path.display(), %error, "the trace cannot be written");
                    }
                }
            }
            batch.clear();
            if over {
                return;
            }
        }
    }
}

struct Output {
    path: PathBuf,
    secret: [u8; SECRET],
    /// Bytes of one file.
    max: u64,
    written: u64,
    file: Option<File>,
}

impl Output {
    /// Opens the file for more, behind its last whole line.
    fn open(&mut self) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)?;
        let len = file.metadata()?.len();
        if len > 0 {
            let mut head = [0; own::HEADER.len()];
            if file.read_exact(&mut head).is_err() || head != own::HEADER.as_bytes() {
                return Err(io::Error::other(
                    "it holds something that is no trace of this version: name another file",
                ));
            }
        }
        let whole = whole_lines(&mut file, len)?;
        file.set_len(whole)?;
        file.seek(SeekFrom::Start(whole))?;
        if whole == 0 {
            file.write_all(own::HEADER.as_bytes())?;
        }
        self.written = whole.max(own::HEADER.len() as u64);
        self.file = Some(file);
        Ok(())
    }

    fn write(&mut self, batch: &[(Access<Digest>, Outcome)]) -> io::Result<()> {
        batch.chunks(AT_ONCE).try_for_each(|part| self.append(part))
    }

    fn append(&mut self, batch: &[(Access<Digest>, Outcome)]) -> io::Result<()> {
        let mut text = String::new();
        for (access, outcome) in batch {
            text.push_str(&self.line(access, *outcome).to_string());
            text.push('\n');
        }
        if self.written.saturating_add(text.len() as u64) > self.max {
            self.file = None;
            let mut older = self.path.as_os_str().to_owned();
            older.push(".1");
            fs::rename(&self.path, older)?;
        }
        if self.file.is_none() {
            self.open()?;
        }
        if let Some(file) = &mut self.file {
            let written = file.write_all(text.as_bytes());
            if written.is_err() {
                // Half a line may be in it.
                self.file = None;
            }
            written?;
            self.written += text.len() as u64;
        }
        Ok(())
    }

    fn line(&self, access: &Access<Digest>, outcome: Outcome) -> own::Line {
        // SHA-256 over a secret of fixed length, cut to a quarter: nobody without the secret can tell which
        // digest a key is, nor make one that looks like it.
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&self.secret);
        hasher.update(access.key.as_bytes());
        let hash = hasher.finish();
        let key = hash.as_bytes().first_chunk();
        own::Line {
            second: access.tick,
            key: key.map_or(0, |key| u64::from_be_bytes(*key)),
            size: access.size,
            cost_ms: milliseconds(access.cost),
            shared: access.shared,
            outcome: match outcome {
                Outcome::Hit => own::Outcome::Hit,
                Outcome::Kept => own::Outcome::Miss,
                Outcome::Passed => own::Outcome::Passed,
            },
        }
    }
}

/// Bytes of a file of `len` up to the end of its last whole line.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    const LONGEST: u64 = 4096;
    let from = len.saturating_sub(LONGEST);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(LONGEST).read_to_end(&mut tail)?;
    let end = tail.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |at| from + at as u64 + 1))
}

fn milliseconds(seconds: f32) -> u32 {
    let time = Duration::try_from_secs_f32(seconds).unwrap_or(Duration::MAX);
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The secret of this data folder; it is nowhere else, and nobody but its owner can read it.
fn secret(data: &Path) -> io::Result<[u8; SECRET]> {
    let path = data.join("trace-secret");
    let mut secret = [0; SECRET];
    match File::open(&path).and_then(|mut file| file.read_exact(&mut secret)) {
        Ok(()) => return Ok(secret),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Cut short by a crash: made anew.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error),
    }
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn access(number: u64) -> Access<Digest> {
        Access::new(
            Digest::of(Algorithm::Sha256, &number.to_le_bytes()),
            4096,
            number,
        )
    }

    fn lines(path: &Path) -> Vec<own::Line> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.strip_prefix(own::HEADER).unwrap().lines();
        lines.map(|line| own::Line::parse(line).unwrap()).collect()
    }

    fn record(file: &Path, data: &Path, max: u64, numbers: std::ops::Range<u64>) -> (u64, u64) {
        let notes = Arc::<Notes>::default();
        let recorder = notes.recorder();
        let trace = Trace::start(notes.clone(), file, max, data).unwrap();
        for number in numbers {
            recorder(&access(number), Outcome::Hit);
        }
        trace.stop();
        (notes.recorded.get(), notes.dropped.get())
    }

    #[test]
    fn a_trace_goes_on_after_a_restart_and_its_keys_need_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace");
        assert_eq!(record(&file, folder.path(), 1 << 20, 0..3), (3, 0));
        // What a crash leaves.
        let mut text = fs::read(&file).unwrap();
        text.extend(b"12 00ab");
        fs::write(&file, text).unwrap();
        assert_eq!(record(&file, folder.path(), 1 << 20, 2..5), (3, 0));
        let keys: Vec<_> = lines(&file).iter().map(|line| line.key).collect();
        assert_eq!((keys.len(), keys[2]), (6, keys[3]), "one key, one hash");
        let path = folder.path().join("trace-secret");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(path).unwrap();
        record(&file, folder.path(), 1 << 20, 4..5);
        let again = lines(&file);
        assert_ne!(again[5].key, again[6].key, "another secret");
    }

    #[test]
    fn files_together_stay_below_their_bound() {
        let folder = tempfile::tempdir().unwrap();
        let (file, max) = (folder.path().join("trace"), 4096);
        for round in 0..20 {
            record(&file, folder.path(), max, round * 10..round * 10 + 10);
        }
        let older = folder.path().join("trace.1");
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        assert!(size(&file) + size(&older) <= max);
        let (older, newer) = (lines(&older), lines(&file));
        assert_eq!(newer.last().unwrap().second, 199);
        assert_eq!(older.last().unwrap().second + 1, newer[0].second);
    }

    #[test]
    fn what_is_no_trace_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes");
        fs::write(&file, "dear diary\n").unwrap();
        assert!(Trace::start(Arc::default(), &file, 1 << 20, folder.path()).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"dear diary\n");
    }

    #[test]
    fn more_than_can_wait_is_counted() {
        let notes = Notes::default();
        for number in 0..u64::try_from(WAITING).unwrap() + 5 {
            notes.note(access(number), Outcome::Hit);
        }
        assert_eq!(notes.dropped.get(), 5);
    }
}
