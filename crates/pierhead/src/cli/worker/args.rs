//! The flags of `pierhead pull`, `trace`, `inspect` and `diff`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pierhead_oci::{Platform, Reference};
use pierhead_worker::Url;

const PULL_EXAMPLES: &str = "\
Examples:
  pierhead pull redis:7 --via http://pierhead.example:5000 --into /var/lib/worker
  pierhead pull redis:7 --via http://pierhead.example:5000 --into store --as rootfs --output redis
  pierhead pull redis:8 --via http://pierhead.example:5000 --into store          only what 7 does not have
  pierhead pull flask:3 --via … --into store --as docker-archive --output - | docker load
  pierhead pull flask:3 --via … --into new --have-from store --json | jq .bytes_received

The folder of --into is a store: it has each file content once, under its digest, and a list of complete images.
The next pull uses these as base images. Several pulls can use a store at the same time. pull verifies every byte.
After an interruption or Ctrl-C, the same command resumes the pull.

If the server has no bundle of the image (an older pierhead, bundles off, a registry, an image that cannot be
bundled), pull downloads the layers instead. The result is the same.

Forms (--as):
  rootfs          the root file system; as root also owners, devices and extended attributes
  oci-layout      an OCI image layout, which skopeo, podman, buildah and umoci read as oci:FOLDER
  docker-archive  a tar archive for `docker load` and `podman load`

Exit codes: 0 done, 1 failed (the store keeps received contents), 2 invalid usage, 66 the image does not exist,
130 stopped by Ctrl-C.";

/// TLS and credentials for the server.
#[derive(Args, Clone)]
pub(crate) struct LoginArgs {
    /// PEM file of the CA that signed pierhead's certificate [default: none, for a public CA]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// PEM file of a client certificate for this server; not sent to redirect targets [default: none]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// PEM file of the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// User name for the server [default: the credentials of --docker-config for this server]
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,

    /// File with the password of --user in its first line; `-` means standard input
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,

    /// Docker's config.json with credentials [default: config.json in $DOCKER_CONFIG or ~/.docker, if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    pub(crate) docker_config: Option<PathBuf>,
}

/// Flags of `pull`.
#[derive(Args)]
#[command(after_help = PULL_EXAMPLES)]
pub(crate) struct PullArgs {
    /// Reference of an image, such as redis:7, ghcr.io/org/app:1.2 or quay.io/org/app@sha256:…
    #[arg(value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    /// Address of pierhead, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub(crate) via: Url,

    /// Folder of the store; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) into: PathBuf,

    /// Another store whose images are base images; read only; repeatable [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) have_from: Vec<PathBuf>,

    /// Also write the image in this form [default: only the store]
    #[arg(long = "as", value_name = "FORM")]
    pub(crate) form: Option<Form>,

    /// Target of --as: a folder, or for docker-archive a file (- for standard output) [default: rootfs,
    /// oci-layout or image.tar in the store]
    #[arg(long, value_name = "PATH", requires = "form")]
    pub(crate) output: Option<PathBuf>,

    /// How files of --as rootfs share bytes with the store
    #[arg(long, value_name = "HOW", default_value = "reflink", requires = "form")]
    pub(crate) link: Link,

    /// Platform of a multi-platform image, such as linux/arm64 [default: the platform of this host]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    /// Number of parallel connections [default: 1, and more for a large image over a long round-trip time]
    #[arg(long, value_name = "N", value_parser = parse_connections)]
    pub(crate) connections: Option<NonZeroUsize>,

    /// Pull layers, even if the server has a bundle
    #[arg(long)]
    pub(crate) layers: bool,

    /// Print JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) login: LoginArgs,
}

/// Form in which `pull` writes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// The root file system
    Rootfs,
    /// An OCI image layout
    OciLayout,
    /// A tar archive for `docker load`
    DockerArchive,
}

/// How a rootfs shares bytes with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Reflinks on btrfs and XFS, else copies
    Reflink,
    /// Hard links, for read-only trees: a write to the tree would change the store
    Hard,
}

const TRACE_EXAMPLES: &str = "\
Examples:
  pierhead trace --image redis:7 --via http://pierhead.example:5000 --root rootfs --seconds 10 -- \\
      chroot rootfs redis-server
  pierhead trace --image redis:7 --via http://pierhead.example:5000 --pid $(pidof redis-server) --seconds 30
  pierhead trace --image redis:7 --root rootfs --output order.txt -- chroot rootfs redis-cli --version
  pierhead trace --image redis:7 --via http://pierhead.example:5000 --send order.txt

trace records the order in which a container start opens files of the image. Bundles of this image and of later
versions then send these files first. trace watches the file system with fanotify, which needs root
(CAP_SYS_ADMIN) and Linux 5.6. It also records files that other programs open below the same root.

The root folder is --root, or with --pid the root of that process in its mount namespace, which for a container is
its image. A process whose root is the root of this host is an error. trace ignores mounts below the root (volumes,
/proc, /etc/resolv.conf), and sends only paths of files of the image.
An order is a text file with one path per line, relative to the root.

Exit codes: 0 recorded and sent; 1 failed; 2 invalid usage; 66 the image does not exist; else the exit code of CMD.";

/// Flags of `trace`.
#[derive(Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub(crate) struct TraceArgs {
    /// Reference of the image that the container runs
    #[arg(long, value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    /// Address of pierhead, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse, required_unless_present = "output")]
    pub(crate) via: Option<Url>,

    /// Root folder of the container [default: with --pid, the root folder of that process]
    #[arg(long, value_name = "DIR", required_unless_present_any = ["pid", "send"])]
    pub(crate) root: Option<PathBuf>,

    /// ID of a running process: record the files that this process opens
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "send"], required_unless_present_any = ["command", "send"])]
    pub(crate) pid: Option<u32>,

    /// Maximum time of the recording, in seconds [default: until the command or process ends]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,

    /// File to which the order of the opened files is written; `-` means standard output [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// File with an order of opened files that `--output` wrote before: send it to pierhead, and
    /// record nothing [default: none]
    #[arg(long, value_name = "FILE", requires = "via", conflicts_with_all = ["root", "output", "command"])]
    pub(crate) send: Option<PathBuf>,

    /// Platform of a multi-platform image, such as linux/arm64 [default: the platform of this host]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    #[command(flatten)]
    pub(crate) login: LoginArgs,

    /// Command that starts the container
    #[arg(last = true, value_name = "CMD", num_args = 1..)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  pierhead inspect redis:7 --via http://pierhead.example:5000
  pierhead inspect redis:7 --from store --json | jq .layers

inspect shows the layers of an image, the contents that it shares with other images of the store, and the files that
bundles send first.

Exit codes: 0 done, 1 failed, 2 invalid usage, 66 the image does not exist.";

/// Flags of `inspect`.
#[derive(Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Reference of an image, such as redis:7
    #[arg(value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Flags of `inspect` and `diff` that name the source of the images.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// Address of pierhead, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub(crate) via: Option<Url>,

    /// Folder of the store of `pierhead pull` that has the image
    #[arg(long, value_name = "DIR", required_unless_present = "via")]
    pub(crate) from: Option<PathBuf>,

    /// Platform of a multi-platform image, such as linux/arm64 [default: the platform of this host]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    /// Print JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) login: LoginArgs,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  pierhead diff redis:7.0 redis:7.2 --via http://pierhead.example:5000
  pierhead diff flask:2.3 flask:3.0 --from store --json

diff shows the bytes that an update transfers by each method: whole layers, whole files, and a bundle with patches.

Exit codes: 0 done, 1 failed, 2 invalid usage, 66 the image does not exist.";

/// Flags of `diff`.
#[derive(Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Reference of the image that a host has
    #[arg(value_name = "OLD", value_parser = parse_reference)]
    pub(crate) old: Reference,

    /// Reference of the image that the host updates to
    #[arg(value_name = "NEW", value_parser = parse_reference)]
    pub(crate) new: Reference,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

fn parse_connections(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "write a number of 1 or more".to_owned())
}

fn parse_reference(text: &str) -> Result<Reference, String> {
    text.parse().map_err(|error| format!("{error}"))
}
