//! Defines the command `pierhead setup`: flags, help texts and examples.

mod run;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pierhead_client_setup::{Address, Client};
use pierhead_oci::Registry;

pub(crate) use run::run;

use crate::config::registry_name;

const EXAMPLES: &str = "\
Examples:
  pierhead setup docker --dry-run     show the changes
  pierhead setup containerd --address http://10.0.0.1:5000
  pierhead setup podman --registry docker.io --registry quay.io
  pierhead setup docker --undo        restore the files as they were before

setup prints the changes of files as a diff on standard output; an empty output
means that nothing has to change. It asks before it writes. Without a terminal,
pass --yes. podman and CRI-O read the same files, so setup and --undo of one
apply to both. The original files are saved below /var/lib/pierhead-setup (with
--user: ~/.local/state/pierhead-setup).

Exit codes: 0 done, nothing to change, or --dry-run; 1 failed (the message says
whether files were changed; --undo: files that were edited after the setup stay,
and are named), or no process holds the setup (--held); 2 invalid usage; 65 the
file of --address-file has no valid address; 66 that file is unreadable.";

/// The flags of `pierhead setup`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetupArgs {
    /// Container client to configure
    pub(crate) client: ClientArg,

    /// Undo the setup: restore the configuration files that the client had before the setup
    #[arg(long)]
    pub(crate) undo: bool,

    /// Print the changes, but write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Address at which this client reaches pierhead; HOST alone means http://HOST:5000 [default:
    /// the address that a running pierhead of this host reports, else http://127.0.0.1:5000]
    #[arg(long, value_name = "URL", conflicts_with = "undo")]
    pub(crate) address: Option<Address>,

    /// File whose first line is the address of pierhead, for example a file with a different
    /// address on each host [default: none; see --address]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["undo", "address"])]
    pub(crate) address_file: Option<PathBuf>,

    /// Keep running after the setup, and undo the setup at SIGTERM or SIGINT (for a container that
    /// configures the clients of its host)
    #[arg(long, requires = "yes", conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) hold: bool,

    /// Exit with code 0 if a `pierhead setup --hold` process in this network namespace has finished
    /// its setup
    #[arg(long, conflicts_with_all = ["undo", "dry_run", "hold", "address", "address_file"])]
    pub(crate) held: bool,

    /// PEM file of the CA that signed pierhead's certificate [default: none; needed unless the CA
    /// is a public one]
    #[arg(long, value_name = "FILE", conflicts_with = "undo")]
    pub(crate) ca: Option<PathBuf>,

    /// Registry from which the client pulls through pierhead; repeatable [default: containerd: all
    /// registries; podman and CRI-O: eight well-known registries, such as quay.io; docker:
    /// docker.io, the only registry for which docker supports mirrors]
    #[arg(long = "registry", value_name = "NAME", value_parser = registry_name, conflicts_with = "undo")]
    pub(crate) registries: Vec<Registry>,

    /// Configure the rootless client of the current user, in ~/.config instead of /etc
    #[arg(long)]
    pub(crate) user: bool,

    /// Folder that setup treats as the root folder /, such as the root of an image that is being
    /// built [default: /]
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    pub(crate) root: Option<PathBuf>,

    /// Main configuration file of docker or containerd [default: the standard path of the client]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Reload or restart the client if it reads its files only at its start or reload, even if a
    /// setup has to change no file [default: only print the command]
    #[arg(long, conflicts_with_all = ["dry_run", "root"])]
    pub(crate) restart: bool,

    /// Write the changes without asking for confirmation; required if standard input is not a
    /// terminal
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Address of the admin listener of the running pierhead
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:5001", value_parser = super::admin_url::parse_admin_url)]
    pub(crate) admin: http::uri::Authority,
}

/// A container client: a program that pulls images.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ClientArg {
    /// dockerd, configured in daemon.json
    Docker,
    /// containerd 1.x and 2.x, configured in config.toml (or a drop-in file) and hosts.toml
    Containerd,
    /// podman, buildah and skopeo, configured in registries.conf.d
    Podman,
    /// CRI-O, configured in registries.conf.d like podman
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
