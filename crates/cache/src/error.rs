//! Everything that can go wrong below [`Cache`](crate::Cache).

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

/// Whose fault it is and whether a retry can help: [`Error::is_retryable`]. `Clone`, because one
/// failed fill is reported to all who wait for it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused. Ours (disk); the source says what.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The bytes that came are not the ones that were named. The upstream's fault.
    #[error("the content that came is {actual}, not {expected}")]
    WrongDigest {
        /// What was asked for.
        expected: Digest,
        /// What came.
        actual: Box<Digest>,
        /// Some of the bytes were left by an earlier fill. They may be the wrong ones (a power loss tears
        /// them), and are deleted now: one more try, which then starts from zero, is worth it.
        resumed: bool,
    },
    /// More or fewer bytes than announced. The upstream's fault.
    #[error("{digest} should be {expected} bytes, {actual} came")]
    WrongSize {
        /// What was asked for.
        digest: Digest,
        /// Bytes announced.
        expected: u64,
        /// Bytes that came.
        actual: u64,
    },
    /// A blob on disk no longer matches its checksums. It has been taken out; a refetch helps.
    #[error(
        "{digest} is damaged on disk near byte {offset}; it was removed and will be fetched again"
    )]
    Corrupt {
        /// Which blob.
        digest: Digest,
        /// Where the damaged chunk starts.
        offset: u64,
    },
    /// There is no room, and nothing that may be evicted.
    #[error("no room for {needed} bytes: raise cache.size, unpin something, or free disk space")]
    NoRoom {
        /// Bytes asked for.
        needed: u64,
    },
    /// The blob is larger than any that is to be stored.
    #[error("{size} bytes are more than one blob may have ({limit}): it is passed on, not stored")]
    TooLarge {
        /// Bytes announced, or come so far.
        size: u64,
        /// Most bytes of a blob.
        limit: u64,
    },
    /// It would fit, and shall not be kept.
    #[error("{digest} is passed on, not stored: {why}")]
    NotAdmitted {
        /// Which blob.
        digest: Digest,
        /// Who decided that.
        why: &'static str,
    },
    /// Another process owns the data folder.
    #[error("{} is in use by another pierhead (process {pid}): stop it, or give this one another --data", path.display())]
    InUse {
        /// The data folder.
        path: PathBuf,
        /// Who holds it, 0 when unknown.
        pid: u32,
    },
    /// The data folder was written by another version.
    #[error("{} has layout version {found}, this pierhead knows {known}: use the matching pierhead, or move the folder away", path.display())]
    Version {
        /// The data folder.
        path: PathBuf,
        /// What stands in it.
        found: String,
        /// What this build writes.
        known: u32,
    },
    /// The data folder holds something, and nothing says that it is ours.
    #[error("{} holds {entry:?} and no cache of pierhead: name an empty or new folder as data, or move what is there away", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Something in it.
        entry: OsString,
    },
    /// A pin is there and cannot be read. Without it, what it keeps would be evicted.
    #[error("cannot read the pin {}; without it, the images that it keeps would be evicted: make the file readable, or delete it to give up that pin", path.display())]
    UnreadablePin {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The upstream could not resume a fill and sends it anew from zero: a reader that has handed on some
    /// of the old bytes cannot go on.
    #[error("the upstream started over")]
    Restarted,
    /// Whoever was filling gave up; the text is what they said.
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

    /// Whether it is the disk or the cache that failed or refused, not the content: whoever wants the bytes can still stream them
    /// from the upstream, from the offset reached, without storing them.
    pub fn is_storage(&self) -> bool {
        matches!(
            self,
            Self::NoRoom { .. }
                | Self::TooLarge { .. }
                | Self::NotAdmitted { .. }
                | Self::Io { .. }
        )
    }

    /// Whether asking again may succeed.
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
