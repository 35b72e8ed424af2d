//! `cargo xtask …`: what a shell script would do.

#![forbid(unsafe_code)]

mod corpus;
mod exec;
mod place;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Develop pierhead: check it, and build what the checks need.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the images that tests pull, as an OCI image layout.
    Corpus {
        /// Where to put the layout, instead of `corpus` in the build folder.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Build even if it is there, from the packages of today.
        #[arg(long)]
        anew: bool,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Corpus { out, anew } => {
            corpus::build(&out.unwrap_or_else(place::corpus), anew).map(|()| true)
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
