//! What the cache is told.

use std::path::PathBuf;

/// Settings of one [`Cache`](crate::Cache).
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder; made when missing, owned by one process at a time.
    pub data: PathBuf,
    /// The hard bound in bytes of everything below `data/blobs` and `data/staging`, fills and
    /// deleted-but-still-open files included.
    pub capacity: u64,
    /// Bytes that the file system must keep free.
    pub min_free: u64,
}
