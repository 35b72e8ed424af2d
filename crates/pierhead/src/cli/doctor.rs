//! `pierhead doctor`.

use std::path::PathBuf;

use clap::Args;
use pierhead_oci::Registry;

use super::serve::ServeArgs;

const EXAMPLES: &str = "\
Examples:
  pierhead doctor
  pierhead doctor --config /etc/pierhead/pierhead.toml --registry ghcr.io
  pierhead doctor --offline --json | jq '.findings[] | select(.level != \"ok\")'

It takes the flags of `serve`, so that it looks at what that would do; without --config it takes the file of
the pierhead that runs here. It writes one file of 32 MiB in the data folder, unlinked before it is written.

Exit codes: 0 nothing failed (there may be warnings), 1 something failed, 2 wrong usage, 75 the clock
is years off, which has to be fixed first.";

/// Flags of `doctor`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// One JSON document instead of lines
    #[arg(long)]
    pub(crate) json: bool,

    /// Ask no upstream
    #[arg(long)]
    pub(crate) offline: bool,

    /// Ask this registry, too; may be given several times
    #[arg(long = "registry", value_name = "NAME", conflicts_with = "offline")]
    pub(crate) registries: Vec<Registry>,

    /// Where dockerd listens
    #[arg(long, value_name = "PATH", default_value = "/run/docker.sock")]
    pub(crate) docker_socket: PathBuf,

    /// dockerd's daemon.json, where it is not the usual one
    #[arg(long, value_name = "FILE")]
    pub(crate) docker_config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}
