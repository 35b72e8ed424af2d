//! Defines the commands `pierhead pull`, `trace`, `inspect` and `diff`: flags, help texts and
//! examples.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pierhead_oci::{Platform, Reference};
use pierhead_worker::Url;

const PULL_EXAMPLES: &str = "\
Examples:
  pierhead pull redis:7 --via http://10.0.0.1:5000 --into /var/lib/worker
  pierhead pull redis:7 --via http://10.0.0.1:5000 --into store \\
      --as rootfs --output redis
  pierhead pull redis:8 --via http://10.0.0.1:5000 --into store
                                               only what 7 does not have
  pierhead pull flask:3 --via … --into store --as docker-archive --output - |
      docker load
  pierhead pull flask:3 --via … --into new --base-store store --json |
      jq .bytes_received

The folder of --into is a store: it has each file content once, under its
digest, and a list of complete images. The next pull uses these as base images.
Several pulls can use a store at the same time. pull verifies every byte. After
an interruption or Ctrl-C, the same command resumes the pull.

If the server has no bundle of the image (an older pierhead, bundles off, a
registry, an image that cannot be bundled), pull downloads the layers instead.
The result is the same.

Forms (--as):
  rootfs          the root file system; as root also owners, devices and
                  extended attributes
  oci-layout      an OCI image layout, which skopeo, podman, buildah and umoci
                  read as oci:FOLDER
  docker-archive  a tar archive for `docker load` and `podman load`

Exit codes: 0 done, 1 failed (the store keeps received contents), 2 invalid
usage, 66 the image does not exist, 130 stopped by Ctrl-C.";

/// TLS and credentials for the connection to pierhead.
#[derive(Args, Clone)]
pub(crate) struct LoginArgs {
    /// PEM file of the CA that signed pierhead's certificate [default: none; needed unless the CA
    /// is a public one]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// PEM file of the client certificate for pierhead, which redirect targets do not get [default:
    /// none]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// PEM file of the private key of the certificate in --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// User name for pierhead [default: the user name for pierhead in the file of --docker-config]
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,

    /// File with the password of --user in its first line; "-" reads standard input
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,

    /// Docker's config.json with credentials [default: config.json in $DOCKER_CONFIG or ~/.docker,
    /// if this file exists]
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    pub(crate) docker_config: Option<PathBuf>,
}

/// The flags of `pierhead pull`.
#[derive(Args)]
#[command(after_help = PULL_EXAMPLES)]
pub(crate) struct PullArgs {
    /// Reference of the image to pull, such as redis:7, ghcr.io/org/app:1.2 or
    /// quay.io/org/app@sha256:…
    #[arg(value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    /// Address of pierhead, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub(crate) via: Url,

    /// Folder of the image store on this host; `pierhead pull` creates a missing folder
    #[arg(long, value_name = "DIR")]
    pub(crate) into: PathBuf,

    /// Folder of another image store, from which `pierhead pull` reads files that the image shares
    /// with it; repeatable [default: none]
    #[arg(long = "base-store", value_name = "DIR")]
    pub(crate) base_stores: Vec<PathBuf>,

    /// Form in which `pierhead pull` writes the image, in addition to the store [default: none]
    #[arg(long = "as", value_name = "FORM")]
    pub(crate) form: Option<Form>,

    /// Path of the output of --as: a folder, or for docker-archive a file ("-" writes to standard
    /// output) [default: rootfs, oci-layout or image.tar in the store]
    #[arg(long, value_name = "PATH", requires = "form")]
    pub(crate) output: Option<PathBuf>,

    /// How the files that --as rootfs writes share disk space with the store
    #[arg(long, value_name = "HOW", default_value = "reflink", requires = "form")]
    pub(crate) link: Link,

    /// Platform to pull of a multi-platform image, such as linux/arm64 [default: the platform of
    /// this host]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    /// Number of parallel connections to pierhead [default: 1, or more for a large image if the
    /// round-trip time is long]
    #[arg(long, value_name = "N", value_parser = parse_connections)]
    pub(crate) connections: Option<NonZeroUsize>,

    /// Pull whole layers, even if the server offers a delta bundle
    #[arg(long)]
    pub(crate) layers: bool,

    /// Print JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) login: LoginArgs,
}

/// A form in which `pierhead pull` writes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// The root file system, as a folder
    Rootfs,
    /// A folder in the format OCI image layout
    OciLayout,
    /// A tar archive that `docker load` reads
    DockerArchive,
}

/// How a root file system shares disk space with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Reflinks on btrfs and XFS, and copies on other file systems
    Reflink,
    /// Hard links, for a root file system that nobody writes to: a write would also change the
    /// store
    Hard,
}

const TRACE_EXAMPLES: &str = "\
Examples:
  pierhead trace --image redis:7 --via http://10.0.0.1:5000 --root rootfs \\
      --seconds 10 -- chroot rootfs redis-server
  pierhead trace --image redis:7 --via http://10.0.0.1:5000 \\
      --pid $(pidof redis-server) --seconds 30
  pierhead trace --image redis:7 --root rootfs --output order.txt -- \\
      chroot rootfs redis-cli --version
  pierhead trace --image redis:7 --via http://10.0.0.1:5000 --send order.txt

trace records the order in which a container start opens files of the image.
Bundles of this image and of later versions then send these files first. trace
watches the file system with fanotify, which needs root (CAP_SYS_ADMIN) and
Linux 5.6. It also records files that other programs open below the same root.

The root folder is --root, or with --pid the root of that process in its mount
namespace, which for a container is its image. A process whose root is the root
of this host is an error. trace ignores mounts below the root (volumes, /proc,
/etc/resolv.conf), and sends only paths of files of the image. An order is a
text file with one path per line, relative to the root.

Exit codes: 0 recorded and sent; 1 failed; 2 invalid usage; 66 the image does
not exist; else the exit code of CMD.";

/// The flags of `pierhead trace`.
#[derive(Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub(crate) struct TraceArgs {
    /// Reference of the image that the container runs
    #[arg(long, value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    /// Address of pierhead, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse, required_unless_present = "output")]
    pub(crate) via: Option<Url>,

    /// Root folder of the container [default: the root folder of the process of --pid]
    #[arg(long, value_name = "DIR", required_unless_present_any = ["pid", "send"])]
    pub(crate) root: Option<PathBuf>,

    /// ID of a running process whose opened files pierhead records
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "send"], required_unless_present_any = ["command", "send"])]
    pub(crate) pid: Option<u32>,

    /// Maximum time of the recording, in seconds [default: none; the recording ends with the
    /// command or process]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,

    /// File to which pierhead writes the recorded order of opened files; "-" writes to standard
    /// output [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// File that an earlier `pierhead trace --output` wrote: send the order of opened files in it
    /// to pierhead, and record nothing [default: none]
    #[arg(long, value_name = "FILE", requires = "via", conflicts_with_all = ["root", "output", "command"])]
    pub(crate) send: Option<PathBuf>,

    /// Platform to use of a multi-platform image, such as linux/arm64 [default: the platform of
    /// this host]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(crate) platform: Option<Platform>,

    #[command(flatten)]
    pub(crate) login: LoginArgs,

    /// Command that starts the container, with its arguments
    #[arg(last = true, value_name = "CMD", num_args = 1..)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  pierhead inspect redis:7 --via http://pierhead.example:5000
  pierhead inspect redis:7 --from store --json | jq .layers

inspect shows the layers of an image, the contents that it shares with other
images of the store, and the files that bundles send first.

Exit codes: 0 done, 1 failed, 2 invalid usage, 66 the image does not exist.";

/// The flags of `pierhead inspect`.
#[derive(Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Reference of the image to inspect, such as redis:7
    #[arg(value_name = "IMAGE", value_parser = parse_reference)]
    pub(crate) image: Reference,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Flags of `inspect` and `diff` that name the source of the images.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("source").required(true).multiple(true).args(["via", "from"]))]
pub(crate) struct SourceArgs {
    /// Address of pierhead, such as `http://pierhead.example:5000`
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub(crate) via: Option<Url>,

    /// Folder of an image store (`pierhead pull --into`) that contains the image
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,

    /// Platform to use of a multi-platform image, such as linux/arm64 [default: the platform of
    /// this host]
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

diff shows the bytes that an update transfers by each method: whole layers,
whole files, and a bundle with patches.

Exit codes: 0 done, 1 failed, 2 invalid usage, 66 the image does not exist.";

/// The flags of `pierhead diff`.
#[derive(Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Reference of the old image, which the host already has
    #[arg(value_name = "OLD", value_parser = parse_reference)]
    pub(crate) old: Reference,

    /// Reference of the new image, to which the host updates
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
