//! Statistics for operators: blobs, byte counts, policy and admission.

use pierhead_oci::{Digest, MediaType};

/// One committed blob in a list of [`Cache::list`](crate::Cache::list).
#[derive(Clone, Debug)]
pub struct BlobStat {
    /// The digest of the blob.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
    /// The media type; only manifests and other documents have one.
    pub media_type: Option<MediaType>,
    /// Time of the last access, in seconds since 1970.
    pub accessed: u64,
    /// Whether the blob is pinned.
    pub pinned: bool,
}

/// Byte counts of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Committed blobs.
    pub blobs: u64,
    /// Bytes on disk of the committed blobs.
    pub used: u64,
    /// Bytes that are reserved by running fills, partial fills, and deleted files that readers have
    /// open.
    pub reserved: u64,
    /// Bytes on disk of tags.
    pub names: u64,
    /// Limit of `used`, `reserved` and `names` together, in bytes.
    pub capacity: u64,
    /// Number of running fills.
    pub fills: u64,
    /// Bytes of pinned blobs.
    pub pinned: u64,
}

/// Policy and admission, with their statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionStat {
    /// The policy in use.
    pub policy: String,
    /// The admission in use.
    pub admission: String,
    /// Bytes of content written since midnight (UTC).
    pub written_today: u64,
    /// Limit of `written_today` in bytes; 0: no limit.
    pub daily_write_budget: u64,
    /// Blobs evicted since the start.
    pub evictions: u64,
    /// Fills that would have fit but were refused, since the start.
    pub refused: u64,
    /// Number of refused fills per reason: `admission`, `policy`, or `written` for the daily write
    /// budget.
    pub refused_by: [(&'static str, u64); 3],
    /// Claims that found the blob, since the start.
    pub hits: u64,
    /// Claims that started a fill, since the start.
    pub misses: u64,
    /// Statistics of the policy, by name.
    pub figures: Vec<(&'static str, f64)>,
}
