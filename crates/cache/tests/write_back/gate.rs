//! Test helpers: a disk on which a test can block the write-back thread, and functions that set up
//! both tiers.

use parking_lot::{Condvar, Mutex};
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{Blob, Options, Tier, Trailer, WriteBack};
use pierhead_oci::Digest;
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};
use pierhead_testkit::wait::TIME_LIMIT;

pub(crate) const AMPLE_CAPACITY: u64 = 64 << 20;

/// A disk that blocks the write-back thread while the gate is closed.
#[derive(Clone)]
pub(crate) struct Gate {
    disk: Faulty,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Whether the write-back thread must not begin a blob.
    is_shut: bool,
    /// Whether the write-back thread must not write a piece.
    holds_pieces: bool,
    /// Whether the write-back thread waits before a piece.
    waits: bool,
    /// The blob that the disk refuses to store.
    refused: Option<Digest>,
    /// Number of syncs by the write-back thread before the end of a blob.
    early_syncs: u64,
}

impl Default for Gate {
    fn default() -> Self {
        let disk = Faulty::new(Arc::new(MemoryTier::default()));
        disk.set_free(1 << 30);
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let shared = state.clone();
        disk.on_call(move |op, digest| pass(&shared, op, digest));
        Self { disk, state }
    }
}

/// Lets a call to the disk pass: blocks the write-back thread as the test wants.
fn pass((state, changed): &(Mutex<State>, Condvar), op: Op, digest: &Digest) -> io::Result<()> {
    let is_write_back = std::thread::current().name() == Some("tier-write-back");
    let mut state = state.lock();
    match op {
        Op::Stage => {
            if is_write_back {
                changed.wait_while(&mut state, |state| state.is_shut);
            }
            if state.refused == Some(*digest) {
                return Err(io::Error::other("this one is refused"));
            }
        }
        Op::Write if is_write_back => {
            while state.holds_pieces {
                state.waits = true;
                changed.notify_all();
                changed.wait(&mut state);
            }
            state.waits = false;
        }
        Op::EarlySync if is_write_back => state.early_syncs += 1,
        _ => {}
    }
    Ok(())
}

impl Deref for Gate {
    type Target = Faulty;

    fn deref(&self) -> &Faulty {
        &self.disk
    }
}

impl Gate {
    pub(crate) fn shut() -> Self {
        let gate = Self::default();
        gate.set(true);
        gate
    }

    /// Returns the disk, as a tier.
    pub(crate) fn tier(&self) -> Arc<Faulty> {
        Arc::new(self.disk.clone())
    }

    pub(crate) fn set(&self, shut: bool) {
        self.state.0.lock().is_shut = shut;
        self.state.1.notify_all();
    }

    /// Makes all later attempts to store one blob fail.
    pub(crate) fn refuse(&self, digest: Digest) {
        self.state.0.lock().refused = Some(digest);
    }

    /// Blocks the write-back thread before each piece.
    pub(crate) fn hold_pieces(&self, held: bool) {
        self.state.0.lock().holds_pieces = held;
        self.state.1.notify_all();
    }

    /// Waits until the write-back thread is blocked before a piece.
    pub(crate) fn until_a_piece(&self) {
        let (state, changed) = &*self.state;
        let waited = changed.wait_while_for(&mut state.lock(), |it| !it.waits, TIME_LIMIT);
        assert!(!waited.timed_out(), "no thread writes a piece");
    }

    /// Returns the number of syncs by the write-back thread before the end of a blob.
    pub(crate) fn early_syncs(&self) -> u64 {
        self.state.0.lock().early_syncs
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.disk.open(digest).unwrap().is_some()
    }
}

pub(crate) fn all_fast(limit: u64) -> Options {
    Options {
        default_destination: Destination::Fast,
        ..Options::new(limit)
    }
}

pub(crate) fn over(fast: &MemoryTier, disk: &Gate, options: Options) -> WriteBack {
    WriteBack::open(Arc::new(fast.clone()), disk.tier(), options).unwrap()
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
