//! `pierhead trace`: runs or joins a start, records the order of its opens and sends it.

mod order;
mod watch;

use std::io::{PipeReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use pierhead_bundle::api::{MAX_DOCUMENT, Trace, TraceReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::http::{Request, Server};
use super::session::{Patience, Session};
use super::{Error, interrupt, look::Place, names, pull};
use crate::cli::worker::TraceArgs;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::quiet::note;
use watch::{Root, Watch};

/// A command that was told to end has so long for it.
const GRACE: Duration = Duration::from_secs(10);

/// Maximum size of the server's response to an order.
const MAX_REPORT: usize = 64 << 10;

/// Runs it.
pub(crate) fn run(args: &TraceArgs, environment: &Environment) -> Result<(), Failure> {
    // What is wrong with the other end is said before anything runs.
    let server = match &args.via {
        Some(via) => Some(super::server(via, &args.login, environment)?),
        None => None,
    };
    let (paths, status) = match &args.send {
        Some(file) => (order::read(file).map_err(super::failed)?, None),
        None => {
            // Fails before the command runs, since that may take long.
            if let Some(server) = &server {
                pull::exists(&Session::new(server), &args.image)?;
            }
            record(args)?
        }
    };
    if let Some(output) = &args.output {
        order::write(&paths, output).map_err(super::failed)?;
    }
    if let Some(server) = &server {
        let (sent, matched) = send(server, args, &paths)?;
        let matched = match matched {
            Some(matched) => format!("; the server matched {matched}"),
            None => String::new(),
        };
        note!(
            "sent the order of {sent} files of {}, of {} that were opened{matched}",
            args.image,
            paths.len()
        );
    }
    match status {
        Some(status) if !status.success() => {
            let code = status.code().or_else(|| Some(128 + status.signal()?));
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            Err(Failure::Exit(code))
        }
        _ => Ok(()),
    }
}

type Recorded = (Vec<Vec<u8>>, Option<ExitStatus>);

fn record(args: &TraceArgs) -> Result<Recorded, Failure> {
    // Opens the pidfd before the root, and checks it after the root is open.
    let joined = args.pid.map(Started::join).transpose()?;
    let root = match (&args.root, args.pid) {
        (Some(root), _) => Root::open(root).map_err(super::failed)?,
        (None, Some(pid)) => {
            let root = of_container(pid)?;
            // When the process has ended, another one may have its PID, and the opened root is that one's.
            if joined.as_ref().map_or(Ok(false), Started::has_ended)? {
                return Err(super::failed(format!("process {pid} has ended")));
            }
            root
        }
        (None, None) => {
            return Err(Failure::Refused(
                "name the image's tree with --root".to_owned(),
            ));
        }
    };
    let mut watch = Watch::over(root).map_err(super::failed)?;
    let mut command = match joined {
        Some(joined) => joined,
        None => Started::begin(args)?,
    };
    note!("recording what is opened below {}", watch.root().shown());
    let deadline = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let stop = stopped()?;
    let begun = Instant::now();
    let why = wait(&mut watch, command.pidfd.as_fd(), Some(&stop), deadline)?;
    let status = match why {
        Ended::Itself => command.status(),
        // What we started we end; what ran already goes on.
        Ended::Deadline | Ended::Signal => command.end(&mut watch)?,
    };
    watch.drain().map_err(super::failed)?;
    let shown = watch.root().shown().to_string();
    let (paths, whole) = watch.finish();
    if !whole {
        eprintln!("warning: so much was opened that some of it was not seen");
    }
    if paths.is_empty() {
        return Err(super::failed(nothing(args.pid, &shown, begun.elapsed())));
    }
    Ok((paths, status.filter(|_| why == Ended::Itself)))
}

/// Why no file was seen, and what to do.
fn nothing(pid: Option<u32>, shown: &str, took: Duration) -> String {
    match pid {
        Some(pid) => format!(
            "process {pid} opened nothing in {} s: make it work meanwhile, or trace the container from its start",
            took.as_secs()
        ),
        None => {
            format!("no file below {shown} was opened: is it the root that the command runs in?")
        }
    }
}

/// The root of a container's process.
fn of_container(pid: u32) -> Result<Root, Failure> {
    let root = Root::of_process(pid).map_err(super::failed)?;
    if root.is_of_this_machine()? {
        return Err(Failure::Refused(format!(
            "process {pid} runs in no container: its root is the root of this machine, and the order would name files \
             of this machine. Name a process of the container with --pid, or the image's tree with --root"
        )));
    }
    Ok(root)
}

/// Whose opens are waited for.
struct Started {
    child: Option<Child>,
    pidfd: OwnedFd,
}

impl Started {
    /// Runs the command.
    fn begin(args: &TraceArgs) -> Result<Self, Failure> {
        let (program, rest) = args
            .command
            .split_first()
            .ok_or_else(|| Failure::Refused("name a command, or --pid".to_owned()))?;
        let child = Command::new(program)
            .args(rest)
            .spawn()
            .map_err(|error| super::failed(format!("cannot run {}: {error}", program.display())))?;
        let pidfd = pidfd(child.id())
            .map_err(|error| super::failed(format!("process {}: {error}", child.id())))?;
        Ok(Self {
            child: Some(child),
            pidfd,
        })
    }

    /// Attaches to a running process.
    fn join(pid: u32) -> Result<Self, Failure> {
        let pidfd = pidfd(pid).map_err(|error| match error {
            Errno::SRCH => Failure::Refused(format!("there is no process {pid}")),
            other => super::failed(format!("process {pid}: {other}")),
        })?;
        Ok(Self { child: None, pidfd })
    }

    fn has_ended(&self) -> Result<bool, Failure> {
        let mut ready = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let count = poll(&mut ready, Some(&Timespec::default())).map_err(super::failed)?;
        Ok(count > 0)
    }

    /// Of a child that has ended.
    fn status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.wait().ok()
    }

    /// Ends what was started: politely, then not.
    fn end(&mut self, watch: &mut Watch) -> Result<Option<ExitStatus>, Failure> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself just now.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Some(Instant::now() + GRACE);
        if wait(watch, self.pidfd.as_fd(), None, deadline)? != Ended::Itself {
            let _ = child.kill();
        }
        Ok(child.wait().ok())
    }
}

fn pidfd(pid: u32) -> rustix::io::Result<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pidfd_open(raw.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Itself,
    Deadline,
    Signal,
}

/// Can be read from once a signal came.
fn stopped() -> Result<PipeReader, Failure> {
    let (reader, mut writer) = std::io::pipe()?;
    interrupt::at_interrupt(move || {
        let _ = writer.write_all(b"x");
        // A pipe that was closed could be read from, too: nobody else's business, the process ends soon.
        std::mem::forget(writer);
    });
    Ok(reader)
}

/// Takes in what happens until the process ends, a signal comes or the time is up.
fn wait(
    watch: &mut Watch,
    process: BorrowedFd<'_>,
    stop: Option<&PipeReader>,
    deadline: Option<Instant>,
) -> Result<Ended, Failure> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(Ended::Deadline);
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let (ended, told) = {
            let mut ready: Vec<_> = [
                Some(watch.as_fd()),
                Some(process),
                stop.map(|it| it.as_fd()),
            ]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
            match poll(&mut ready, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(super::failed(error)),
            }
            let is_ready = |at: usize| ready.get(at).is_some_and(|it| !it.revents().is_empty());
            (is_ready(1), is_ready(2))
        };
        watch.drain().map_err(super::failed)?;
        if ended {
            return Ok(Ended::Itself);
        }
        if told {
            return Ok(Ended::Signal);
        }
    }
}

/// Sends the order of the image's own files. Returns their number, and how many of them the server matched; an older
/// server does not tell.
fn send(
    server: &Server,
    args: &TraceArgs,
    paths: &[Vec<u8>],
) -> Result<(usize, Option<u64>), Failure> {
    let platform = names::platform(args.platform.as_ref());
    let seen = Place::of_server(server, platform.clone()).see(&args.image)?;
    let files = order::within(&seen.table, paths).map_err(Error::from)?;
    if files.is_empty() {
        return Err(super::failed(format!(
            "none of the {} files that were opened is a file of {}: is it the image that runs? Nothing was sent",
            paths.len(),
            args.image
        )));
    }
    let trace = Trace {
        // Sends the digest of the manifest, since the tag may move meanwhile.
        image: seen.digest.to_string(),
        platform: Some(platform.to_string()),
        files,
    };
    let body = serde_json::to_vec(&trace).map_err(super::failed)?;
    if body.len() > MAX_DOCUMENT {
        return Err(super::failed(
            "the order is too long: record for fewer --seconds",
        ));
    }
    let path = names::trace(&args.image);
    let mut patience = Patience::new();
    let session = Session::new(server);
    loop {
        let error = match session.send(&Request::post(&path, "application/json", &body)) {
            Ok(answer) if answer.status.is_success() => {
                let report = answer.body.all(MAX_REPORT).unwrap_or_default();
                let report = serde_json::from_slice::<TraceReport>(&report);
                return Ok((trace.files.len(), report.ok().map(|report| report.matched)));
            }
            Ok(answer) => answer.refusal(server, &format!("the order of {}", args.image)),
            Err(error) => error,
        };
        patience.after(error)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_idle_is_told_from_a_wrong_root() {
        let took = Duration::from_millis(4100);
        let told = nothing(Some(7), "/r", took);
        assert!(
            told.starts_with("process 7 opened nothing in 4 s: make it work"),
            "{told}"
        );
        assert!(nothing(None, "/r", took).contains("is it the root"));
    }

    #[test]
    fn a_joined_process_is_seen_to_end() {
        let joined = Started::join(std::process::id()).map_err(|_| "it runs");
        assert!(
            !joined
                .and_then(|it| it.has_ended().map_err(|_| "poll"))
                .expect("it runs")
        );
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let joined = Started::join(child.id())
            .map_err(|_| "it runs")
            .expect("it runs");
        assert!(!joined.has_ended().map_err(|_| "poll").expect("poll"));
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        assert!(joined.has_ended().map_err(|_| "poll").expect("poll"));
    }
}
