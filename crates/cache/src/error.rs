//! The error type of [`Cache`](crate::Cache) and of all its modules.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

/// [`Error::is_storage`] tells whether the disk or the cache failed, and not the content.
/// [`Error::is_retryable`] tells whether a retry can help. The type is `Clone`, because all readers
/// of a failed fill get the same error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file of the cache.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation that failed, as a verb.
        action: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The received bytes do not match the requested digest. The upstream sent wrong content.
    #[error("the received content has the digest {actual}, not {expected}")]
    WrongDigest {
        /// The requested digest.
        expected: Digest,
        /// The digest of the received bytes.
        actual: Box<Digest>,
        /// Whether an earlier fill staged some of the bytes. A power loss may have damaged these
        /// bytes, so the cache deletes them. One retry from byte 0 is worthwhile.
        resumed: bool,
    },
    /// The upstream sent more or fewer bytes than it announced.
    #[error("{digest} should have {expected} bytes, but {actual} were received")]
    WrongSize {
        /// The requested digest.
        digest: Digest,
        /// Bytes announced.
        expected: u64,
        /// Bytes received.
        actual: u64,
    },
    /// A stored blob does not match its checksums. The cache has removed it; a new fetch helps.
    #[error(
        "{digest} is damaged on disk near byte {offset}; it was removed and will be fetched again"
    )]
    Corrupt {
        /// The corrupt blob.
        digest: Digest,
        /// Start of the corrupt chunk, in bytes from the start of the blob.
        offset: u64,
    },
    /// The capacity or the disk is full, and not enough can be evicted.
    #[error("no room for {needed} bytes: raise cache.size, unpin something, or free disk space")]
    NoRoom {
        /// Bytes requested.
        needed: u64,
    },
    /// The blob exceeds the maximum size of a stored blob.
    #[error(
        "{size} bytes exceed the maximum size of a stored blob ({limit}): it is streamed to clients, not stored"
    )]
    TooLarge {
        /// Bytes announced, or received so far.
        size: u64,
        /// Maximum size of a blob in bytes.
        limit: u64,
    },
    /// The blob would fit, but admission, policy or write budget refuse to store it.
    #[error("{digest} is streamed to clients, not stored: {why}")]
    NotAdmitted {
        /// The refused blob.
        digest: Digest,
        /// The reason, with the configuration key that controls it.
        why: &'static str,
    },
    /// Another process owns the data folder.
    #[error("{} is in use by another pierhead (process {pid}): stop it, or give this one another --data", path.display())]
    InUse {
        /// The data folder.
        path: PathBuf,
        /// The process that has the lock; 0 when unknown.
        pid: u32,
    },
    /// The data folder was written by another version.
    #[error("{} has layout version {found}, this pierhead knows {known}: use the matching pierhead, or move the folder away", path.display())]
    Version {
        /// The data folder.
        path: PathBuf,
        /// The version in the folder.
        found: String,
        /// The version that this build writes.
        known: u32,
    },
    /// The data folder contains files, but no cache of pierhead.
    #[error("{} contains {entry:?} and no cache of pierhead: choose an empty or new folder as data, or move its contents away", path.display())]
    Foreign {
        /// The data folder.
        path: PathBuf,
        /// A file or folder in it.
        entry: OsString,
    },
    /// A pin cannot be read. Without the pin, its images would be evicted.
    #[error("cannot read the pin {}; without it, its images would be evicted: make the file readable, or delete it to drop that pin", path.display())]
    UnreadablePin {
        /// The file of the pin.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The upstream could not resume a fill and sends the content again from byte 0. A reader that
    /// has already passed bytes of the first attempt to its client cannot continue.
    #[error("the upstream restarted the download")]
    Restarted,
    /// The leader abandoned the fill; the text is the reason.
    #[error("the fill failed: {0}")]
    Abandoned(Arc<str>),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.into(),
            source: Arc::new(source),
        }
    }

    /// Whether the disk or the cache failed, and not the content. The caller can then stream the
    /// rest of the blob from the upstream without storing the blob.
    pub fn is_storage(&self) -> bool {
        matches!(
            self,
            Self::NoRoom { .. }
                | Self::TooLarge { .. }
                | Self::NotAdmitted { .. }
                | Self::Io { .. }
        )
    }

    /// Whether a retry may succeed.
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
