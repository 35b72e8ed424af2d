//! `pierhead cache`.

use clap::{Args, Subcommand};
use pierhead_oci::{Platform, Reference};

const EXAMPLES: &str = "\
Examples:
  pierhead cache stat
  pierhead cache warm docker.io/library/redis:7 ghcr.io/org/app:1.2 --platform linux/arm64
  pierhead cache pin docker.io/library/redis:7
  pierhead cache rm docker.io/library/redis:6
  pierhead cache prune --to 10GiB
  pierhead cache ls --json | jq .size

These commands talk to the running pierhead.";

const STAT: &str = "\
What each line says:
  pierhead    the version that runs, and since when
  listens on  where clients reach it
  data        the folder of the cache
  used        bytes on the disk of blobs and of downloads under way or cut short, of the most
              that may be (cache.size); at 100 % the next download evicts
  blobs       layers, configs and manifests that are stored whole, and their bytes
  downloads   how many are active, and the bytes reserved for them and for interrupted ones
  pinned      bytes that no eviction takes (`pierhead cache pin`)
  on disk     bytes of the whole data folder, by kind
  bundles     images that can be sent as bundles, wait for it, cannot; the bytes kept for them
  memory      of this process, resident
  requests    for blobs since the start: hits were answered from the cache, misses began a
              download
  eviction    the policy that chooses the blobs to evict (eviction.policy), the number of
              evicted blobs since the start, and the policy's own figures
  admission   the rule that chooses the blobs to store (eviction.admission), and the downloads
              that went to the client without being stored, by the rule that refused them
  written     bytes written to the disk since midnight (UTC), of
              cache.daily_write_budget if that is set

Few hits and many evictions: the cache is smaller than what is pulled again and again.
`pierhead-replay` (built from source) tells what another size or policy would have done. The same
figures over time are at /metrics of the admin address; --json gives exact bytes.

Example:
  pierhead cache stat --json | jq '.eviction.hits'";

const LS: &str = "\
One line for each image and platform. SIZE is its cached size; a layer that several images share counts for each.
The list has images with a tag. --blobs also lists images that were pulled by digest only. Listing does not count
as a use of an image.";

const RM: &str = "\
Deletes the tag, the blobs that no other cached image uses, and the bundles of the image. With a digest, it deletes
all tags of that image in its repository. It refuses a pinned image: unpin it first.";

const WARM: &str = "\
It makes no bundle: pierhead indexes an image when a client pulls it, or asks for a bundle of it.";

const PRUNE: &str = "\
Deletes bundles first, since pierhead rebuilds them from blobs: those of deleted images, then the least recently
used. Then evicts blobs by the eviction policy. Tags, pins and the catalog stay and count; it refuses a smaller
size. Files that are not the cache's do not count.";

const TIER_STAT: &str = "\
What each line says:
  class       what becomes of it when the power goes: pmem (it stays), emulated-file (a file on
              a disk, it stays), volatile (memory, it is lost; the disk gets a copy of all)
  failed      only when the medium could not be read or written: nothing goes there any more
              until a restart
  used        bytes of blobs in it, of the most that may be (set-limit); blobs
              that are whole
  hot         bytes of the parts that starts of containers read, where the rest is on the disk
              alone
  medium      bytes of the file (tier.size), and what is free of them
  to drain    what the disk does not have yet
  since start written to it, copied on to the disk, and downloads that went on on the disk for
              want of room
  opened      where what was asked for lay: here, in parts here, on the disk alone
  damaged     only when there are such: blobs that did not read as they were written";

/// Flags of all `cache` commands.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CacheArgs {
    /// The admin address of the running pierhead
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:5001", value_parser = super::admin_url::parse_admin_url)]
    pub(crate) admin: http::uri::Authority,

    /// Print JSON: one document, or one object a line for lists and progress
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

/// What to do with the cache.
#[derive(Subcommand)]
pub(crate) enum CacheCommand {
    /// List cached images: platform, size, whether they are complete and pinned, and their last use
    #[command(after_help = LS)]
    Ls {
        /// List blobs instead of images, with the images that use them
        #[arg(long, conflicts_with = "pins")]
        blobs: bool,

        /// List pinned images, with the number of blobs that each pin protects
        #[arg(long)]
        pins: bool,
    },
    /// Remove images from the cache
    #[command(after_help = RM)]
    Rm {
        /// References such as docker.io/library/redis:7 or docker.io/library/redis@sha256:…
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
    },
    /// Show how full the cache is, hits and misses, eviction and admission
    #[command(after_help = STAT)]
    Stat,
    /// Keep cached images from eviction, until unpin
    #[command(
        after_help = "A pin keeps what the image's tag means now. Pin it again after the tag moved."
    )]
    Pin {
        /// References such as docker.io/library/redis:7
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
    },
    /// Let pinned images be evicted again
    Unpin {
        /// References as they were pinned
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
    },
    /// Free disk space: delete bundles first, then evict unpinned blobs
    #[command(
        after_help = PRUNE,
        group = clap::ArgGroup::new("target").required(true).args(["to", "all"])
    )]
    Prune {
        /// Target size of the cache's files, such as 10GiB
        #[arg(long, value_name = "SIZE", value_parser = pierhead_oci::units::parse_bytes)]
        to: Option<u64>,
        /// Evict every blob that is not pinned, and all bundles
        #[arg(long)]
        all: bool,
    },
    /// The fast tier in front of the disk
    Tier {
        #[command(subcommand)]
        command: TierCommand,
    },
    /// Read every blob against its digest; damaged ones are removed and fetched again when asked for
    #[command(after_help = "Exit code 1 when something was damaged.")]
    Verify,
    /// Pull the manifests and blobs of images into the cache in advance
    #[command(after_help = WARM)]
    Warm {
        /// References such as docker.io/library/redis:7
        #[arg(required = true, value_name = "IMAGE", value_parser = parse_reference)]
        images: Vec<Reference>,
        /// Only this platform of a multi-platform image, such as linux/arm64; may be given several times
        #[arg(long = "platform", value_name = "OS/ARCH[/VARIANT]", value_parser = parse_platform)]
        platforms: Vec<String>,
        /// Pin them, too
        #[arg(long)]
        pin: bool,
    },
}

/// What to do with the fast tier.
#[derive(Subcommand)]
pub(crate) enum TierCommand {
    /// What it is, holds and did
    #[command(after_help = TIER_STAT)]
    Stat,
    /// Change how many bytes it holds, until the next start; the least valuable leave first
    SetLimit {
        /// Such as 4GiB
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
