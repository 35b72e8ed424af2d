//! Runs `pierhead trace`: records the order in which a starting container opens files, sends this
//! order to pierhead, and prints the result. The recording is code of the crate `pierhead-worker`.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use pierhead_worker::trace::{self, RecordOptions, Recording, TraceSubject};
use pierhead_worker::{Error, Progress as _};

use super::args::TraceArgs;
use super::interrupt;
use super::progress::TerminalProgress;
use super::server::{platform, server};
use crate::cli::exit_code::CommandError;
use crate::config::environment::Environment;

/// Runs the command `pierhead trace`.
pub(crate) fn run(args: &TraceArgs, environment: &Environment) -> Result<(), CommandError> {
    let progress = TerminalProgress::notes_only();
    // Reports a wrong URL, CA or password before the command starts.
    let server = match &args.via {
        Some(via) => Some(server(via, &args.login, environment)?),
        None => None,
    };
    let (paths, status) = match &args.send {
        Some(file) => (trace::read_paths(file)?, None),
        None => {
            // Reports an image that does not exist before the command starts, since the command may
            // run for a long time.
            if let Some(server) = &server {
                pierhead_worker::require_image(server, &args.image)?;
            }
            let recording = record(args, &progress)?;
            (recording.paths, recording.status)
        }
    };
    if let Some(output) = &args.output {
        write(&paths, output)?;
    }
    // A command that fails to start opens other files than a container that starts.
    let failed = status.filter(|status| !status.success());
    if let (Some(failed), Some(_)) = (&failed, &server) {
        progress.note(&nothing_sent(failed));
    } else if let Some(server) = &server {
        let platform = platform(args.platform.as_ref());
        let sent = trace::send(server, &args.image, &platform, &paths, &progress)?;
        let matched = match sent.matched {
            Some(matched) => format!("; the server matched {matched}"),
            None => String::new(),
        };
        progress.note(&format!(
            "sent an order of {} files of {}, out of {} opened files{matched}",
            sent.files,
            args.image,
            paths.len()
        ));
    }
    match failed {
        Some(status) => {
            let code = status.code().or_else(|| Some(128 + status.signal()?));
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            Err(CommandError::Code(code))
        }
        None => Ok(()),
    }
}

/// Tells the user that a recording was not sent, because its command failed.
fn nothing_sent(status: &ExitStatus) -> String {
    format!(
        "nothing was sent: the command ended with {status} before the recording ended; --output keeps the order"
    )
}

fn record(args: &TraceArgs, progress: &TerminalProgress) -> Result<Recording, CommandError> {
    let options = RecordOptions {
        root: args.root.clone(),
        subject: match args.pid {
            Some(pid) => TraceSubject::Process(pid),
            None => TraceSubject::Command(args.command.clone()),
        },
        max_duration: args.seconds.map(Duration::from_secs),
        stop: Some(interrupt_pipe()?),
    };
    let recording = trace::record(options, progress)?;
    if recording.is_incomplete {
        eprintln!(
            "warning: the recording is incomplete: files were opened faster than trace could read"
        );
    }
    Ok(recording)
}

/// Returns the reading end of a pipe that becomes readable at Ctrl-C or SIGTERM.
fn interrupt_pipe() -> io::Result<OwnedFd> {
    let (reader, mut writer) = io::pipe()?;
    interrupt::at_interrupt(move || {
        let _ = writer.write_all(b"x");
        // Closing the writing end would also make the pipe readable. So the writing end stays open
        // until the process ends.
        std::mem::forget(writer);
    });
    Ok(reader.into())
}

/// Writes the recorded order to a file, or to standard output for `-`.
fn write(paths: &[Vec<u8>], to: &Path) -> Result<(), Error> {
    let written = match to == Path::new("-") {
        true => trace::write_paths(paths, &mut io::stdout().lock()),
        false => File::create(to)
            .map(io::BufWriter::new)
            .and_then(|mut file| trace::write_paths(paths, &mut file)),
    };
    written.map_err(|source| Error::File {
        doing: format!("cannot write {}", to.display()),
        source,
    })
}
