//! Figures for operators: blobs, byte counts, policy and admission.

use pierhead_oci::{Digest, MediaType};

/// One committed blob, as listed.
#[derive(Clone, Debug)]
pub struct BlobStat {
    /// Which.
    pub digest: Digest,
    /// Bytes of content.
    pub size: u64,
    /// Only manifests and other documents have one.
    pub media_type: Option<MediaType>,
    /// Last access, seconds since 1970.
    pub accessed: u64,
    /// Whether a pin keeps it.
    pub pinned: bool,
}

/// How full the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Committed blobs.
    pub blobs: u64,
    /// Their bytes on disk.
    pub used: u64,
    /// Bytes reserved by fills under way, partial fills and files deleted but still read.
    pub reserved: u64,
    /// Bytes on disk of names.
    pub names: u64,
    /// The bound on used, reserved and names.
    pub capacity: u64,
    /// Fills under way.
    pub fills: u64,
    /// Bytes that pins keep.
    pub pinned: u64,
}

/// Policy and admission, with their figures.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionStat {
    /// The policy in use.
    pub policy: String,
    /// The admission in use.
    pub admission: String,
    /// Bytes of content written on this day (of UTC).
    pub written_today: u64,
    /// Most bytes of a day; 0: as many as come.
    pub daily_write_budget: u64,
    /// Blobs evicted since the start.
    pub evictions: u64,
    /// Fills that would have fit and were not let in, since the start.
    pub refused: u64,
    /// The same by who refused them: `admission`, `policy`, or `written`, what may be written in a day.
    pub refused_by: [(&'static str, u64); 3],
    /// Claims that found the blob, since the start.
    pub hits: u64,
    /// Claims that began a fill, since the start.
    pub misses: u64,
    /// What the policy shows of itself, by name.
    pub figures: Vec<(&'static str, f64)>,
}
