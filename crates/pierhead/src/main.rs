//! The program `pierhead`: parses the command line and runs the command.

#![forbid(unsafe_code)]

mod admin;
mod admin_client;
mod api;
mod cli;
mod clock;
mod clock_check;
mod config;
mod crate_configs;
mod doctor;
mod environment;
mod exit_code;
mod logging;
mod progress;
#[cfg(test)]
mod reference;
mod request_log;
mod serve;
mod terminal;
mod tier;
mod tier_limit;
mod verbosity;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::environment::Environment;

fn main() -> ExitCode {
    let cli = Cli::parse();
    verbosity::set_quiet(cli.quiet);
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args, Environment::read()),
        Command::Config(command) => cli::config::run(&command, &Environment::read()),
        Command::Cache(command) => admin_client::run(&command),
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
