//! The settings of a cache: folder, limits, intervals and the fast tier.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use pierhead_host::BackgroundWork;

use crate::store::ranking::Recorder;
use crate::tier::placement::FastTier;

/// The settings of one [`Cache`](crate::Cache).
#[derive(Clone)]
pub struct Config {
    /// The data folder. If the folder does not exist, the cache creates it. Only one process at a
    /// time can open it.
    pub data: PathBuf,
    /// Hard limit in bytes of `data/blobs`, `data/staging` and `data/names` together. The bytes of
    /// running fills count, and also the bytes of files that are deleted but still open. Each file
    /// counts in whole blocks of 4 KiB.
    pub capacity: u64,
    /// Maximum size of a stored blob in bytes. The value 0 means the capacity. A larger blob fails
    /// with [`Error::TooLarge`](crate::error::Error::TooLarge).
    pub max_blob: u64,
    /// Size of one reservation step in bytes: a fill reserves disk space step by step as its
    /// content arrives. Thus an announced length alone causes the eviction of at most one step.
    pub step: u64,
    /// Number of bytes that must stay free on the file system.
    pub min_free: u64,
    /// Memory for small blobs (up to 64 KiB each), in bytes. The value 0 means that no blob is kept
    /// in memory.
    pub memory: u64,
    /// Maximum number of tags. Tags also take at most 1/16 of the capacity. When either limit is
    /// exceeded, the cache drops the tags whose last confirmation by an upstream is the oldest. A
    /// tag takes about 250 bytes of memory and one small file.
    pub max_tags: usize,
    /// Age above which the bytes of interrupted fills (partial fills) are deleted.
    pub partial_ttl: Duration,
    /// How often the cache writes access ticks (the order of accesses) to the catalog. A crash
    /// loses the order of the accesses since the last write. At the same time, the cache evicts
    /// blobs whose eviction was delayed by readers.
    pub flush_interval: Duration,
    /// How often the cache saves the states of the eviction policy and the admission filter. A
    /// crash loses what both learned since the last save.
    pub policy_state_interval: Duration,
    /// The fast tier. `None`: the cache uses only the disk.
    pub fast: Option<FastTier>,
    /// A function that the cache calls for each request.
    pub recorder: Option<Recorder>,
    /// The switch that pauses background work. During a pause, the cache does not train the policy
    /// and does not copy blobs between the tiers. Copies continue while the fast tier is nearly
    /// full.
    pub background: BackgroundWork,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("data", &self.data)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Returns the default settings for a data folder and a capacity in bytes.
    pub fn new(data: impl Into<PathBuf>, capacity: u64) -> Self {
        Self {
            data: data.into(),
            capacity,
            max_blob: 0,
            step: 8 << 20,
            min_free: 0,
            // 4 MiB hold the manifests and configs of some hundred images. With this value, an idle
            // process uses less than 12 MB of memory.
            memory: 4 << 20,
            max_tags: 100_000,
            partial_ttl: Duration::from_secs(24 * 3600),
            flush_interval: Duration::from_secs(30),
            policy_state_interval: Duration::from_secs(300),
            fast: None,
            recorder: None,
            background: BackgroundWork::default(),
        }
    }
}
