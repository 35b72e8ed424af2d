//! Open blobs of the fast tier and of the disk. Each open blob measures the times of its reads. A
//! copy on the fast tier occupies its space until its last reader is dropped.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::fast_copies::{FastCopies, OpenCopy};
use super::room::Room;
use super::slow_disk::SlowDisk;
use crate::tier::{Blob, Extent, ReadAt, Trailer};

/// An open copy on the fast tier. The space of the copy stays reserved until this value is dropped.
pub(super) struct FastBlob {
    blob: Arc<dyn Blob>,
    /// The reservation of the copy's space. The reservation is dropped after the blob, because the
    /// space must not be released before the medium has freed the space.
    room: ReaderRoom,
}

struct ReaderRoom {
    room: Option<Arc<Room>>,
    fast: Arc<FastCopies>,
}

impl FastBlob {
    pub(super) fn new(fast: &Arc<FastCopies>, blob: Arc<dyn Blob>, room: Arc<Room>) -> Self {
        let room = ReaderRoom {
            room: Some(room),
            fast: fast.clone(),
        };
        Self { blob, room }
    }

    pub(super) fn of(fast: &Arc<FastCopies>, copy: OpenCopy) -> Arc<dyn Blob> {
        Arc::new(Self::new(fast, copy.blob, copy.room))
    }
}

impl Drop for ReaderRoom {
    fn drop(&mut self) {
        self.room = None;
        self.fast.reader_left();
    }
}

/// Distance in bytes between two reads of a blob on the fast tier whose times are measured.
const SAMPLE_INTERVAL: u64 = 4 << 20;
/// Number of bytes over which the read rate of the disk is measured.
const RATE_WINDOW: u64 = 4 << 20;
/// Maximum gap in bytes between two consecutive reads of one run. The disk reads ahead over a
/// smaller gap, so such a gap costs no seek.
const MAX_READ_AHEAD_GAP: u64 = 1 << 20;

impl FastBlob {
    fn timed<T>(
        &self,
        offset: u64,
        len: usize,
        read: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if !offset.is_multiple_of(SAMPLE_INTERVAL) {
            return read();
        }
        let started_at = Instant::now();
        let done = read()?;
        let seconds = started_at.elapsed().as_secs_f64();
        let mut speed = self.room.fast.speed.lock();
        speed.observe_run(len as u64, seconds);
        Ok(done)
    }
}

impl ReadAt for FastBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.timed(offset, buf.len(), || self.blob.read_at(offset, buf))
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.timed(offset, buf.len(), || self.blob.try_read_at(offset, buf))
    }
}

/// An open blob on the disk. Reads from the page cache are not measured.
pub(super) struct SlowBlob {
    blob: Arc<dyn Blob>,
    disk: Arc<SlowDisk>,
    run: Mutex<Run>,
}

/// A run of consecutive reads that waited for the disk.
#[derive(Default)]
struct Run {
    begin: u64,
    end: u64,
    /// Number of bytes of the reads of this run, and the seconds that they took.
    waited: (u64, f64),
}

impl SlowBlob {
    pub(super) fn new(disk: &Arc<SlowDisk>, blob: Arc<dyn Blob>) -> Self {
        let run = Run {
            // No read can continue a run that ends here.
            end: u64::MAX,
            ..Run::default()
        };
        Self {
            blob,
            disk: disk.clone(),
            run: Mutex::new(run),
        }
    }

    fn observe(&self, offset: u64, len: u64, seconds: f64) {
        let (mut run, mut speed) = (self.run.lock(), self.disk.speed.lock());
        let follows = offset
            .checked_sub(run.end)
            .is_some_and(|gap| gap <= MAX_READ_AHEAD_GAP);
        run.end = offset.saturating_add(len);
        if follows {
            run.waited.0 += len;
            run.waited.1 += seconds;
            let bytes = run.end - run.begin;
            if bytes < RATE_WINDOW {
                return;
            }
            // If most bytes came from the page cache, the measured time says nothing about the disk
            // and is not used.
            if run.waited.0 >= bytes / 4 {
                speed.observe_run(bytes, run.waited.1);
            }
        } else {
            speed.observe_first(len, seconds);
        }
        (run.begin, run.waited) = (run.end, (0, 0.0));
    }
}

impl ReadAt for SlowBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let started_at = Instant::now();
        self.blob.read_at(offset, buf)?;
        self.observe(offset, buf.len() as u64, started_at.elapsed().as_secs_f64());
        self.disk.was_read();
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.blob.try_read_at(offset, buf)
    }
}

impl Blob for SlowBlob {
    fn trailer(&self) -> &Trailer {
        self.blob.trailer()
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        self.blob.extent(offset)
    }
}

impl Blob for FastBlob {
    fn trailer(&self) -> &Trailer {
        self.blob.trailer()
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        self.blob.extent(offset)
    }
}
