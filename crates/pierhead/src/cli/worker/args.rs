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
  pierhead pull redis:8 --via http://pierhead.example:5000 --into store          just what 7 lacks
  pierhead pull flask:3 --via … --into store --as docker-archive --output - | docker load
  pierhead pull flask:3 --via … --into new --have-from store --json | jq .bytes_received

The folder of --into keeps every file content once, under its digest, and knows the images that are whole in it:
these are what the next pull builds upon. Several pulls may share it at a time. Every byte is verified as it arrives.
A pull that is cut off, or stopped by Ctrl-C, goes on where it was when it is run again.

Where the other end offers no bundles (an older pierhead, bundles switched off, a plain registry, an image that cannot
be bundled) the layers are pulled instead: what comes out is the same.

Forms (--as):
  rootfs          the tree as a container sees it; as root with owners, devices and attributes
  oci-layout      a folder that skopeo, podman, buildah and umoci read as oci:FOLDER
  docker-archive  a tar that `docker load` and `podman load` take

Exit codes: 0 done, 1 failed (what was received stays), 2 wrong usage, 66 no such image, 130 stopped by Ctrl-C.";

/// TLS and credentials for the server.
#[derive(Args, Clone)]
pub(crate) struct LoginArgs {
    /// Trust the authorities of this PEM file, too, for https
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// Show the certificate of this PEM file to a server that asks for one, and to none that it sends us to
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Log in as this user; without it, as `docker login` has it for that host
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,

    /// The first line of this file is the password; - reads standard input
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,

    /// Docker's config.json with logins [default: $DOCKER_CONFIG or ~/.docker, if there is one]
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    pub(crate) docker_config: Option<PathBuf>,
}

/// Flags of `pull`.
#[derive(Args)]
#[command(after_help = PULL_EXAMPLES)]
pub(crate) struct PullArgs {
    /// Such as redis:7, ghcr.io/org/app:1.2 or quay.io/org/app@sha256:…
    #[arg(value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    /// The pierhead to pull through, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub(crate) via: Url,

    /// The store on this machine; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) into: PathBuf,

    /// Build upon the images of this store, too; it is only read. May be given several times
    #[arg(long, value_name = "DIR")]
    pub(crate) have_from: Vec<PathBuf>,

    /// Write the image in this form besides
    #[arg(long = "as", value_name = "FORM")]
    pub(crate) form: Option<Form>,

    /// Where to: a folder, or a file (- for standard output) for docker-archive
    /// [default: DIR/rootfs, DIR/oci-layout or DIR/image.tar]
    #[arg(long, value_name = "PATH", requires = "form")]
    pub(crate) output: Option<PathBuf>,

    /// How files of a rootfs share bytes with the store
    #[arg(long, value_name = "HOW", default_value = "reflink", requires = "form")]
    pub(crate) link: Link,

    /// Which one of a multi-platform image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    /// Connections at a time [default: 1, and more for what is large and far away]
    #[arg(long, value_name = "N", value_parser = parse_connections)]
    pub(crate) connections: Option<NonZeroUsize>,

    /// Pull layers, as any client does, even where there are bundles
    #[arg(long)]
    pub(crate) layers: bool,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) login: LoginArgs,
}

/// What a pulled image can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// The tree as a container sees it
    Rootfs,
    /// An OCI image layout
    OciLayout,
    /// What `docker load` takes
    DockerArchive,
}

/// How a rootfs shares bytes with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Shared blocks where the file system has them (btrfs, XFS), else copies
    Reflink,
    /// Hard links, for trees that nobody writes to: what is written there is written to the store
    Hard,
}

const TRACE_EXAMPLES: &str = "\
Examples:
  pierhead trace --image redis:7 --via http://pierhead.example:5000 --root rootfs --seconds 10 -- \\
      chroot rootfs redis-server
  pierhead trace --image redis:7 --via http://pierhead.example:5000 --pid $(pidof redis-server) --seconds 30
  pierhead trace --image redis:7 --root rootfs --output order.txt -- chroot rootfs redis-cli --version
  pierhead trace --image redis:7 --via http://pierhead.example:5000 --send order.txt

It records which files of the image a start opens, and in which order. Bundles of the image and of later versions
then carry these files first. It watches the file system of the root with fanotify, which needs root
(CAP_SYS_ADMIN) and Linux 5.6. It also records opens by other programs in the same tree.

The root is --root, or with --pid the root of that process in its own mount namespace: a container's process has the
image as its root. It refuses a process whose root is the root of this machine. It leaves out mounts below the root
(volumes, /proc, /etc/resolv.conf), and sends only paths of the image's own files.
An order is text: one path per line, relative to the root.

Exit codes: 0 recorded and sent; else that of the command; 1 failed, 2 wrong usage, 66 no such image.";

/// Flags of `trace`.
#[derive(Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub(crate) struct TraceArgs {
    /// The image that is run, as it was pulled
    #[arg(long, value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    /// The pierhead to send the order to
    #[arg(long, value_name = "URL", value_parser = Url::parse, required_unless_present = "output")]
    pub(crate) via: Option<Url>,

    /// Where the image's tree is; with --pid that of the process
    #[arg(long, value_name = "DIR", required_unless_present_any = ["pid", "send"])]
    pub(crate) root: Option<PathBuf>,

    /// Watch what a process opens that runs already
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "send"], required_unless_present_any = ["command", "send"])]
    pub(crate) pid: Option<u32>,

    /// Record for so long at most [default: until the command or process ends]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,

    /// Write the order to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Record nothing and send the order of this file
    #[arg(long, value_name = "FILE", requires = "via", conflicts_with_all = ["root", "output", "command"])]
    pub(crate) send: Option<PathBuf>,

    /// Which one of a multi-platform image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    #[command(flatten)]
    pub(crate) login: LoginArgs,

    /// The command that starts it
    #[arg(last = true, value_name = "CMD", num_args = 1..)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  pierhead inspect redis:7 --via http://pierhead.example:5000
  pierhead inspect redis:7 --from store --json | jq .layers

It shows an image as bundles see it: its layers, what it has in common with the other images of the store, and which
of its files come first.

Exit codes: 0 done, 1 failed, 2 wrong usage, 66 no such image.";

/// Flags of `inspect`.
#[derive(Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Such as redis:7
    #[arg(value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Where `inspect` and `diff` look up images.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// Ask this pierhead
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub(crate) via: Option<Url>,

    /// Look into this store of `pierhead pull`
    #[arg(long, value_name = "DIR", required_unless_present = "via")]
    pub(crate) from: Option<PathBuf>,

    /// Which one of a multi-platform image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) login: LoginArgs,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  pierhead diff redis:7.0 redis:7.2 --via http://pierhead.example:5000
  pierhead diff flask:2.3 flask:3.0 --from store --json

It shows what an update would move by each method: whole layers, whole files, and a bundle with its patches.

Exit codes: 0 done, 1 failed, 2 wrong usage, 66 no such image.";

/// Flags of `diff`.
#[derive(Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// What a machine has
    #[arg(value_name = "OLD", value_parser = parse_reference)]
    pub(crate) old: Reference,

    /// What it should have
    #[arg(value_name = "NEW", value_parser = parse_reference)]
    pub(crate) new: Reference,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

fn parse_connections(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "write a number from 1 on".to_owned())
}

fn parse_reference(text: &str) -> Result<Reference, String> {
    text.parse().map_err(|error| format!("{error}"))
}
