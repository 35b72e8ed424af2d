//! `pierhead setup`.

mod run;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pierhead_client_setup::{Address, Client};
use pierhead_oci::Registry;

pub(crate) use run::run;

const EXAMPLES: &str = "\
Examples:
  pierhead setup docker --dry-run                       what would change
  pierhead setup containerd --address http://10.0.0.1:5000
  pierhead setup podman --registry docker.io --registry quay.io
  pierhead setup docker --undo                          every byte as it was before

The differences come first, on standard output; nothing else is written there, so that an empty
output means that nothing is to do. You are asked before anything is written; without a terminal, pass --yes.
podman and CRI-O read the same files: setting up or undoing one is setting up or undoing both.
What was there before is kept below /var/lib/pierhead-setup (with --user: ~/.local/state/pierhead-setup).

Exit codes: 0 done, nothing to do, or only shown (--dry-run); 1 failed, and nothing was changed (--undo: but for
what was edited since, which is named), or nobody holds it (--held); 2 wrong usage;
65, 66 what --address-file names holds no address, or cannot be read.";

/// Flags of `setup`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetupArgs {
    /// Who is to pull through pierhead
    pub(crate) client: ClientArg,

    /// Put everything back as it was before
    #[arg(long)]
    pub(crate) undo: bool,

    /// Show the differences and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Where this client reaches pierhead [default: what a pierhead running here listens on, else
    /// http://127.0.0.1:5000]
    #[arg(long, value_name = "URL", conflicts_with = "undo")]
    pub(crate) address: Option<Address>,

    /// As --address, from the first line of this file: for machines that are told apart by its name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["undo", "address"])]
    pub(crate) address_file: Option<PathBuf>,

    /// Stay until SIGTERM or SIGINT, and put everything back then: for a container that stands for the setup
    #[arg(long, requires = "yes", conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) hold: bool,

    /// Exit 0 if a `setup --hold` process in this network namespace finished its setup
    #[arg(long, conflicts_with_all = ["undo", "dry_run", "hold", "address", "address_file"])]
    pub(crate) held: bool,

    /// PEM file of the authority that signed pierhead's certificate, when it is not a public one
    #[arg(long, value_name = "FILE", conflicts_with = "undo")]
    pub(crate) ca: Option<PathBuf>,

    /// Only these registries; may be given several times [default: containerd: all; podman and CRI-O:
    /// the well-known ones; docker: docker.io, for which alone it has mirrors]
    #[arg(long = "registry", value_name = "NAME", conflicts_with = "undo")]
    pub(crate) registries: Vec<Registry>,

    /// Of your own rootless client: ~/.config instead of /etc
    #[arg(long)]
    pub(crate) user: bool,

    /// A folder that stands for / (the root of an image that is being built)
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    pub(crate) root: Option<PathBuf>,

    /// The client's main configuration file, where it is not the usual one (docker, containerd)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Also reload or restart the client where that is needed; without it, the command is printed
    #[arg(long, conflicts_with_all = ["dry_run", "root"])]
    pub(crate) restart: bool,

    /// Do not ask; needed where there is no terminal to ask on
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// The admin address of the running pierhead
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:5001", value_parser = super::admin_url::parse_admin_url)]
    pub(crate) admin: http::uri::Authority,
}

/// A program that pulls images, as it is typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ClientArg {
    /// dockerd: daemon.json
    Docker,
    /// containerd 1.x and 2.x: config.toml (or a drop-in) and hosts.toml
    Containerd,
    /// podman, buildah and skopeo: registries.conf.d
    Podman,
    /// CRI-O: as podman
    Crio,
}

impl From<ClientArg> for Client {
    fn from(client: ClientArg) -> Self {
        match client {
            ClientArg::Docker => Self::Docker,
            ClientArg::Containerd => Self::Containerd,
            ClientArg::Podman => Self::Podman,
            ClientArg::Crio => Self::Crio,
        }
    }
}
