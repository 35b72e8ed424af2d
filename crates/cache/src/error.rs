//! The error type of [`Cache`](crate::Cache) and of all its modules.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;
use pierhead_oci::units::human_bytes;

/// [`Error::is_storage`] tells whether the disk or the cache failed, and not the content.
/// [`Error::is_retryable`] tells whether a retry can help. The type is `Clone`, because all readers
/// of a failed fill get the same error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file of the cache.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation that failed, as a verb (such as "open").
        action: &'static str,
        /// The file on which the operation failed.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The received bytes do not match the requested digest. The upstream has sent wrong content.
    #[error("the received content has the digest {actual}, not {expected}")]
    WrongDigest {
        /// The digest that was requested.
        expected: Digest,
        /// The digest of the received bytes.
        actual: Box<Digest>,
        /// Whether an earlier fill staged some of the bytes. A power loss may have damaged these
        /// bytes, so the cache deletes them. After this error, one retry from byte 0 may succeed.
        resumed: bool,
    },
    /// The upstream sent more or fewer bytes than it announced.
    #[error("{digest} should have {expected} bytes, but {actual} were received")]
    WrongSize {
        /// The digest of the requested blob.
        digest: Digest,
        /// Number of bytes that the upstream announced.
        expected: u64,
        /// Number of bytes that the upstream sent.
        actual: u64,
    },
    /// A stored blob does not match its checksums. The cache has removed the blob, so a new fetch
    /// of the blob may succeed.
    #[error(
        "{digest} is damaged on disk near byte {offset}; it was removed and will be fetched again"
    )]
    Corrupt {
        /// The digest of the corrupt blob.
        digest: Digest,
        /// Start of the corrupt chunk, in bytes from the start of the blob.
        offset: u64,
    },
    /// The capacity or the disk is full, and evictions cannot free enough bytes.
    #[error("no room for {needed} bytes: {limit}")]
    NoRoom {
        /// Number of bytes that were requested.
        needed: u64,
        /// The limit that prevents the reservation.
        limit: SpaceLimit,
    },
    /// The blob exceeds the configured maximum size of a stored blob.
    #[error(
        "{size} bytes exceed the maximum size of a stored blob ({limit}): it is streamed to clients, not stored"
    )]
    TooLarge {
        /// Number of bytes that the upstream announced, or that were received so far.
        size: u64,
        /// Maximum size of a blob in bytes.
        limit: u64,
    },
    /// The blob would fit, but the admission filter, the eviction policy or the daily write budget
    /// refuses to store the blob.
    #[error("{digest} is streamed to clients, not stored: {why}")]
    NotAdmitted {
        /// The digest of the refused blob.
        digest: Digest,
        /// The reason, with the configuration key that controls it.
        why: &'static str,
    },
    /// Another process owns the data folder.
    #[error("{} is in use by another pierhead (process {pid}): stop it, or give this one another --data", path.display())]
    InUse {
        /// The path of the data folder.
        path: PathBuf,
        /// The process ID of the process that has the lock. 0 if the ID is unknown.
        pid: u32,
    },
    /// Another version of pierhead wrote the data folder.
    #[error("{} has layout version {found}, this pierhead knows {known}: use the matching pierhead, or move the folder away", path.display())]
    Version {
        /// The path of the data folder.
        path: PathBuf,
        /// The layout version of the data folder.
        found: String,
        /// The layout version that this build writes.
        known: u32,
    },
    /// The data folder contains files that do not belong to a cache of pierhead.
    #[error("{} contains {entry:?} and no cache of pierhead: choose an empty or new folder as data, or move its contents away", path.display())]
    Foreign {
        /// The path of the data folder.
        path: PathBuf,
        /// A file or folder in the data folder that pierhead did not create.
        entry: OsString,
    },
    /// The file of a pin cannot be read. If pierhead started without the pin, it would evict the
    /// pinned images.
    #[error("cannot read the pin {}; without it, its images would be evicted: make the file readable, or delete it to drop that pin", path.display())]
    UnreadablePin {
        /// The file of the pin.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The upstream could not resume a fill and sends the content again from byte 0. If a reader
    /// has already passed bytes of the first attempt to its client, this reader cannot continue.
    #[error("the upstream restarted the download")]
    Restarted,
    /// The leader abandoned the fill. The text is the reason.
    #[error("the fill failed: {0}")]
    Abandoned(Arc<str>),
}

/// The limit that prevents the reservation of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceLimit {
    /// The capacity of the cache.
    Capacity,
    /// The free space of the disk.
    Disk {
        /// Number of free bytes of the disk.
        free: u64,
        /// Number of bytes that must stay free.
        min_free: u64,
    },
}

impl fmt::Display for SpaceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity => f.write_str("raise cache.size, or unpin something"),
            Self::Disk { free, min_free } => write!(
                f,
                "the disk has {} free, and cache.min_free reserves {}: free disk space, or lower cache.min_free",
                human_bytes(*free),
                human_bytes(*min_free)
            ),
        }
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.into(),
            source: Arc::new(source),
        }
    }

    /// Whether the disk or the cache failed, and not the content of the blob. After such an error,
    /// the caller can stream the rest of the blob from the upstream without storing it.
    pub fn is_storage(&self) -> bool {
        matches!(
            self,
            Self::NoRoom { .. }
                | Self::TooLarge { .. }
                | Self::NotAdmitted { .. }
                | Self::Io { .. }
        )
    }

    /// Whether a retry of the operation may succeed.
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self,
            Self::InUse { .. }
                | Self::Version { .. }
                | Self::Foreign { .. }
                | Self::UnreadablePin { .. }
                | Self::NoRoom { .. }
                | Self::TooLarge { .. }
        )
    }
}
