//! Reads the trace files of the command line (plain, zstd or gzip) into memory, or generates a
//! workload.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use pierhead_eviction::Access;
use pierhead_replay::synthetic::{Workload, WorkloadParameters};
use pierhead_replay::trace::{
    Format, Reader, RequestTrace, RequestTraceBuilder, TraceCounts, TraceError, TraceErrorKind,
    oracle,
};
use serde::Serialize;

use super::cli::Cli;
use super::unpack::unpack;

/// Where one trace comes from.
pub(crate) enum Source {
    /// Files that are parts of one trace, in order.
    Files(Vec<PathBuf>),
    /// A generated registry workload.
    Made { seed: u64, requests: Option<u64> },
}

/// A trace in memory, with the numbers of skipped and changed requests.
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) requests: RequestTrace,
    notes: TraceCounts,
    cut: bool,
}

/// Summary of a trace, which `--json` prints.
#[derive(Serialize)]
pub(crate) struct Summary {
    pub(crate) trace: String,
    pub(crate) requests: usize,
    pub(crate) objects: usize,
    pub(crate) footprint_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) seconds: u64,
    left_out_empty: u64,
    left_out_other: u64,
    clamped_in_time: u64,
    cut: bool,
}

/// Number of bytes at the beginning of a file from which its format is detected.
const HEAD: u64 = 4096;
const PIECE: usize = 64 * 1024;

impl Source {
    /// Reads or generates the whole trace.
    pub(crate) fn read(&self, args: &Cli) -> anyhow::Result<Trace> {
        match self {
            Self::Files(paths) => Trace::read(paths, args),
            Self::Made { seed, requests } => Trace::make(*seed, *requests),
        }
    }
}

impl Trace {
    fn make(seed: u64, requests: Option<u64>) -> anyhow::Result<Self> {
        let usual = WorkloadParameters::default();
        let parameters = WorkloadParameters {
            requests: requests.unwrap_or(usual.requests),
            ..usual
        };
        Ok(Self {
            name: format!("synthetic-{seed}"),
            requests: Workload::new(&parameters, seed)?.collect(),
            notes: TraceCounts::default(),
            cut: false,
        })
    }

    fn read(paths: &[PathBuf], args: &Cli) -> anyhow::Result<Self> {
        let names: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut holder = RequestTraceBuilder::default();
        let mut notes = TraceCounts::default();
        let mut cut = false;
        for (path, name) in paths.iter().zip(&names) {
            let (found, whole) =
                read_file(path, args, &mut holder).with_context(|| name.clone())?;
            notes += found;
            cut |= !whole;
        }
        // Counts requests that are earlier than a request of the previous file. The reader itself
        // counts such requests only within one file.
        notes.backwards += holder.backwards();
        let requests = holder.finish();
        let name = names.join("+");
        if requests.is_empty() {
            return Err(anyhow!(
                "{name}: no request in it ({} of size zero, {} other than successful GETs); is this the format? --format names another",
                notes.empty,
                notes.skipped
            ));
        }
        Ok(Self {
            name,
            requests,
            notes,
            cut,
        })
    }
}

/// Reads a file into `holder`. Returns the numbers of skipped and changed requests, and whether the
/// file is complete.
fn read_file(
    path: &Path,
    args: &Cli,
    holder: &mut RequestTraceBuilder,
) -> anyhow::Result<(TraceCounts, bool)> {
    let file = File::open(path).map_err(|error| match is_older_half(path) {
        true if error.kind() == io::ErrorKind::NotFound => {
            anyhow!("there is no older half yet: leave it out")
        }
        _ => error.into(),
    })?;
    let mut bytes = unpack(file)?;
    let mut head = Vec::new();
    let mut cut = false;
    if let Err(error) = bytes.by_ref().take(HEAD).read_to_end(&mut head) {
        cut = note_cut(error)?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let format = match (args.format, &args.csv) {
        (Some(format), _) => format,
        (None, Some(_)) => Format::Csv,
        (None, None) => Format::of(&name, &head)?,
    };
    let mut reader = Reader::new(format, args.csv.clone().unwrap_or_default());
    let mut full = None;
    let mut each = |access: Access<u64>| {
        if let Err(wrong) = holder.push(&access) {
            full.get_or_insert(wrong);
        }
    };
    reader.feed(&head, &mut each)?;
    let mut piece = vec![0; PIECE];
    while !cut {
        match bytes.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => reader.feed(&piece[..read], &mut each)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => cut = note_cut(error)?,
        }
    }
    let notes = reader.notes();
    let ended = match reader.end(&mut each) {
        Ok(notes) if !cut => Ok((notes, true)),
        // The compressed file is truncated, so a truncated last line is not a further error.
        Ok(notes) => Ok((notes, false)),
        Err(TraceError {
            wrong: TraceErrorKind::Cut,
            ..
        }) if args.cut_ok => Ok((notes, false)),
        Err(error) => Err(error),
    }?;
    if let Some(wrong) = full {
        return Err(wrong.into());
    }
    if cut && !args.cut_ok {
        return Err(anyhow!("{}", TraceErrorKind::Cut).context("the packed file is truncated"));
    }
    Ok(ended)
}

/// Whether a path is the older of the two files of a request log, which has the name `FILE.1`.
fn is_older_half(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "1") && path.with_extension("").exists()
}

/// Returns `true` if an error means that the file is truncated; returns every other error as `Err`.
fn note_cut(error: io::Error) -> io::Result<bool> {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(true),
        _ => Err(error),
    }
}

impl Trace {
    /// Prints the numbers of skipped and changed requests to standard error.
    pub(crate) fn warn(&self, quiet: bool) {
        let Self {
            name, notes, cut, ..
        } = self;
        for (count, what) in [
            (notes.empty, "requests of size zero were left out"),
            (
                notes.backwards,
                "requests were earlier than the one before and got its time",
            ),
            (
                notes.skipped,
                "requests other than successful GETs were left out",
            ),
        ] {
            if count > 0 && !quiet {
                eprintln!("{name}: {count} {what}");
            }
        }
        if *cut {
            eprintln!("{name}: truncated; its complete requests were replayed");
        }
    }

    /// Writes the trace in the format of libCacheSim.
    pub(crate) fn export(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for (access, next) in self.requests.iter().zip(self.requests.future().numbers()) {
            file.write_all(&oracle::bytes(&access, *next).ok_or_else(|| {
                anyhow!(
                    "an object of {} bytes does not fit into its 32 bits",
                    access.size
                )
            })?)?;
        }
        Ok(file.flush()?)
    }

    pub(crate) fn summary(&self) -> Summary {
        let Self {
            requests, notes, ..
        } = self;
        Summary {
            trace: self.name.clone(),
            requests: requests.len(),
            objects: requests.objects(),
            footprint_bytes: requests.footprint(),
            requested_bytes: requests.bytes(),
            seconds: requests.seconds(),
            left_out_empty: notes.empty,
            left_out_other: notes.skipped,
            clamped_in_time: notes.backwards,
            cut: self.cut,
        }
    }
}
