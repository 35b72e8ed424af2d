//! Blobs, opened: those of the fast tier are counted there for as long as somebody has them, and reading is timed.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use pierhead_oci::Digest;

use super::room::Room;
use super::spans::Spans;
use super::{Shared, count};
use crate::tier::{Blob, Extent, ReadAt, Trailer, is_damage};

/// A copy, and which chunks of its blob it has, if it is no whole one.
type OpenCopy = (Arc<dyn Blob>, Option<Arc<Spans>>);

impl Shared {
    /// The fast copy, if it is there and whole as far as its trailer tells; a damaged one is taken away.
    pub(super) fn open_fast(
        self: &Arc<Self>,
        digest: &Digest,
    ) -> io::Result<Option<Arc<dyn Blob>>> {
        Ok(self.open_copy(digest)?.map(|(blob, _)| blob))
    }

    /// The same, and which chunks of its blob it has, if it is no whole one: of that very copy, since another may take its place.
    pub(super) fn open_copy(self: &Arc<Self>, digest: &Digest) -> io::Result<Option<OpenCopy>> {
        let guard = self.digest_locks.lock(*digest);
        let Some((room, hot)) = ({
            let tier_state = self.tier_state.lock();
            let entry = tier_state.entries.get(digest);
            entry.map(|entry| (entry.room.clone(), entry.hot.clone()))
        }) else {
            return Ok(None);
        };
        match self.fast.open(digest) {
            Ok(Some(blob)) => Ok(Some((Arc::new(FastBlob::new(self, blob, room)), hot))),
            Err(error) if !is_damage(&error) => Err(error),
            damaged => {
                if let Err(error) = damaged {
                    tracing::warn!(%digest, %error, "damaged on the fast tier: read from the disk");
                }
                drop(guard);
                // Not while the disk's copy is being made, which then is damaged as well.
                let _hold = self.hold(digest);
                let _guard = self.digest_locks.lock(*digest);
                count(&self.counters.damaged, 1);
                self.has_failed();
                // A copy of hot chunks is not made again at once: the medium may be worn there.
                self.tier_state
                    .lock()
                    .known
                    .forget(&super::hot_copy::key(digest));
                // The disk has no copy that could be read in its place.
                if self.drop_fast(digest) == Some(false) {
                    count(&self.counters.corrupt, 1);
                }
                Ok(None)
            }
        }
    }
}

/// A blob on the fast tier; its bytes count for as long as somebody has it.
pub(super) struct FastBlob {
    blob: Arc<dyn Blob>,
    /// Dropped behind the blob, so that room is free only when the medium's is.
    _held: Held,
}

struct Held {
    room: Option<Arc<Room>>,
    shared: Arc<Shared>,
}

impl FastBlob {
    pub(super) fn new(shared: &Arc<Shared>, blob: Arc<dyn Blob>, room: Arc<Room>) -> Self {
        let held = Held {
            room: Some(room),
            shared: shared.clone(),
        };
        Self { blob, _held: held }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room = None;
        self.shared.let_go();
    }
}

/// One read in so many bytes of a fast blob is timed.
const SAMPLE: u64 = 4 << 20;
/// The disk's rate is taken over so many bytes.
const STRIDE: u64 = 4 << 20;
/// What was read ahead is not waited for: a gap up to so many bytes is no other place.
const NEAR: u64 = 1 << 20;

impl FastBlob {
    fn timed<T>(
        &self,
        offset: u64,
        len: usize,
        read: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if !offset.is_multiple_of(SAMPLE) {
            return read();
        }
        let begun = Instant::now();
        let done = read()?;
        let seconds = begun.elapsed().as_secs_f64();
        let shared = &self._held.shared;
        shared.speeds.lock().fast.observe_run(len as u64, seconds);
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
    shared: Arc<Shared>,
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
    pub(super) fn new(shared: &Arc<Shared>, blob: Arc<dyn Blob>) -> Self {
        let run = Run {
            // No read continues it.
            end: u64::MAX,
            ..Run::default()
        };
        Self {
            blob,
            shared: shared.clone(),
            run: Mutex::new(run),
        }
    }

    fn took(&self, offset: u64, len: u64, seconds: f64) {
        let (mut run, mut speeds) = (self.run.lock(), self.shared.speeds.lock());
        let follows = offset.checked_sub(run.end).is_some_and(|gap| gap <= NEAR);
        run.end = offset.saturating_add(len);
        if follows {
            run.waited.0 += len;
            run.waited.1 += seconds;
            let bytes = run.end - run.begin;
            if bytes < STRIDE {
                return;
            }
            // Else most of it was in memory, which says nothing of the disk.
            if run.waited.0 >= bytes / 4 {
                speeds.disk.observe_run(bytes, run.waited.1);
            }
        } else {
            speeds.disk.observe_first(len, seconds);
        }
        (run.begin, run.waited) = (run.end, (0, 0.0));
    }
}

impl ReadAt for SlowBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let begun = Instant::now();
        self.blob.read_at(offset, buf)?;
        self.took(offset, buf.len() as u64, begun.elapsed().as_secs_f64());
        self.shared.was_read();
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
