//! The program `pierhead`: parses the command line and runs the command.

#![forbid(unsafe_code)]

mod admin;
mod cli;
mod config;
mod doctor;
mod serve;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::config::environment::Environment;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli::verbosity::set_quiet(cli.quiet);
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args, Environment::read()),
        Command::Config(command) => cli::config::run(&command, &Environment::read()),
        Command::Cache(command) => cli::admin_client::run(&command),
        Command::Setup(args) => cli::setup::run(&args, &Environment::read()),
        Command::Doctor(args) => doctor::run(&args, &Environment::read()),
        Command::Pull(args) => cli::worker::pull(&args, &Environment::read()),
        Command::Trace(args) => cli::worker::trace(&args, &Environment::read()),
        Command::Inspect(args) => cli::worker::inspect(&args, &Environment::read()),
        Command::Diff(args) => cli::worker::diff(&args, &Environment::read()),
        Command::Completions { shell } => cli::document::completions(shell),
        Command::Man { command } => cli::document::man(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
