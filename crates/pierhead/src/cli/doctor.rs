//! Defines the command `pierhead doctor`: flags, help texts and examples.

use std::path::PathBuf;

use clap::Args;
use pierhead_oci::Registry;

use super::serve::ServeArgs;

const EXAMPLES: &str = "\
Examples:
  pierhead doctor
  pierhead doctor --config /etc/pierhead/pierhead.toml --registry ghcr.io
  pierhead doctor --offline --json | jq '.findings[] | select(.level != \"ok\")'

doctor accepts the flags of `serve`, and checks the configuration that `serve`
would have with them. Without --config, it reads the file of the running
pierhead. To measure the disk, it writes 32 MiB to an unlinked file in the data
folder.

Exit codes: 0 no check failed (warnings are possible), 1 a check failed, 2
invalid usage, 75 the clock of the host is years off: set it first.";

/// The flags of `pierhead doctor`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Print JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,

    /// Skip the checks that connect to upstream registries
    #[arg(long)]
    pub(crate) offline: bool,

    /// Registry to check in addition to the configured registries; repeatable
    #[arg(long = "registry", value_name = "NAME", conflicts_with = "offline")]
    pub(crate) registries: Vec<Registry>,

    /// Unix socket on which dockerd listens
    #[arg(long, value_name = "PATH", default_value = "/run/docker.sock")]
    pub(crate) docker_socket: PathBuf,

    /// Configuration file of dockerd [default: /etc/docker/daemon.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) dockerd_config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}
