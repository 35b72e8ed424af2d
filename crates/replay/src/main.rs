//! `pierhead-replay`: which eviction policy would miss the least on a trace.

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
        // `pierhead-replay … | head`: the reader has read enough.
        Err(Failure::Other(error)) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(Failure::Other(error)) => {
            eprintln!("pierhead-replay: {}", message_of(&error));
            ExitCode::FAILURE
        }
    }
}

/// The message with its causes, but for those whose text stands in it already.
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
