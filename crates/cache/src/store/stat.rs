//! The statistics that operators see: about blobs, byte counts, eviction policy and admission
//! filter.

use pierhead_oci::{Digest, MediaType};

/// The statistics of one committed blob, which [`Cache::list`](crate::Cache::list) returns.
#[derive(Clone, Debug)]
pub struct BlobStat {
    /// The digest of the blob.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
    /// The media type. Only manifests and other documents have a media type.
    pub media_type: Option<MediaType>,
    /// Time of the last access, in seconds since 1970.
    pub accessed: u64,
    /// Whether the blob is pinned.
    pub pinned: bool,
}

/// Byte counts of the whole cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Number of blobs that are committed.
    pub blobs: u64,
    /// Bytes on disk of the committed blobs.
    pub used: u64,
    /// Bytes that are reserved by running fills, by partial fills, and by deleted files that
    /// readers still have open.
    pub reserved: u64,
    /// Bytes on disk of tags.
    pub names: u64,
    /// Limit of `used`, `reserved` and `names` together, in bytes.
    pub capacity: u64,
    /// Number of fills that are running.
    pub fills: u64,
    /// Bytes on disk of pinned blobs.
    pub pinned: u64,
}

/// The eviction policy and the admission filter, with their statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionStat {
    /// Name of the policy in use.
    pub policy: String,
    /// Name of the admission filter in use.
    pub admission: String,
    /// Bytes of content written since midnight (UTC).
    pub written_today: u64,
    /// Limit of `written_today` in bytes. The value 0 means no limit.
    pub daily_write_budget: u64,
    /// Number of blobs that were evicted since the start of the process.
    pub evictions: u64,
    /// Number of fills since the start of the process that were refused although they would have
    /// fit.
    pub refused: u64,
    /// Number of refused fills for each reason: `admission`, `policy`, or `written` (the daily
    /// write budget).
    pub refused_by: [(&'static str, u64); 3],
    /// Number of claims since the start of the process that found the blob.
    pub hits: u64,
    /// Number of claims since the start of the process that started a fill.
    pub misses: u64,
    /// The statistics of the policy, by name.
    pub figures: Vec<(&'static str, f64)>,
}
