//! The command line: what can be typed, and the help that teaches it.

mod admin_url;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod document;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod worker;

use clap::{Parser, Subcommand};

/// Pull-through proxy and cache for container images.
///
/// Docker, containerd, CRI-O and podman pull any image of any registry through pierhead. The first
/// pull streams from the upstream while it is being stored; every later one is served from the cache,
/// also while the upstream is down.
#[derive(Parser)]
#[command(name = "pierhead", version, long_version = LONG_VERSION, after_help = EXAMPLES, propagate_version = true)]
pub(crate) struct Cli {
    /// Print results, warnings and errors only: no progress and no notes (serve: log warnings and errors)
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ntarget: ",
    env!("PIERHEAD_TARGET"),
    " (",
    env!("PIERHEAD_PROFILE"),
    ")\nlicense: ",
    env!("CARGO_PKG_LICENSE"),
    "\nminimum Rust: ",
    env!("CARGO_PKG_RUST_VERSION"),
    "\n",
    env!("CARGO_PKG_DESCRIPTION"),
);

const EXAMPLES: &str = "\
Examples:
  pierhead serve                                   listen on 0.0.0.0:5000 for everything
  docker pull 127.0.0.1:5000/docker.io/library/alpine
  podman pull --tls-verify=false 127.0.0.1:5000/quay.io/podman/hello
  pierhead setup docker                            make plain `docker pull` go through it
  pierhead doctor                                  is everything well?
  pierhead cache stat                              how full is it, who listens where
  pierhead cache warm docker.io/library/alpine     pull into the cache beforehand
  pierhead pull redis:7 --via http://10.0.0.1:5000 --into store --as docker-archive --output - | docker load
  pierhead config show --default > pierhead.toml   a file with every key, to start from

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration. Where the reason is known:
  65 a file that the configuration names is wrong      66 it, or an image, is missing
  68 no such interface, or no such address             69 the port or the data folder is in use
  71 profile, limits or tier do not fit the machine    72 the data folder is another program's or version's
  73 the data folder is read-only, or none             74 its disk is full
  75 the clock is years off                            76 no TLS with an upstream
  77 the data folder is another user's, or binding the port needs root";

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the proxy in the foreground
    Serve(serve::ServeArgs),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Look into the cache of the running pierhead, and manage it
    Cache(cache::CacheArgs),
    /// Make docker, containerd, podman or CRI-O of this machine pull through pierhead, or no longer
    Setup(setup::SetupArgs),
    /// Check pierhead, its disk, its upstreams and the clients of this machine, and name the fix for each problem
    Doctor(doctor::DoctorArgs),
    /// Pull an image as a delta bundle: just the file contents that this machine lacks
    Pull(Box<worker::PullArgs>),
    /// Record which files of an image a start opens, so that bundles carry these first
    Trace(Box<worker::TraceArgs>),
    /// Show an image as bundles see it: layers, shared content, hot files
    Inspect(Box<worker::InspectArgs>),
    /// Show what an update of an image would move, by each method
    Diff(Box<worker::DiffArgs>),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  pierhead completions bash > /etc/bash_completion.d/pierhead"
    )]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(
        after_help = "Examples:\n  pierhead man | man -l -\n  pierhead man cache warm | man -l -"
    )]
    Man {
        /// A command, for its own page
        command: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn every_command_can_be_quiet() {
        fn walk(command: &clap::Command) {
            let has = |name: &str| {
                command
                    .get_arguments()
                    .any(|it| it.get_long() == Some(name))
            };
            assert!(has("quiet"), "{}", command.get_name());
            command
                .get_subcommands()
                .filter(|it| it.get_name() != "help")
                .for_each(walk);
        }
        let mut command = super::Cli::command();
        command.build();
        walk(&command);
    }
}
