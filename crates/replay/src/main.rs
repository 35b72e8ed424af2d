//! `pierhead-replay`: the program that compares eviction policies on request traces.

#![forbid(unsafe_code)]

mod program;

use std::io;
use std::process::ExitCode;

use clap::Parser as _;

use program::Failure;
use program::cli::Cli;

fn main() -> ExitCode {
    match program::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        // The reader of a pipe may close the pipe early: `pierhead-replay … | head`.
        Err(Failure::Other(error)) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(Failure::Other(error)) => {
            eprintln!("pierhead-replay: {}", message_of(&error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the message of an error and of its causes. A cause whose text the message already
/// contains is omitted.
fn message_of(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
