//! The settings of a cache.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use pierhead_host::BackgroundWork;

use crate::store::ranking::Recorder;
use crate::tier::placement::FastTier;

/// Settings of one [`Cache`](crate::Cache).
#[derive(Clone)]
pub struct Config {
    /// The data folder; made when missing, owned by one process at a time.
    pub data: PathBuf,
    /// The hard bound in bytes of everything below `data/blobs`, `data/staging` and `data/names`, fills and
    /// deleted-but-still-open files included. Files count in whole blocks of 4 KiB.
    pub capacity: u64,
    /// A blob of more bytes is not stored: [`Error::TooLarge`](crate::error::Error::TooLarge). 0: up to the capacity.
    pub max_blob: u64,
    /// Room for a fill is set aside in steps of so many bytes as its bytes come: an announced length alone
    /// evicts no more than this.
    pub step: u64,
    /// Bytes that the file system must keep free.
    pub min_free: u64,
    /// Bytes of memory for small blobs (up to 64 KiB each) that are held whole; 0: none.
    pub memory: u64,
    /// At most so many names, and no more than fit into a sixteenth of the capacity; beyond it those that
    /// were confirmed the longest ago are dropped.
    /// A name costs about 250 bytes of memory and one small file.
    pub max_names: usize,
    /// Age at which partial fills are deleted.
    pub leftover_age: Duration,
    /// How often access ticks are written to the catalog (what a crash may forget of their order), and what readers kept
    /// over a lowered bound is evicted.
    pub flush_interval: Duration,
    /// How often the state of policy and admission is saved: what a crash may forget of what they learned.
    pub policy_state_interval: Duration,
    /// The fast tier; `None`: the disk alone.
    pub fast: Option<FastTier>,
    /// Called with each request.
    pub recorder: Option<Recorder>,
    /// Pauses training of the policy and copies between the tiers. The copies go on when the fast tier fills up.
    pub rest: BackgroundWork,
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
    /// Defaults for all but the two that have none.
    pub fn new(data: impl Into<PathBuf>, capacity: u64) -> Self {
        Self {
            data: data.into(),
            capacity,
            max_blob: 0,
            step: 8 << 20,
            min_free: 0,
            // Some hundred images' manifests and configs, and an idle process stays below 12 MB.
            memory: 4 << 20,
            max_names: 100_000,
            leftover_age: Duration::from_secs(24 * 3600),
            flush_interval: Duration::from_secs(30),
            policy_state_interval: Duration::from_secs(300),
            fast: None,
            recorder: None,
            rest: BackgroundWork::default(),
        }
    }
}
