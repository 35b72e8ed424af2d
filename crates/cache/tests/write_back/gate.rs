//! Test helpers: a disk on which a test can block the write-back thread, and functions that set up
//! both tiers.

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{
    Blob, FastMedium, Options, ReadAt, Staged, Tier, TierEntry, Trailer, WriteBack,
};
use pierhead_oci::Digest;
use pierhead_testkit::tier::MemoryTier;
use pierhead_testkit::wait::TIME_LIMIT;

pub(crate) const ROOMY: u64 = 64 << 20;

/// A disk that blocks the write-back thread while the gate is closed.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    disk: MemoryTier,
    /// Whether the gate is closed.
    shut: Arc<(Mutex<bool>, Condvar)>,
    /// The blob that the disk refuses to store.
    refused: Arc<Mutex<Option<Digest>>>,
    pieces: Arc<(Mutex<Pieces>, Condvar)>,
    early_syncs: Arc<AtomicU64>,
}

/// Whether the write-back thread may write the next piece, and whether it is waiting for this
/// permission.
#[derive(Default)]
struct Pieces {
    held: bool,
    waits: bool,
}

impl Gate {
    pub(crate) fn shut() -> Self {
        let gate = Self::default();
        gate.set(true);
        gate
    }

    pub(crate) fn set(&self, shut: bool) {
        *self.shut.0.lock() = shut;
        self.shut.1.notify_all();
    }

    /// Makes all later attempts to store one blob fail.
    pub(crate) fn refuse(&self, digest: Digest) {
        *self.refused.lock() = Some(digest);
    }

    /// Blocks the write-back thread before each piece.
    pub(crate) fn hold_pieces(&self, held: bool) {
        self.pieces.0.lock().held = held;
        self.pieces.1.notify_all();
    }

    /// Waits until the write-back thread is blocked before a piece.
    pub(crate) fn until_a_piece(&self) {
        let mut pieces = self.pieces.0.lock();
        let waited = self
            .pieces
            .1
            .wait_while_for(&mut pieces, |it| !it.waits, TIME_LIMIT);
        assert!(!waited.timed_out(), "no thread writes a piece");
    }

    /// Returns the number of syncs by the write-back thread before the end of a blob.
    pub(crate) fn early_syncs(&self) -> u64 {
        self.early_syncs.load(Ordering::Relaxed)
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.disk.open(digest).unwrap().is_some()
    }
}

impl Tier for Gate {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let is_behind = std::thread::current().name() == Some("tier-write-back");
        if is_behind {
            let mut shut = self.shut.0.lock();
            self.shut.1.wait_while(&mut shut, |shut| *shut);
        }
        if *self.refused.lock() == Some(*digest) {
            return Err(io::Error::other("this one is refused"));
        }
        let staged = self.disk.stage(digest)?;
        Ok(match is_behind {
            true => Box::new(Gated {
                staged,
                pieces: self.pieces.clone(),
                early_syncs: self.early_syncs.clone(),
            }),
            false => staged,
        })
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.disk.discard(digest)
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        self.disk.open(digest)
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.disk.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.disk.scan(visit)
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.disk.scan_staged(visit)
    }

    fn free(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }
}

impl FastMedium for Gate {}

/// The staged bytes that the write-back thread writes to this disk.
struct Gated {
    staged: Box<dyn Staged>,
    pieces: Arc<(Mutex<Pieces>, Condvar)>,
    early_syncs: Arc<AtomicU64>,
}

impl Staged for Gated {
    fn size(&self) -> u64 {
        self.staged.size()
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let (state, changed) = &*self.pieces;
        let mut state = state.lock();
        while state.held {
            state.waits = true;
            changed.notify_all();
            changed.wait(&mut state);
        }
        state.waits = false;
        drop(state);
        self.staged.write(pieces)
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let early_syncs = self.early_syncs.clone();
        Some(Box::new(move || {
            early_syncs.fetch_add(1, Ordering::Relaxed);
        }))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.staged.clear()
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.staged.reader()
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        self.staged.commit(trailer)
    }
}

pub(crate) fn all_fast(limit: u64) -> Options {
    Options {
        default_destination: Destination::Fast,
        ..Options::new(limit)
    }
}

pub(crate) fn over(fast: &MemoryTier, disk: &Gate, options: Options) -> WriteBack {
    WriteBack::open(Arc::new(fast.clone()), Arc::new(disk.clone()), options).unwrap()
}

pub(crate) fn commit(tier: &dyn Tier, digest: &Digest, content: &[u8]) -> Arc<dyn Blob> {
    let mut staged = tier.stage(digest).unwrap();
    assert_eq!(staged.size(), 0);
    for piece in content.chunks(10_000) {
        staged.write(&[piece]).unwrap();
    }
    staged.commit(Trailer::of(content, None)).unwrap()
}

pub(crate) fn content(tier: &dyn Tier, digest: &Digest) -> Option<Vec<u8>> {
    let blob = tier.open(digest).unwrap()?;
    let mut bytes = vec![0; usize::try_from(blob.trailer().size()).unwrap()];
    blob.read_at(0, &mut bytes).unwrap();
    Some(bytes)
}

pub(crate) fn flush(tier: &WriteBack) {
    tier.flush(|| false);
}
