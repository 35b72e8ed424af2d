//! The disk behind the fast tier: opens blobs on it, measures its speed, and records when a reader
//! last waited for it.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::open::SlowBlob;
use crate::tier::placement::Speed;
use crate::tier::{Blob, Tier};

/// Time after a read from the disk during which no copy uses the disk. The time between two
/// consecutive reads of one client is shorter.
const QUIET_AFTER_READ: Duration = Duration::from_millis(30);

pub(super) struct SlowDisk {
    pub(super) tier: Arc<dyn Tier>,
    /// The measured speed of the disk.
    pub(super) speed: Mutex<Speed>,
    opened: Instant,
    /// Time of the last read that waited for the disk, in milliseconds since `opened`. 0 means that
    /// no read waited yet.
    last_read: AtomicU64,
}

impl SlowDisk {
    pub(super) fn new(tier: Arc<dyn Tier>) -> Self {
        Self {
            tier,
            speed: Mutex::new(Speed::HARD_DISK),
            opened: Instant::now(),
            last_read: AtomicU64::new(0),
        }
    }

    /// Opens a blob for a reader, and measures the times of its reads.
    pub(super) fn open(self: &Arc<Self>, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let blob = self.tier.open(digest)?;
        Ok(blob.map(|blob| Arc::new(SlowBlob::new(self, blob)) as Arc<dyn Blob>))
    }

    /// Whether the disk has a readable copy of the blob. If the copy on the disk is unreadable, the
    /// blob may be stored again.
    pub(super) fn has(&self, digest: &Digest) -> bool {
        matches!(self.tier.open(digest), Ok(Some(_)))
    }

    /// Records that a reader waited for the disk just now.
    pub(super) fn was_read(&self) {
        let millis = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_read.store(millis.max(1), Ordering::Relaxed);
    }

    /// Returns the time at which copies may use the disk again. `None` means that copies may use
    /// the disk now.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        let read = self.last_read.load(Ordering::Relaxed);
        let quiet = self.opened + Duration::from_millis(read) + QUIET_AFTER_READ;
        (read > 0 && quiet > Instant::now()).then_some(quiet)
    }
}
