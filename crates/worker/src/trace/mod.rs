//! Records the files that a container start opens, in order, and sends this start order to a
//! pierhead server.

mod open_watch;
mod order;
mod process;

use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use pierhead_bundle::api::{MAX_DOCUMENT, Trace, TraceReport};
use pierhead_oci::{Platform, Reference};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::http::{Request, RetryBackoff, Session};
use crate::inspect::ImageSource;
use crate::{Error, Progress, Server, request_path};
use open_watch::{ImageRoot, OpenWatch};
pub use order::{read_paths, write_paths};
use process::TracedProcess;

/// Maximum number of bytes of the response to a sent start order.
const MAX_REPORT: usize = 64 << 10;

/// The command or process whose start is recorded.
pub enum TraceSubject {
    /// Run this command (a program and its arguments), and record the opens from its start on.
    Command(Vec<OsString>),
    /// Record the process with this PID, which is already running.
    Process(u32),
}

/// The options of a recording.
pub struct RecordOptions {
    /// The folder with the tree of the image. If `None`, the folder is the root of the process.
    pub root: Option<PathBuf>,
    /// The command or the process to record.
    pub subject: TraceSubject,
    /// Maximum duration of the recording. If `None`, the recording ends with the command or the
    /// process.
    pub max_duration: Option<Duration>,
    /// The recording ends when this descriptor becomes readable.
    pub stop: Option<OwnedFd>,
}

/// The result of a recording.
#[derive(Debug)]
pub struct Recording {
    /// Paths below the root, without a leading slash, in the order in which each was first opened.
    pub paths: Vec<Vec<u8>>,
    /// Whether the kernel dropped events, or the list of paths has reached its maximum length.
    pub is_incomplete: bool,
    /// The exit status of the command, if it ended by itself.
    pub status: Option<ExitStatus>,
}

/// The result of [`send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentOrder {
    /// Number of files of the image in the sent order.
    pub files: usize,
    /// Number of these files that the server found in the image. Older servers do not report this
    /// number.
    pub matched: Option<u64>,
}

/// Records the opens of files below a root until the command or process ends, the maximum duration
/// has passed or `stop` is readable.
///
/// At the end, terminates the command if it is still running. Does not terminate a process that ran
/// before the recording.
///
/// # Errors
/// [`Error::Usage`] if the process has ended, or if its root is the root of this machine.
/// [`Error::Trace`] if this machine cannot record, or if no file was opened.
pub fn record(options: RecordOptions, progress: &dyn Progress) -> Result<Recording, Error> {
    let joined = match &options.subject {
        // The pidfd is opened before the root of the process, and checked after the root is open,
        // so that pidfd and root belong to the same process.
        TraceSubject::Process(pid) => Some((*pid, TracedProcess::join(*pid)?)),
        TraceSubject::Command(_) => None,
    };
    let root = match (&options.root, &joined) {
        (Some(root), _) => ImageRoot::open(root).map_err(Error::Trace)?,
        (None, Some((pid, process))) => {
            let root = container_root(*pid)?;
            // If the process has ended, its PID and the opened root may belong to another process.
            if process.has_ended()? {
                return Err(Error::Trace(format!("process {pid} has ended")));
            }
            root
        }
        (None, None) => {
            let message = "name the folder with the image's tree by --root";
            return Err(Error::Usage(message.to_owned()));
        }
    };
    let mut watch = OpenWatch::new(root).map_err(Error::Trace)?;
    let (pid, mut process) = match (joined, options.subject) {
        (Some((pid, process)), _) => (Some(pid), process),
        (None, TraceSubject::Command(command)) => (None, TracedProcess::start(&command)?),
        (None, TraceSubject::Process(pid)) => (Some(pid), TracedProcess::join(pid)?),
    };
    progress.note(&format!(
        "recording the files that are opened below {}",
        watch.root().display()
    ));
    let started = Instant::now();
    let deadline = options.max_duration.map(|longest| started + longest);
    let stop = options.stop.as_ref().map(|stop| stop.as_fd());
    let end = wait(&mut watch, process.pidfd(), stop, deadline)?;
    let status = match end {
        RecordingEnd::ProcessEnded => process.status(),
        RecordingEnd::Deadline | RecordingEnd::Stopped => {
            process.terminate(|pidfd, deadline| {
                let end = wait(&mut watch, pidfd, None, Some(deadline))?;
                Ok(end == RecordingEnd::ProcessEnded)
            })?;
            None
        }
    };
    watch.read_pending().map_err(Error::Trace)?;
    let root = watch.root().display().to_string();
    let (paths, is_incomplete) = watch.finish();
    if paths.is_empty() {
        return Err(Error::Trace(nothing_opened(pid, &root, started.elapsed())));
    }
    Ok(Recording {
        paths,
        is_incomplete,
        status,
    })
}

/// Sends the paths that are files of the image, in their order. All other paths stay on this
/// machine.
///
/// # Errors
/// [`Error::Trace`] if no path is a file of the image, or if the list of paths is too long; errors
/// of the HTTP exchange.
pub fn send(
    server: &Server,
    image: &Reference,
    platform: &Platform,
    paths: &[Vec<u8>],
    progress: &dyn Progress,
) -> Result<SentOrder, Error> {
    let source = ImageSource::new(Some(server), None, platform.clone())?;
    let details = source.look_up(image, progress)?;
    let files = order::image_files(&details.toc, paths)?;
    if files.is_empty() {
        return Err(Error::Trace(format!(
            "none of the {} opened files is a file of {image}: name the image that runs. Nothing was sent",
            paths.len(),
        )));
    }
    let trace = Trace {
        // The digest always names the image that was traced, while a tag may move to another image.
        image: details.digest.to_string(),
        platform: Some(platform.to_string()),
        files,
    };
    let body = serde_json::to_vec(&trace)
        .map_err(|error| Error::file("cannot encode the order")(error.into()))?;
    if body.len() > MAX_DOCUMENT {
        return Err(Error::Trace(
            "the order is too long: record for fewer --seconds".to_owned(),
        ));
    }
    let path = request_path::trace(image);
    let mut backoff = RetryBackoff::new();
    let session = Session::new(server);
    loop {
        let error = match session.send(&Request::post(&path, "application/json", &body)) {
            Ok(response) if response.status.is_success() => {
                let report = response.body.all(MAX_REPORT).unwrap_or_default();
                let report = serde_json::from_slice::<TraceReport>(&report);
                return Ok(SentOrder {
                    files: trace.files.len(),
                    matched: report.ok().map(|report| report.matched),
                });
            }
            Ok(response) => response.into_error(server, &format!("the order of {image}")),
            Err(error) => error,
        };
        backoff.wait(error)?;
    }
}

/// Returns the error message for a recording in which no file was opened, with advice.
fn nothing_opened(pid: Option<u32>, root: &str, took: Duration) -> String {
    match pid {
        Some(pid) => format!(
            "process {pid} opened no file in {} s: let it work during the recording, or trace the container from its start",
            took.as_secs()
        ),
        None => {
            format!("no file below {root} was opened: check that the command runs in this root")
        }
    }
}

/// Opens the root folder of a process in a container.
fn container_root(pid: u32) -> Result<ImageRoot, Error> {
    let root = ImageRoot::of_process(pid).map_err(Error::Trace)?;
    let is_host = root.is_of_this_machine();
    if is_host.map_err(Error::file("cannot compare the roots"))? {
        return Err(Error::Usage(format!(
            "process {pid} runs in no container: its root is the root of this machine, and the order would name files \
             of this machine. Name a process of the container by --pid, or the folder with the image's tree by --root"
        )));
    }
    Ok(root)
}

/// The reason why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordingEnd {
    ProcessEnded,
    Deadline,
    Stopped,
}

/// Records events until the process ends, `stop` is readable or the deadline has passed.
fn wait(
    watch: &mut OpenWatch,
    process: BorrowedFd<'_>,
    stop: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> Result<RecordingEnd, Error> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(RecordingEnd::Deadline);
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let (has_ended, is_stopped) = {
            let mut ready: Vec<_> = [Some(watch.as_fd()), Some(process), stop]
                .into_iter()
                .flatten()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut ready, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::Trace(error.to_string())),
            }
            let is_ready =
                |index: usize| ready.get(index).is_some_and(|it| !it.revents().is_empty());
            (is_ready(1), is_ready(2))
        };
        watch.read_pending().map_err(Error::Trace)?;
        if let Some(end) = end_of(has_ended, is_stopped, stop)? {
            return Ok(end);
        }
    }
}

/// Returns the reason of the end, or `None` if the recording continues. Ctrl-C also ends the
/// command, often before `stop` is readable. So the end of the process counts only if `stop` is
/// still not readable.
fn end_of(
    has_ended: bool,
    is_stopped: bool,
    stop: Option<BorrowedFd<'_>>,
) -> Result<Option<RecordingEnd>, Error> {
    if is_stopped {
        return Ok(Some(RecordingEnd::Stopped));
    }
    if !has_ended {
        return Ok(None);
    }
    let is_stopped = stop.map(process::is_readable).transpose()?;
    Ok(Some(match is_stopped {
        Some(true) => RecordingEnd::Stopped,
        _ => RecordingEnd::ProcessEnded,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_process_and_a_wrong_root_get_different_advice() {
        let took = Duration::from_millis(4100);
        let idle = nothing_opened(Some(7), "/r", took);
        assert!(
            idle.starts_with("process 7 opened no file in 4 s: let it work"),
            "{idle}"
        );
        assert!(nothing_opened(None, "/r", took).contains("runs in this root"));
    }

    #[test]
    fn a_stopped_recording_is_not_the_end_of_its_command() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let end = |has_ended, is_stopped| {
            end_of(has_ended, is_stopped, Some(reader.as_fd())).expect("polled")
        };
        assert_eq!(end(false, false), None);
        assert_eq!(end(true, false), Some(RecordingEnd::ProcessEnded));
        assert_eq!(end(true, true), Some(RecordingEnd::Stopped));
        // The pipe becomes readable after the poll that found the end of the command.
        drop(writer);
        assert_eq!(end(true, false), Some(RecordingEnd::Stopped));
    }

    #[test]
    fn a_process_of_this_machine_is_refused_before_anything_is_recorded() {
        let options = RecordOptions {
            root: None,
            subject: TraceSubject::Process(std::process::id()),
            max_duration: Some(Duration::ZERO),
            stop: None,
        };
        let error = record(options, &crate::NoProgress).expect_err("no container");
        assert!(matches!(&error, Error::Usage(why) if why.contains("runs in no container")));
    }
}
