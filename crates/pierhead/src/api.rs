//! The documents of the admin API, as the daemon writes and the command line reads them.
//!
//! `docs/how-to/operate.md` describes them for others; a field may be added, none is taken away within `/v1`.

use std::collections::BTreeMap;

use pierhead_client_setup::Address;
use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

/// Every request that changes something carries this header. A web page cannot send it to another
/// origin without asking first, and nobody answers that question.
pub(crate) const HEADER: &str = "x-pierhead";

/// `GET /v1/stat`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stat {
    pub(crate) version: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) listen: Vec<String>,
    /// The configuration file, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<String>,
    /// Clients speak HTTPS to these.
    #[serde(default)]
    pub(crate) tls: bool,
    pub(crate) data: String,
    /// Committed blobs.
    pub(crate) blobs: u64,
    /// Bytes of committed blobs on disk.
    pub(crate) used: u64,
    /// Reserved bytes, as `downloads` of [`Disk`].
    pub(crate) reserved: u64,
    /// The bound of both.
    pub(crate) capacity: u64,
    /// Downloads under way.
    pub(crate) fills: u64,
    /// Bytes that pins keep.
    pub(crate) pinned: u64,
    /// Resident memory of the daemon in bytes.
    pub(crate) memory: u64,
    /// Bytes of the data folder, by kind.
    #[serde(default)]
    pub(crate) disk: Disk,
    /// Eviction policy and admission.
    #[serde(default)]
    pub(crate) eviction: Eviction,
    /// Bundles, when they are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bundle: Option<Bundle>,
}

impl Stat {
    /// Where clients on this machine reach the first listener.
    pub(crate) fn address(&self) -> Option<Address> {
        let listener = self.listen.first()?.parse().ok()?;
        Some(Address::of_listener(listener, self.tls))
    }
}

/// Bytes on disk of all files in the data folder, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// Committed blobs.
    pub(crate) blobs: u64,
    /// Reserved bytes: active and interrupted downloads, unreadable blobs, deleted files still open.
    pub(crate) downloads: u64,
    /// What tags, lists of tags and of referrers stood for.
    pub(crate) tags: u64,
    pub(crate) pins: u64,
    /// Packs, plans, indexes, tables and the directory of bundles.
    pub(crate) bundles: u64,
    /// The catalog and the policy state.
    pub(crate) catalog: u64,
    /// Files of any other kind, such as the request log.
    pub(crate) other: u64,
    pub(crate) total: u64,
}

/// `GET /v1/tier`, and the answer to `PUT /v1/tier`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tier {
    /// What becomes of it when the power goes: `pmem`, `emulated-file`, `volatile`.
    pub(crate) class: String,
    /// Bytes of the medium.
    pub(crate) capacity: u64,
    /// Bytes that it has still to give.
    pub(crate) free: u64,
    /// Bytes of ours.
    pub(crate) used: u64,
    /// The bound on that.
    pub(crate) limit: u64,
    /// What the bound is while this machine has memory to spare.
    #[serde(default)]
    pub(crate) ceiling: u64,
    /// What both can be at most: what the medium holds.
    #[serde(default)]
    pub(crate) most: u64,
    /// Blobs of which it has all.
    pub(crate) blobs: u64,
    /// Blobs of which it has what a start reads.
    #[serde(default)]
    pub(crate) hot: u64,
    /// Bytes of ours in these.
    #[serde(default)]
    pub(crate) hot_used: u64,
    /// Blobs that the disk has still to take.
    pub(crate) queue: u64,
    /// Bytes of that, and of downloads under way.
    pub(crate) dirty: u64,
    /// Bytes of content written to it since the start.
    pub(crate) staged: u64,
    /// Bytes of content copied to the disk since the start.
    pub(crate) written_back: u64,
    /// Downloads since the start that went on on the disk, for want of room.
    pub(crate) moved: u64,
    /// Blobs opened on it since the start.
    pub(crate) hits: u64,
    /// Blobs opened since the start whose hot chunks it has.
    #[serde(default)]
    pub(crate) hot_hits: u64,
    /// Blobs opened on the disk alone since the start.
    pub(crate) disk_hits: u64,
    /// Blobs that were damaged on it, at the start or since.
    #[serde(default)]
    pub(crate) damaged: u64,
    /// Whether its medium has failed: nothing goes there until a restart.
    #[serde(default)]
    pub(crate) failed: bool,
}

/// `PUT /v1/tier`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierLimit {
    /// Bytes.
    pub(crate) limit: u64,
}

/// Of [`Stat`]: what is kept for bundles, besides `used` and `capacity`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Bundle {
    /// Images that can be bundled.
    pub(crate) ready: u64,
    /// Images that wait to be indexed, or are.
    pub(crate) waiting: u64,
    /// Images that cannot be bundled.
    pub(crate) refused: u64,
    /// Work of the background that waits or is being done.
    pub(crate) jobs: u64,
    /// Bytes of packs.
    pub(crate) packs: u64,
    /// The most of that.
    pub(crate) packs_capacity: u64,
    /// Bytes of plans, with the patches in them.
    pub(crate) plans: u64,
    /// The most of that.
    pub(crate) plans_capacity: u64,
    /// Bytes of indexes and tables.
    pub(crate) index: u64,
}

/// Of [`Stat`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Eviction {
    pub(crate) policy: String,
    pub(crate) admission: String,
    /// Bytes of content written since midnight (UTC).
    pub(crate) written_today: u64,
    /// Most of that; 0 is no limit.
    pub(crate) daily_write_budget: u64,
    /// Blobs evicted since the start.
    pub(crate) evictions: u64,
    /// Downloads since the start that would have fit and were not kept.
    pub(crate) refused: u64,
    /// The same by who refused them: `admission`, `policy`, `written` (the bytes of a day).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) refused_by: BTreeMap<String, u64>,
    /// Requests since the start that the cache had the blob for.
    #[serde(default)]
    pub(crate) hits: u64,
    /// Requests since the start that began a download.
    #[serde(default)]
    pub(crate) misses: u64,
    /// What the policy shows of itself, such as whether the gate of a model is open (1) or not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
}

/// `GET /v1/blobs?after=DIGEST&limit=N`: one page, in order of digest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blobs {
    pub(crate) blobs: Vec<Blob>,
    /// `after` of the next page; none on the last.
    pub(crate) next: Option<Digest>,
}

/// One blob of [`Blobs`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) media_type: Option<String>,
    /// Seconds since 1970.
    pub(crate) accessed: u64,
    pub(crate) pinned: bool,
    /// Of which it is a part. The command line fills this in, from [`Images`].
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) images: Vec<String>,
}

/// `GET /v1/images`: the images known by a tag, at most 1000, with what of them is in the cache.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Images {
    pub(crate) images: Vec<Image>,
    /// Whether more images exist.
    #[serde(default)]
    pub(crate) more: bool,
}

/// One image of [`Images`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Image {
    /// The complete reference.
    pub(crate) image: String,
    /// Its cached digests.
    pub(crate) digests: Vec<Digest>,
    /// The digest of the tag: an index or a manifest.
    #[serde(default)]
    pub(crate) digest: Option<Digest>,
    /// Bytes of `digests`.
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) pinned: bool,
    /// Platforms whose manifest is cached.
    #[serde(default)]
    pub(crate) platforms: Vec<ImagePlatform>,
}

/// One platform of [`Image`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImagePlatform {
    /// `os/architecture[/variant]`, where known.
    pub(crate) platform: Option<String>,
    /// Its manifest.
    pub(crate) digest: Digest,
    /// Its cached bytes.
    pub(crate) size: u64,
    /// Whether all parts are cached.
    pub(crate) complete: bool,
    /// Last use of any part by a client, in seconds since 1970.
    pub(crate) accessed: u64,
}

/// The response to `DELETE /v1/images?image=REFERENCE`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) image: String,
    /// The deleted tags.
    pub(crate) names: Vec<String>,
    /// Freed bytes: of blobs that no other image uses, and of bundles.
    pub(crate) freed: u64,
}

/// `GET /v1/pins`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pins {
    pub(crate) pins: Vec<Pin>,
}

/// One pin: of [`Pins`], and the answer to `PUT /v1/pins?image=REFERENCE`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// The complete reference.
    pub(crate) image: String,
    pub(crate) digests: Vec<Digest>,
}

/// `POST /v1/prune`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prune {
    /// Target size of the data folder in bytes, without `other` of [`Disk`]. 0 deletes everything that is not pinned.
    pub(crate) target: u64,
}

/// The response to `POST /v1/prune`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pruned {
    /// Freed bytes: of blobs, interrupted downloads and bundles.
    pub(crate) freed: u64,
    /// Bytes that the data folder takes afterwards.
    pub(crate) used: u64,
}

/// `POST /v1/warm`; the answer is a stream of [`Event`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Warm {
    pub(crate) images: Vec<String>,
    /// `os/architecture[/variant]`; all platforms when empty.
    #[serde(default)]
    pub(crate) platforms: Vec<String>,
    #[serde(default)]
    pub(crate) pin: bool,
}

/// A line of the answers to `POST /v1/verify` and `POST /v1/warm`. The last one is `done`; without it
/// the work was cut short.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// How far it is; the totals grow as they become known.
    Progress {
        /// The image that is being warmed; the digest that is being verified.
        subject: String,
        done: u64,
        blobs: u64,
        bytes_done: u64,
        bytes: u64,
    },
    /// One image is in the cache, or one blob was damaged and is removed, or either failed.
    Item {
        subject: String,
        ok: bool,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        message: Option<String>,
    },
    /// The end of it all.
    Done { good: u64, bad: u64 },
}

/// Every answer that is not 2xx.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// For people: what is wrong and what to do.
    pub(crate) error: String,
}
