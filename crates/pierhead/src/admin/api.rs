//! The JSON documents of the admin API. The daemon writes these documents, and the command line
//! reads them.
//!
//! docs/reference/http-api.md is generated from the comments of this file. Within `/v1`, fields may
//! be added and never removed.

use std::collections::BTreeMap;

use pierhead_client_setup::Address;
use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

/// Header of every request that changes something. A web page can send this header to another
/// origin only after a CORS preflight request, which pierhead refuses.
pub(crate) const HEADER: &str = "x-pierhead";

/// The state of the daemon and of its cache.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stat {
    /// The version of the running pierhead.
    pub(crate) version: String,
    /// Seconds since the start of the daemon.
    pub(crate) uptime_seconds: u64,
    /// Addresses at which pierhead serves clients.
    pub(crate) listen: Vec<String>,
    /// Path of the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<String>,
    /// Whether the addresses of `listen` use HTTPS.
    #[serde(default)]
    pub(crate) tls: bool,
    /// Path of the data folder.
    pub(crate) data: String,
    /// Number of committed blobs.
    pub(crate) blobs: u64,
    /// Bytes of committed blobs on disk.
    pub(crate) used: u64,
    /// Bytes that downloads have reserved: the same number as `downloads` of [`Disk`].
    pub(crate) reserved: u64,
    /// Maximum of the sum of `used` and `reserved`, in bytes.
    pub(crate) capacity: u64,
    /// Bytes that the cache can hold now: `capacity`, or less if the disk has less room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) room: Option<u64>,
    /// Number of downloads in progress.
    pub(crate) fills: u64,
    /// Bytes of pinned blobs.
    pub(crate) pinned: u64,
    /// Resident memory of the daemon in bytes.
    pub(crate) memory: u64,
    /// Bytes on disk of the data folder, by kind of file.
    #[serde(default)]
    pub(crate) disk: Disk,
    /// State of eviction and admission.
    #[serde(default)]
    pub(crate) eviction: EvictionStat,
    /// State of bundles; absent while bundles are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bundle: Option<BundleStat>,
}

impl Stat {
    /// Returns the address of the first listener, in a form with which clients on this host can
    /// connect.
    pub(crate) fn address(&self) -> Option<Address> {
        let listener = self.listen.first()?.parse().ok()?;
        Some(Address::of_listener(listener, self.tls))
    }
}

/// Part of [`Stat`]: bytes on disk of all files in the data folder, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// Bytes of committed blobs.
    pub(crate) blobs: u64,
    /// Bytes that are reserved: for active and interrupted downloads, for unreadable blobs, and for
    /// deleted files that are still open.
    pub(crate) downloads: u64,
    /// Bytes of tags, lists of tags and lists of referrers.
    pub(crate) tags: u64,
    /// Bytes of the files that record pins.
    pub(crate) pins: u64,
    /// Bytes of the bundle server: packs, plans, indexes, tables of contents and the database of
    /// images.
    pub(crate) bundles: u64,
    /// Bytes of the cache's catalog and of the eviction policy's state.
    pub(crate) catalog: u64,
    /// Bytes of all other files, such as the request log.
    pub(crate) other: u64,
    /// Sum of all other fields of this document.
    pub(crate) total: u64,
}

/// The state of the fast tier.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TierStat {
    /// Class of the medium of the tier: `pmem`, `emulated-file` or `volatile`.
    pub(crate) class: String,
    /// Capacity of the medium in bytes.
    pub(crate) capacity: u64,
    /// Free bytes on the medium.
    pub(crate) free: u64,
    /// Bytes that pierhead uses on the medium.
    pub(crate) used: u64,
    /// Current maximum of `used`, in bytes. Memory pressure reduces this maximum.
    pub(crate) limit: u64,
    /// Maximum of `used` without memory pressure, in bytes.
    #[serde(default)]
    pub(crate) ceiling: u64,
    /// Largest possible value of `limit` and of `ceiling`, in bytes.
    #[serde(default)]
    pub(crate) most: u64,
    /// Number of complete blobs on the tier.
    pub(crate) blobs: u64,
    /// Number of blobs of which only the hot ranges (the parts that a starting container reads) are
    /// on the tier.
    #[serde(default)]
    pub(crate) hot: u64,
    /// Bytes of the hot ranges of the blobs that `hot` counts.
    #[serde(default)]
    pub(crate) hot_used: u64,
    /// Number of blobs on the tier that pierhead has not yet written back to the disk.
    pub(crate) queue: u64,
    /// Dirty bytes: bytes of the blobs that `queue` counts, and of downloads in progress.
    pub(crate) dirty: u64,
    /// Bytes of blobs written to the tier since the start.
    pub(crate) staged: u64,
    /// Bytes of blobs written back to the disk since the start.
    pub(crate) written_back: u64,
    /// Number of downloads since the start that began on the tier and continued on the disk because
    /// the tier was full.
    pub(crate) moved: u64,
    /// Number of times since the start that a blob was opened while the complete blob was on the
    /// tier.
    pub(crate) hits: u64,
    /// Number of times since the start that a blob was opened while only its hot ranges were on the
    /// tier.
    #[serde(default)]
    pub(crate) hot_hits: u64,
    /// Number of times since the start that a blob was opened while it was on the disk only.
    pub(crate) disk_hits: u64,
    /// Number of damaged blobs that pierhead has found on the tier.
    #[serde(default)]
    pub(crate) damaged: u64,
    /// Whether the medium failed. After a failure, pierhead uses the disk alone until a restart.
    #[serde(default)]
    pub(crate) failed: bool,
}

/// The new limit of the fast tier, in a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierLimitChange {
    /// The new maximum of `used` of [`TierStat`], in bytes.
    pub(crate) limit: u64,
}

/// Part of [`Stat`]: state of the bundle server. `used` and `capacity` of [`Stat`] do not include
/// bundles.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct BundleStat {
    /// Number of images for which pierhead can make bundles now.
    pub(crate) ready: u64,
    /// Number of images that wait for indexing, or that pierhead indexes now.
    pub(crate) waiting: u64,
    /// Number of images for which pierhead cannot make bundles.
    pub(crate) refused: u64,
    /// Number of background jobs that are waiting or running. A job indexes an image, optimizes
    /// packed frames, or makes patches.
    pub(crate) jobs: u64,
    /// Bytes of packs (files with compressed contents of images).
    pub(crate) packs: u64,
    /// Maximum of the bytes of packs.
    pub(crate) packs_capacity: u64,
    /// Bytes of bundle plans and of the patches in them.
    pub(crate) plans: u64,
    /// Maximum of the bytes of bundle plans.
    pub(crate) plans_capacity: u64,
    /// Bytes of layer indexes and of tables of contents.
    pub(crate) index: u64,
}

/// Part of [`Stat`]: state of eviction and admission.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct EvictionStat {
    /// Value of the key `eviction.policy`.
    pub(crate) policy: String,
    /// Value of the key `eviction.admission`.
    pub(crate) admission: String,
    /// Bytes of blobs and bundles written since midnight (UTC).
    pub(crate) written_today: u64,
    /// Value of the key `cache.daily_write_budget` in bytes; 0 means no limit.
    pub(crate) daily_write_budget: u64,
    /// Number of blobs evicted since the start.
    pub(crate) evictions: u64,
    /// Number of downloads since the start that the cache did not store, although they fit.
    pub(crate) refused: u64,
    /// The downloads that `refused` counts, by cause: `admission`, `policy`, `written` (the daily
    /// write budget).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) refused_by: BTreeMap<String, u64>,
    /// Number of cache hits since the start.
    #[serde(default)]
    pub(crate) hits: u64,
    /// Number of cache misses since the start.
    #[serde(default)]
    pub(crate) misses: u64,
    /// Statistics of the eviction policy, such as `gate_open` of the policy `learned`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
}

/// One page of the list of cached blobs, sorted by digest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blobs {
    /// The blobs of this page, at most 1000.
    pub(crate) blobs: Vec<Blob>,
    /// Value of the query parameter `after` for the next page; absent on the last page.
    pub(crate) next: Option<Digest>,
}

/// Part of [`Blobs`]: one blob.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blob {
    /// Digest of the blob.
    pub(crate) digest: Digest,
    /// Size of the blob in bytes.
    pub(crate) size: u64,
    /// The media type that the registry stated for the blob.
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
    /// The images of this list, at most 1000.
    pub(crate) images: Vec<Image>,
    /// Whether the cache has more images than this list.
    #[serde(default)]
    pub(crate) more: bool,
}

/// Part of [`Images`]: one image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Image {
    /// Complete reference of the image.
    pub(crate) image: String,
    /// Digests of the cached parts of the image.
    pub(crate) digests: Vec<Digest>,
    /// Digest of the index or manifest to which the tag points.
    #[serde(default)]
    pub(crate) digest: Option<Digest>,
    /// Bytes of all cached parts of the image.
    #[serde(default)]
    pub(crate) size: u64,
    /// Whether the image is pinned.
    #[serde(default)]
    pub(crate) pinned: bool,
    /// Platforms of the image whose manifest is cached.
    #[serde(default)]
    pub(crate) platforms: Vec<ImagePlatform>,
}

/// Part of [`Image`]: one platform of the image.
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

/// Result of the deletion of an image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Removed {
    /// Complete reference of the deleted image.
    pub(crate) image: String,
    /// Tags that were deleted with the image.
    pub(crate) names: Vec<String>,
    /// Freed bytes of blobs and of bundles.
    pub(crate) freed: u64,
}

/// The list of pinned images.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pins {
    /// The pins, one per image.
    pub(crate) pins: Vec<Pin>,
}

/// The pin of one image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// Complete reference of the pinned image.
    pub(crate) image: String,
    /// Digests that the pin protects; empty after an unpin.
    pub(crate) digests: Vec<Digest>,
    /// After a pin of an image of which no platform is completely cached: the number of these
    /// digests whose blob is not in the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<u64>,
}

/// The request body of a prune: the target size.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prune {
    /// Target size of the data folder in bytes, without `other` of [`Disk`]. With 0, pierhead
    /// deletes everything that is not pinned.
    pub(crate) target: u64,
}

/// The result of a prune.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pruned {
    /// Freed bytes of blobs, interrupted downloads and bundles.
    pub(crate) freed: u64,
    /// Bytes of the data folder after the prune.
    pub(crate) used: u64,
    /// Bytes of pinned blobs after the prune, a part of `blobs` in `disk`.
    #[serde(default)]
    pub(crate) pinned: u64,
    /// Bytes of the data folder after the prune, by kind.
    #[serde(default)]
    pub(crate) disk: Disk,
}

/// The images to pull into the cache, in a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Warm {
    /// Complete references of the images.
    pub(crate) images: Vec<String>,
    /// Platforms to pull, as `os/architecture[/variant]`. An empty list means all platforms.
    #[serde(default)]
    pub(crate) platforms: Vec<String>,
    /// Whether pierhead also pins the images.
    #[serde(default)]
    pub(crate) pin: bool,
}

/// One line of a response of newline-delimited JSON. A response without the event `done` is
/// incomplete.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// Progress of the work. The totals grow as pierhead reads manifests.
    Progress {
        /// The image that pierhead warms, or the digest that pierhead verifies.
        subject: String,
        /// Number of blobs that are finished.
        done: u64,
        /// Number of all blobs that are known so far.
        blobs: u64,
        /// Number of bytes that are finished.
        bytes_done: u64,
        /// Number of bytes of all blobs that are known so far.
        bytes: u64,
    },
    /// The result of one image of a `warm` request, or one corrupt blob that a `verify` request
    /// found.
    Item {
        /// The image that pierhead warmed, or the digest of the corrupt blob.
        subject: String,
        /// Whether pierhead pulled the image; false for a corrupt blob.
        ok: bool,
        /// The error message of a failed item.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        message: Option<String>,
    },
    /// The last line: the number of items that succeeded (`good`), and the number of items that
    /// failed (`bad`).
    Done { good: u64, bad: u64 },
}

/// The body of every response whose status is not 2xx.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorResponse {
    /// A message for the operator: the problem and its fix.
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Parses a document of an older daemon, which lacks the fields that were added later.
    fn parsed<T: serde::de::DeserializeOwned>(document: Value) -> T {
        serde_json::from_value(document).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn documents_of_the_first_version_are_parsed() {
        let stat: Stat = parsed(json!({
            "version": "0.0.1", "uptime_seconds": 1, "listen": ["[::]:5000"], "data": "/d",
            "blobs": 1, "used": 2, "reserved": 3, "capacity": 4, "fills": 5, "pinned": 6,
            "memory": 7,
        }));
        assert_eq!(stat.disk, Disk::default());
        assert!(stat.bundle.is_none() && stat.config.is_none() && !stat.tls);
        let image: Image = parsed(json!({"image": "a.io/b:1", "digests": []}));
        assert!(image.platforms.is_empty() && !image.pinned);
        let images: Images = parsed(json!({"images": []}));
        assert!(!images.more);
        let pruned: Pruned = parsed(json!({"freed": 1, "used": 2}));
        assert_eq!((pruned.pinned, pruned.disk), (0, Disk::default()));
        let tier: TierStat = parsed(json!({
            "class": "pmem", "capacity": 1, "free": 1, "used": 1, "limit": 1, "blobs": 1,
            "queue": 1, "dirty": 1, "staged": 1, "written_back": 1, "moved": 1, "hits": 1,
            "disk_hits": 1,
        }));
        assert!(!tier.failed && tier.damaged == 0);
    }

    #[test]
    fn a_request_with_an_unknown_field_is_refused() {
        // A typing error in `target` would otherwise delete every unpinned blob.
        let refused = |error: serde_json::Error| error.to_string().contains("unknown field");
        let prune = serde_json::from_value::<Prune>(json!({"target": 1, "targt": 2}));
        assert!(prune.is_err_and(refused));
        let limit = serde_json::from_value::<TierLimitChange>(json!({"limit": 1, "unit": "GiB"}));
        assert!(limit.is_err_and(refused));
        let warm = serde_json::from_value::<Warm>(json!({"images": [], "platform": "linux/arm64"}));
        assert!(warm.is_err_and(refused));
        assert!(
            serde_json::from_value::<Prune>(json!({})).is_err(),
            "the target is required"
        );
    }

    #[test]
    fn the_address_for_clients_of_this_host_is_that_of_the_first_listener() {
        for (listen, tls, expected) in [
            (
                &["0.0.0.0:5000", "10.0.0.1:80"][..],
                false,
                Some("http://127.0.0.1:5000"),
            ),
            (&["0.0.0.0:5000"], true, Some("https://127.0.0.1:5000")),
            (&["[fd00::1]:5000"], false, Some("http://[fd00::1]:5000")),
            (&[], false, None),
            (&["unix:/run/x"], false, None),
        ] {
            let stat: Stat = parsed(json!({
                "version": "", "uptime_seconds": 0, "listen": listen, "tls": tls, "data": "",
                "blobs": 0, "used": 0, "reserved": 0, "capacity": 0, "fills": 0, "pinned": 0,
                "memory": 0,
            }));
            let address = stat.address().map(|it| it.to_string());
            assert_eq!(address.as_deref(), expected, "{listen:?}");
        }
    }

    #[test]
    fn an_event_is_one_object_with_its_name() {
        let item = |message: Option<&str>| Event::Item {
            subject: "a.io/b:1".to_owned(),
            ok: message.is_none(),
            message: message.map(str::to_owned),
        };
        for (event, expected) in [
            (
                item(None),
                json!({"event": "item", "subject": "a.io/b:1", "ok": true}),
            ),
            (
                item(Some("no")),
                json!({"event": "item", "subject": "a.io/b:1", "ok": false, "message": "no"}),
            ),
            (
                Event::Done { good: 1, bad: 2 },
                json!({"event": "done", "good": 1, "bad": 2}),
            ),
        ] {
            assert_eq!(json!(event), expected);
            assert_eq!(json!(parsed::<Event>(expected.clone())), expected);
        }
    }
}
