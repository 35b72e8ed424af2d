//! The JSON documents of the admin API. The daemon writes these documents, and the command line
//! reads them.
//!
//! docs/reference/http-api.md is generated from the comments. Within `/v1`, fields may be added and never removed.

use std::collections::BTreeMap;

use pierhead_client_setup::Address;
use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

/// Header of every request that changes something. A web page can send this header to another
/// origin only after a CORS preflight request, which pierhead refuses.
pub(crate) const HEADER: &str = "x-pierhead";

/// The state of the daemon and its cache.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stat {
    /// The version of pierhead.
    pub(crate) version: String,
    /// Seconds since the start.
    pub(crate) uptime_seconds: u64,
    /// Addresses that serve clients.
    pub(crate) listen: Vec<String>,
    /// Path of the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<String>,
    /// Whether the addresses of `listen` use HTTPS.
    #[serde(default)]
    pub(crate) tls: bool,
    /// The data folder.
    pub(crate) data: String,
    /// Number of committed blobs.
    pub(crate) blobs: u64,
    /// Bytes of committed blobs on disk.
    pub(crate) used: u64,
    /// Bytes reserved by downloads, as `downloads` of [`Disk`].
    pub(crate) reserved: u64,
    /// Maximum of `used` and `reserved` together, in bytes.
    pub(crate) capacity: u64,
    /// Number of downloads in progress.
    pub(crate) fills: u64,
    /// Bytes of pinned blobs.
    pub(crate) pinned: u64,
    /// Resident memory of the daemon in bytes.
    pub(crate) memory: u64,
    /// Bytes of the data folder, by kind.
    #[serde(default)]
    pub(crate) disk: Disk,
    /// Eviction policy and admission.
    #[serde(default)]
    pub(crate) eviction: Eviction,
    /// Bundles; absent while bundles are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bundle: Option<Bundle>,
}

impl Stat {
    /// The address of the first listener, for clients on this host.
    pub(crate) fn address(&self) -> Option<Address> {
        let listener = self.listen.first()?.parse().ok()?;
        Some(Address::of_listener(listener, self.tls))
    }
}

/// Part of [`Stat`]: bytes on disk of all files in the data folder, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// Committed blobs.
    pub(crate) blobs: u64,
    /// Reserved bytes: active and interrupted downloads, unreadable blobs, deleted files still open.
    pub(crate) downloads: u64,
    /// Tags, lists of tags and lists of referrers.
    pub(crate) tags: u64,
    /// Pins.
    pub(crate) pins: u64,
    /// Packs, plans, indexes, tables and the directory of bundles.
    pub(crate) bundles: u64,
    /// The catalog and the policy state.
    pub(crate) catalog: u64,
    /// Files of any other kind, such as the request log.
    pub(crate) other: u64,
    /// Sum of all other fields.
    pub(crate) total: u64,
}

/// The state of the fast tier.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tier {
    /// The class of the medium: `pmem`, `emulated-file` or `volatile`.
    pub(crate) class: String,
    /// Bytes of the medium.
    pub(crate) capacity: u64,
    /// Free bytes of the medium.
    pub(crate) free: u64,
    /// Bytes that pierhead uses.
    pub(crate) used: u64,
    /// Current maximum of `used`. The maximum shrinks under memory pressure.
    pub(crate) limit: u64,
    /// Maximum of `used` without memory pressure.
    #[serde(default)]
    pub(crate) ceiling: u64,
    /// The largest possible `limit` and `ceiling`.
    #[serde(default)]
    pub(crate) most: u64,
    /// Number of complete blobs on the tier.
    pub(crate) blobs: u64,
    /// Number of blobs with only their hot ranges on the tier.
    #[serde(default)]
    pub(crate) hot: u64,
    /// Bytes of the hot ranges of the blobs in `hot`.
    #[serde(default)]
    pub(crate) hot_used: u64,
    /// Number of blobs that pierhead has not yet written back to the disk.
    pub(crate) queue: u64,
    /// Dirty bytes: bytes of the blobs in `queue`, and of downloads in progress.
    pub(crate) dirty: u64,
    /// Bytes of blobs written to the tier since the start.
    pub(crate) staged: u64,
    /// Bytes of blobs written back to the disk since the start.
    pub(crate) written_back: u64,
    /// Number of downloads since the start that moved to the disk because the tier was full.
    pub(crate) moved: u64,
    /// Number of opened blobs since the start that were complete on the tier.
    pub(crate) hits: u64,
    /// Number of opened blobs since the start of which only the hot ranges were on the tier.
    #[serde(default)]
    pub(crate) hot_hits: u64,
    /// Number of opened blobs since the start that were on the disk only.
    pub(crate) disk_hits: u64,
    /// Number of damaged blobs on the tier, found at the start or since.
    #[serde(default)]
    pub(crate) damaged: u64,
    /// Whether the medium failed. pierhead then uses the disk alone until a restart.
    #[serde(default)]
    pub(crate) failed: bool,
}

/// The new limit of the fast tier.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierLimit {
    /// Maximum of `used` of [`Tier`], in bytes.
    pub(crate) limit: u64,
}

/// Part of [`Stat`]: bundles. The bytes of bundles do not count in `used` and `capacity`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bundle {
    /// Number of indexed images.
    pub(crate) ready: u64,
    /// Number of images that wait for indexing, or are being indexed.
    pub(crate) waiting: u64,
    /// Number of images of which pierhead cannot make bundles.
    pub(crate) refused: u64,
    /// Number of background jobs: images, optimized frames, patches.
    pub(crate) jobs: u64,
    /// Bytes of packs.
    pub(crate) packs: u64,
    /// Maximum of `packs`, in bytes.
    pub(crate) packs_capacity: u64,
    /// Bytes of plans, patches included.
    pub(crate) plans: u64,
    /// Maximum of `plans`, in bytes.
    pub(crate) plans_capacity: u64,
    /// Bytes of layer indexes and tables of contents.
    pub(crate) index: u64,
}

/// Part of [`Stat`]: eviction and admission.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Eviction {
    /// Value of the key `eviction.policy`.
    pub(crate) policy: String,
    /// Value of the key `eviction.admission`.
    pub(crate) admission: String,
    /// Bytes of content written since midnight (UTC).
    pub(crate) written_today: u64,
    /// Value of the key `cache.daily_write_budget` in bytes; 0 is no limit.
    pub(crate) daily_write_budget: u64,
    /// Number of blobs evicted since the start.
    pub(crate) evictions: u64,
    /// Number of downloads since the start that the cache did not admit although they fit.
    pub(crate) refused: u64,
    /// Number of downloads of `refused` by cause: `admission`, `policy`, `written` (the daily write
    /// budget).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) refused_by: BTreeMap<String, u64>,
    /// Number of hits since the start.
    #[serde(default)]
    pub(crate) hits: u64,
    /// Number of misses since the start.
    #[serde(default)]
    pub(crate) misses: u64,
    /// Statistics of the policy, such as `gate_open` of `learned`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
}

/// One page of blobs, in the order of their digests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blobs {
    /// At most 1000 entries.
    pub(crate) blobs: Vec<Blob>,
    /// Value of the query parameter `after` for the next page; absent on the last page.
    pub(crate) next: Option<Digest>,
}

/// Part of [`Blobs`]: one blob.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blob {
    /// Digest of the blob.
    pub(crate) digest: Digest,
    /// Size in bytes.
    pub(crate) size: u64,
    /// The media type that the registry stated.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) media_type: Option<String>,
    /// Last use by a client, in seconds since 1970.
    pub(crate) accessed: u64,
    /// Whether the blob is pinned.
    pub(crate) pinned: bool,
    /// Images that contain the blob. Only the command line sets this field, from [`Images`].
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) images: Vec<String>,
}

/// The cached images that have a tag.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Images {
    /// At most 1000 entries.
    pub(crate) images: Vec<Image>,
    /// Whether more images exist.
    #[serde(default)]
    pub(crate) more: bool,
}

/// Part of [`Images`]: one image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Image {
    /// The complete reference.
    pub(crate) image: String,
    /// Digests of the cached parts of the image.
    pub(crate) digests: Vec<Digest>,
    /// Digest of the index or manifest to which the tag points.
    #[serde(default)]
    pub(crate) digest: Option<Digest>,
    /// Bytes of all parts in `digests`.
    #[serde(default)]
    pub(crate) size: u64,
    /// Whether the image is pinned.
    #[serde(default)]
    pub(crate) pinned: bool,
    /// Platforms whose manifest is cached.
    #[serde(default)]
    pub(crate) platforms: Vec<ImagePlatform>,
}

/// Part of [`Image`]: one platform.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImagePlatform {
    /// The platform as `os/architecture[/variant]`, if known.
    pub(crate) platform: Option<String>,
    /// Digest of the manifest of this platform.
    pub(crate) digest: Digest,
    /// Bytes of the cached parts of this platform.
    pub(crate) size: u64,
    /// Whether all parts of this platform are cached.
    pub(crate) complete: bool,
    /// Last use of any part by a client, in seconds since 1970.
    pub(crate) accessed: u64,
}

/// A deleted image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Removed {
    /// The complete reference.
    pub(crate) image: String,
    /// The deleted tags.
    pub(crate) names: Vec<String>,
    /// Freed bytes, of blobs and of bundles.
    pub(crate) freed: u64,
}

/// The pinned images.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pins {
    /// One entry per image.
    pub(crate) pins: Vec<Pin>,
}

/// The pin of one image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// The complete reference.
    pub(crate) image: String,
    /// The pinned digests; empty after an unpin.
    pub(crate) digests: Vec<Digest>,
}

/// The target of a prune.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prune {
    /// Target size of the data folder in bytes, without `other` of [`Disk`]. 0 deletes everything that is not pinned.
    pub(crate) target: u64,
}

/// The result of a prune.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pruned {
    /// Freed bytes: of blobs, interrupted downloads and bundles.
    pub(crate) freed: u64,
    /// Bytes of the data folder after the prune.
    pub(crate) used: u64,
}

/// Images to pull into the cache.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Warm {
    /// Complete references.
    pub(crate) images: Vec<String>,
    /// Platforms as `os/architecture[/variant]`; all platforms when empty.
    #[serde(default)]
    pub(crate) platforms: Vec<String>,
    /// Whether to pin the images.
    #[serde(default)]
    pub(crate) pin: bool,
}

/// One line of a response of newline-delimited JSON. A response without the event `done` is incomplete.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// Progress. The totals grow as pierhead reads manifests.
    Progress {
        /// The image of a warm, or the digest of a verification.
        subject: String,
        /// Number of finished blobs.
        done: u64,
        /// Number of all known blobs.
        blobs: u64,
        /// Number of finished bytes.
        bytes_done: u64,
        /// Number of bytes of all known blobs.
        bytes: u64,
    },
    /// The result for one image of a warm, or one corrupt blob of a verification.
    Item {
        /// The image of a warm, or the digest of a verification.
        subject: String,
        /// Whether the image was pulled, or the blob is not corrupt.
        ok: bool,
        /// The error message of a failure.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        message: Option<String>,
    },
    /// The last line: how many items succeeded, and how many failed.
    Done { good: u64, bad: u64 },
}

/// The body of every response whose status is not 2xx.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorResponse {
    /// A message for the operator: the problem and its fix.
    pub(crate) error: String,
}
