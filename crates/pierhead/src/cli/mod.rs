//! The command line of `pierhead`: all commands, with their flags and help texts.

pub(crate) mod admin_client;
mod admin_url;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod document;
pub(crate) mod exit_code;
pub(crate) mod progress;
#[cfg(test)]
mod reference;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod terminal;
pub(crate) mod verbosity;
pub(crate) mod worker;

use clap::{Parser, Subcommand};

/// Pull-through proxy and cache for container images.
///
/// Docker, containerd, CRI-O and podman pull images of any registry through pierhead. The first
/// pull of an image streams from the registry while pierhead stores it. Later pulls of the image
/// come from the cache, even while the registry is down.
#[derive(Parser)]
#[command(name = "pierhead", version, long_version = LONG_VERSION, after_help = EXAMPLES, propagate_version = true)]
pub(crate) struct Cli {
    /// Print only results, warnings and errors (with `serve`: log only warnings and errors)
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
  pierhead serve              run the proxy on 0.0.0.0:5000, for all registries
  docker pull 127.0.0.1:5000/docker.io/library/alpine
  podman pull --tls-verify=false 127.0.0.1:5000/quay.io/podman/hello
  pierhead setup docker       configure docker to pull through pierhead
  pierhead doctor             find problems, each with its fix
  pierhead cache stat         show the state of the daemon and its cache
  pierhead cache warm docker.io/library/alpine
                              pull an image into the cache in advance
  pierhead pull redis:7 --via http://10.0.0.1:5000 --into store \\
      --as docker-archive --output - | docker load
  pierhead config show --default > pierhead.toml
                              write a configuration file with every key

Environment:
  https_proxy, HTTPS_PROXY   proxy for connections to registries
  no_proxy, NO_PROXY         hosts that pierhead reaches without the proxy
  XDG_DATA_HOME, HOME        default data folder of a user other than root
  DOCKER_CONFIG              folder of Docker's config.json, for `pull`,
                             `trace`, `inspect` and `diff`

Exit codes: 0 done, 1 failed, 2 invalid usage or configuration, or one of:
  65 a file that the configuration names is invalid
  66 such a file, or an image, is missing
  68 the interface or the listen address is missing
  69 the port or the data folder is in use
  71 profile, limits or tier do not fit the host
  72 the data folder belongs to another program or version
  73 the data folder is read-only or missing
  74 the disk of the data folder is full
  75 the clock of the host is years off
  76 TLS to an upstream fails
  77 the data folder belongs to another user, or the port needs root";

/// The commands of `pierhead`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the proxy as a foreground process
    Serve(serve::ServeArgs),
    /// Check a configuration file, or print a configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show and manage the cache of the running pierhead
    Cache(cache::CacheArgs),
    /// Configure docker, containerd, podman or CRI-O on this host to pull through pierhead, or undo
    /// this setup
    Setup(setup::SetupArgs),
    /// Check pierhead, its disk, its upstreams and the clients of this host, and print the fix for
    /// each problem
    Doctor(doctor::DoctorArgs),
    /// Pull an image as a delta bundle: only the file contents that this host does not have yet
    Pull(Box<worker::PullArgs>),
    /// Record which files of an image a container opens while it starts, so that delta bundles send
    /// these files first
    Trace(Box<worker::TraceArgs>),
    /// Show the layers of an image, the file contents that it shares with other images, and the
    /// files that a starting container opens first
    Inspect(Box<worker::InspectArgs>),
    /// Compare the bytes that an update from one image to another transfers: as layers, as files
    /// and as a delta bundle
    Diff(Box<worker::DiffArgs>),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  pierhead completions bash > /etc/bash_completion.d/pierhead"
    )]
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of pierhead, or of one command
    #[command(
        after_help = "Examples:\n  pierhead man | man -l -\n  pierhead man cache warm | man -l -"
    )]
    Man {
        /// Command whose manual page pierhead prints [default: the page of pierhead]
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
    fn every_command_has_the_flag_quiet() {
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

    /// Returns all commands with their paths, such as `cache ls`.
    fn commands() -> Vec<(String, clap::Command)> {
        fn walk(command: &clap::Command, path: &str, all: &mut Vec<(String, clap::Command)>) {
            all.push((path.to_owned(), command.clone()));
            let children = command.get_subcommands();
            for child in children.filter(|it| it.get_name() != "help") {
                walk(child, &format!("{path} {}", child.get_name()), all);
            }
        }
        let mut command = super::Cli::command();
        command.build();
        let mut all = Vec::new();
        walk(&command, "pierhead", &mut all);
        all
    }

    /// Names of flags whose meaning differs between commands.
    const HOMONYMS: &[&str] = &[
        "admin", "config", "output", "platform", "registry", "root", "user",
    ];

    #[test]
    fn a_flag_has_the_same_help_in_every_command() {
        let mut first = std::collections::BTreeMap::<String, (String, String)>::new();
        for (path, command) in commands() {
            for argument in command.get_arguments() {
                let Some(name) = argument.get_long().filter(|it| *it != "help") else {
                    continue;
                };
                let help = argument.get_help().map(ToString::to_string);
                let help = help.unwrap_or_default();
                let (other, expected) = first
                    .entry(argument.to_string())
                    .or_insert_with(|| (path.clone(), help.clone()));
                let is_homonym = HOMONYMS.contains(&name);
                assert!(
                    is_homonym || help == *expected,
                    "--{name} of {path} differs from that of {other}"
                );
            }
        }
    }

    #[test]
    fn every_command_without_children_has_an_example() {
        for (path, command) in commands() {
            let help = command.get_after_help().map(ToString::to_string);
            let has_example = help.is_some_and(|it| it.contains("Example"));
            assert!(command.has_subcommands() || has_example, "{path}");
        }
    }

    /// The lines of the examples and other footers are wrapped by hand. On a terminal of 80
    /// columns, clap would wrap a line of more than 80 characters again.
    #[test]
    fn a_footer_fits_80_columns() {
        for (path, command) in commands() {
            let help = command.get_after_help().map(ToString::to_string);
            for line in help.unwrap_or_default().lines() {
                assert!(line.chars().count() <= 80, "{path}: {line}");
            }
        }
    }
}
