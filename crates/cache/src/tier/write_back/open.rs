//! Opened blobs of both tiers. Their reads are timed; a copy on the fast tier counts there until its last reader leaves.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::fast_copies::{FastCopies, OpenCopy};
use super::room::Room;
use super::slow_disk::SlowDisk;
use crate::tier::{Blob, Extent, ReadAt, Trailer};

/// An open copy on the fast tier; its bytes count until it is dropped.
pub(super) struct FastBlob {
    blob: Arc<dyn Blob>,
    /// Dropped behind the blob, so that room is free only when the medium's is.
    room: RoomOfReader,
}

struct RoomOfReader {
    room: Option<Arc<Room>>,
    fast: Arc<FastCopies>,
}

impl FastBlob {
    pub(super) fn new(fast: &Arc<FastCopies>, blob: Arc<dyn Blob>, room: Arc<Room>) -> Self {
        let room = RoomOfReader {
            room: Some(room),
            fast: fast.clone(),
        };
        Self { blob, room }
    }

    pub(super) fn of(fast: &Arc<FastCopies>, copy: OpenCopy) -> Arc<dyn Blob> {
        Arc::new(Self::new(fast, copy.blob, copy.room))
    }
}

impl Drop for RoomOfReader {
    fn drop(&mut self) {
        self.room = None;
        self.fast.reader_left();
    }
}

/// One read in so many bytes of a fast blob is timed.
const SAMPLE_INTERVAL: u64 = 4 << 20;
/// The disk's rate is taken over so many bytes.
const RATE_WINDOW: u64 = 4 << 20;
/// What was read ahead is not waited for: a gap up to so many bytes is no other place.
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
        let begun = Instant::now();
        let done = read()?;
        let seconds = begun.elapsed().as_secs_f64();
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

/// A blob on the disk. What is read of it from the page cache costs nothing here.
pub(super) struct SlowBlob {
    blob: Arc<dyn Blob>,
    disk: Arc<SlowDisk>,
    run: Mutex<Run>,
}

/// Reads one behind the other that had to wait for the disk.
#[derive(Default)]
struct Run {
    begin: u64,
    end: u64,
    /// Bytes of the reads, and how long they took.
    waited: (u64, f64),
}

impl SlowBlob {
    pub(super) fn new(disk: &Arc<SlowDisk>, blob: Arc<dyn Blob>) -> Self {
        let run = Run {
            // No read continues it.
            end: u64::MAX,
            ..Run::default()
        };
        Self {
            blob,
            disk: disk.clone(),
            run: Mutex::new(run),
        }
    }

    fn took(&self, offset: u64, len: u64, seconds: f64) {
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
            // Else most of it was in memory, which says nothing of the disk.
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
        let begun = Instant::now();
        self.blob.read_at(offset, buf)?;
        self.took(offset, buf.len() as u64, begun.elapsed().as_secs_f64());
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
