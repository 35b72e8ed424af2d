//! Defines the command `pierhead cache` and its subcommands: flags, help texts and examples.

use clap::{Args, Subcommand};
use pierhead_oci::{Platform, Reference};

const EXAMPLES: &str = "\
Examples:
  pierhead cache stat
  pierhead cache warm docker.io/library/redis:7 --platform linux/arm64
  pierhead cache pin docker.io/library/redis:7
  pierhead cache rm docker.io/library/redis:6
  pierhead cache prune --to 10GiB
  pierhead cache ls --json | jq .size

These commands send requests to the admin listener of the running pierhead.";

const STAT: &str = "\
Lines of the output:
  pierhead    version, and time since the start
  listens on  addresses for clients
  data        data folder
  used        bytes of blobs and of active or interrupted downloads, and the
              maximum (cache.size); at 100 %, each download evicts blobs
  blobs       number and bytes of complete layers, configs and manifests
  downloads   number of active downloads, and bytes reserved for active and
              interrupted ones
  pinned      bytes that are never evicted (`pierhead cache pin`)
  on disk     bytes of the data folder, by kind of file
  bundles     images that are indexed, waiting or not possible; bytes of packs,
              plans and indexes
  memory      resident memory of the daemon
  requests    requests for blobs since the start: hits came from the cache,
              misses began a download
  eviction    eviction policy (eviction.policy), evicted blobs since the start,
              and statistics of the policy
  admission   admission rule (eviction.admission), and downloads since the start
              that were not stored, by cause
  written     bytes written to the disk since midnight (UTC), and
              cache.daily_write_budget if set

With few hits and many evictions, the cache is too small for the images in use.
`pierhead-replay` computes the hits of another size or policy from a request
log. Build it from the source:
  cargo install --path crates/replay
The metrics of the admin listener (/metrics) have the same numbers over time;
--json has exact bytes.

Example:
  pierhead cache stat --json | jq '.eviction.hits'";

const LS: &str = "\
The output has one line per image and platform. SIZE is the cached size; a layer
that several images share counts for each. The list has images with a tag.
--blobs also lists images that were pulled by digest only. `ls` does not change
the last use of an image.

Examples:
  pierhead cache ls
  pierhead cache ls --blobs --json | jq .size";

const RM: &str = "\
Deletes the tag, the blobs that no other cached image uses, and the bundles of
the image. With a digest, deletes all tags of the image in its repository. A
pinned image is an error: unpin it first.

Example:
  pierhead cache rm docker.io/library/redis:6";

const WARM: &str = "\
pierhead indexes an image for bundles when a client pulls the image or requests
a bundle of it, or at the next start of pierhead.

Example:
  pierhead cache warm docker.io/library/redis:7 --platform linux/arm64 --pin";

const PRUNE: &str = "\
First deletes bundles, since pierhead rebuilds them from blobs: those of deleted
images, then the least recently used. Then evicts blobs by the eviction policy.
Tags, pins and the catalog count towards the size of the data folder and are not
deleted. A target below their size is an error. Files of other programs do not
count. If the folder stays above the target, prune prints what takes the space,
such as pinned blobs.

Examples:
  pierhead cache prune --to 10GiB
  pierhead cache prune --all";

const TIER_STAT: &str = "\
Lines of the output:
  class       medium: pmem (persistent memory), emulated-file (a file on a disk,
              persistent) or volatile (memory, lost at power-off; pierhead
              writes all blobs back to the disk)
  failed      only after an I/O error of the medium: pierhead uses the disk only
              until a restart
  used        bytes of blobs on the tier, their maximum (set-limit), and
              complete blobs
  hot ranges  bytes that container starts read, of blobs whose other bytes are
              on the disk only
  medium      size of the file (tier.size), and free bytes
  dirty       bytes and blobs that are not yet written back to the disk
  since start bytes written to the tier, bytes written back to the disk, and
              downloads that moved to the disk because the tier was full
  opened      opened blobs: complete on the tier, as hot ranges on the tier, on
              the disk only
  corrupt     only if there are any: blobs whose bytes on the tier do not match
              their checksums

Example:
  pierhead cache tier stat --json | jq .dirty";

const SET_LIMIT: &str = "\
If the tier has more bytes, pierhead first evicts the blobs with the lowest
value.

Example:
  pierhead cache tier set-limit 4GiB";

const PIN: &str = "\
Pins the blobs of the image that the tag refers to now. Pin it again after the
tag has moved.

Example:
  pierhead cache pin docker.io/library/redis:7";

/// Flags that all `cache` commands share.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CacheArgs {
    /// Address of the admin listener of the running pierhead
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:5001", value_parser = super::admin_url::parse_admin_url)]
    pub(crate) admin: http::uri::Authority,

    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

/// The subcommands of `pierhead cache`.
#[derive(Subcommand)]
pub(crate) enum CacheCommand {
    /// List cached images: the platform, size and last use of each image, and whether the image is
    /// complete and pinned
    #[command(after_help = LS)]
    Ls {
        /// List all cached blobs instead of images, and the images that use each blob
        #[arg(long, conflicts_with = "pins")]
        blobs: bool,

        /// List pinned images, with the number of blobs that each pin protects
        #[arg(long)]
        pins: bool,
    },
    /// Remove images from the cache
    #[command(after_help = RM)]
    Rm {
        /// References of the images to remove, such as docker.io/library/redis:7 or
        /// docker.io/library/redis@sha256:…
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
    },
    /// Show the state of the daemon: size of the cache, hits and misses, eviction and admission
    #[command(after_help = STAT)]
    Stat,
    /// Exclude cached images from eviction, until `pierhead cache unpin`
    #[command(after_help = PIN)]
    Pin {
        /// References of the images to pin, such as docker.io/library/redis:7
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
    },
    /// Remove the pins of images, so that pierhead can evict these images again
    #[command(after_help = "Example:\n  pierhead cache unpin docker.io/library/redis:7")]
    Unpin {
        /// References of pinned images, as given to `pierhead cache pin`
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
    },
    /// Free disk space: delete bundles first, then evict unpinned blobs
    #[command(
        after_help = PRUNE,
        group = clap::ArgGroup::new("target").required(true).args(["to", "all"])
    )]
    Prune {
        /// Target size of the whole data folder, such as 10GiB
        #[arg(long, value_name = "SIZE", value_parser = pierhead_oci::units::parse_bytes)]
        to: Option<u64>,
        /// Delete all bundles (not the indexes of pinned images) and every blob that is not pinned
        #[arg(long)]
        all: bool,
    },
    /// Show the state of the fast tier (memory or persistent memory in front of the disk), or set
    /// its limit
    Tier {
        #[command(subcommand)]
        command: TierCommand,
    },
    /// Compare every cached blob with its digest, and remove corrupt blobs
    #[command(
        after_help = "pierhead fetches a removed blob again at the next request.\nExit code 1: at least one blob was corrupt.\n\nExample:\n  pierhead cache verify"
    )]
    Verify,
    /// Pull the manifests and blobs of images into the cache in advance; makes no bundles
    #[command(after_help = WARM)]
    Warm {
        /// References of the images to pull, such as docker.io/library/redis:7
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
        /// Platform to pull of a multi-platform image, such as linux/arm64; repeatable [default:
        /// all platforms]
        #[arg(long = "platform", value_name = "OS/ARCH[/VARIANT]", value_parser = parse_platform)]
        platforms: Vec<String>,
        /// Pin the images after the pull, so that pierhead does not evict them
        #[arg(long)]
        pin: bool,
    },
}

/// The subcommands of `pierhead cache tier`.
#[derive(Subcommand)]
pub(crate) enum TierCommand {
    /// Show the state and the statistics of the fast tier
    #[command(after_help = TIER_STAT)]
    Stat,
    /// Set the maximum number of bytes that pierhead uses on the fast tier, until its next start
    #[command(after_help = SET_LIMIT)]
    SetLimit {
        /// Maximum number of bytes on the fast tier, such as 4GiB
        #[arg(value_name = "SIZE", value_parser = pierhead_oci::units::parse_bytes)]
        limit: u64,
    },
}

fn parse_reference(text: &str) -> Result<Reference, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn parse_platform(text: &str) -> Result<String, String> {
    let parsed: Result<Platform, _> = text.parse();
    parsed
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}
