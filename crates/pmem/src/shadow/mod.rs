//! A simulated medium for tests of power cuts. A simulated power cut loses the bytes that were not
//! flushed and fenced.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;

use crate::medium::{check_range, check_word};
use crate::{Class, Error, Medium};

const WORD: u64 = 8;
const LINE: u64 = 64;

/// Memory that tracks which 8-byte words a power cut may lose. Clones share one memory.
///
/// This medium guarantees less than the manuals of the hardware guarantee:
///
/// 1. A word that was stored several times after it was last durable may survive with any of these
///    values, independently of other words.
/// 2. A line that was never flushed may survive, because a CPU cache may evict the line to memory.
/// 3. A flush without a fence guarantees nothing.
/// 4. A fence completes only the flushes of its own [`lane`](Self::lane), in the same way as
///    `sfence` covers only its own CPU.
#[derive(Clone)]
pub struct ShadowMedium {
    state: Arc<Mutex<State>>,
}

/// A place in the code with a flush or a fence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Site {
    /// `true` for a fence, `false` for a flush.
    pub fence: bool,
    /// The path of the source file.
    pub file: &'static str,
    /// The number of the line in the source file.
    pub line: u32,
}

/// A function that is called before each flush and each fence takes effect. Tests cut the power at
/// these moments.
pub type Probe = Arc<dyn Fn(&ShadowMedium) + Send + Sync>;

#[derive(Clone)]
struct State {
    /// The bytes that readers see.
    visible: Vec<u8>,
    /// The bytes that certainly survive a power cut.
    durable: Vec<u8>,
    /// For each word number, the values that were stored after the word was last durable, in order.
    pending: BTreeMap<u64, Pending>,
    /// Words that each lane has flushed but not fenced.
    flushing: BTreeMap<u32, BTreeSet<u64>>,
    lane: u32,
    sites: BTreeMap<Site, u64>,
    ignored: BTreeSet<Site>,
    accesses: u64,
    fail_at: Option<u64>,
    /// The lines that are unreadable.
    poison: BTreeSet<u64>,
    probe: Option<Probe>,
}

#[derive(Clone, Default)]
struct Pending {
    values: Vec<[u8; 8]>,
    /// Number of values that each lane has flushed.
    flushed: BTreeMap<u32, usize>,
}

fn failed(offset: u64) -> Error {
    Error::Medium {
        path: PathBuf::from("shadow"),
        offset,
    }
}

impl ShadowMedium {
    /// Creates a medium of `len` zero bytes, which are all durable.
    pub fn new(len: usize) -> Self {
        Self::of(vec![0; len.next_multiple_of(8)])
    }

    /// Creates a medium of these bytes, which are all durable.
    pub fn of(bytes: Vec<u8>) -> Self {
        let state = State {
            durable: bytes.clone(),
            visible: bytes,
            pending: BTreeMap::new(),
            flushing: BTreeMap::new(),
            lane: 0,
            sites: BTreeMap::new(),
            ignored: BTreeSet::new(),
            accesses: 0,
            fail_at: None,
            poison: BTreeSet::new(),
            probe: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns the medium in its state after a power cut. The seed chooses one of four ways: all
    /// words that are not durable are lost, none is lost, the loss is random for each word, or the
    /// loss is random for each line. Ignored sites stay ignored.
    pub fn cut(&self, seed: u64) -> Self {
        let state = self.lock();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut image = state.durable.clone();
        let mut line = (u64::MAX, false);
        for (word, pending) in &state.pending {
            if line.0 != word * WORD / LINE {
                line = (word * WORD / LINE, random.bool());
            }
            let value = match seed % 4 {
                0 => None,
                1 => pending.values.last(),
                2 => pending.values.get(random.usize(..=pending.values.len())),
                _ => pending.values.last().filter(|_| line.1),
            };
            if let Some(value) = value {
                put(&mut image, word * WORD, value);
            }
        }
        let left = Self::of(image);
        left.lock().ignored = state.ignored.clone();
        left
    }

    /// Returns an independent copy with all words, whether they are durable or not. The copy is the
    /// state after the process was killed.
    pub fn fork(&self) -> Self {
        let mut state = self.lock().clone();
        state.probe = None;
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns the bytes that readers see.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().visible.clone()
    }

    /// Sets the lane (simulated CPU) of all later calls.
    pub fn lane(&self, lane: u32) {
        self.lock().lane = lane;
    }

    /// Returns the number of calls of each flush and each fence in the code, including ignored
    /// flushes and fences.
    pub fn sites(&self) -> BTreeMap<Site, u64> {
        self.lock().sites.clone()
    }

    /// Makes flushes or fences of this site ineffective.
    pub fn ignore(&self, site: Site) {
        self.lock().ignored.insert(site);
    }

    /// Makes the n-th access after this call fail, and all later accesses, too, whatever their kind
    /// is. `None` ends the failure.
    pub fn fail_after(&self, accesses: Option<u64>) {
        let mut state = self.lock();
        state.fail_at = accesses.map(|accesses| state.accesses + accesses);
    }

    /// Makes the line at `offset` unreadable. After that, [`Medium::inspect`] fails for this line,
    /// and [`Medium::read`] of the line makes the whole medium fail.
    pub fn poison(&self, offset: u64) {
        self.lock().poison.insert(offset / LINE);
    }

    /// Returns the number of accesses so far.
    pub fn accesses(&self) -> u64 {
        self.lock().accesses
    }

    /// Sets the callback that runs before each flush and fence. The callback may cut, fork and
    /// read, but not write.
    pub fn probe(&self, probe: Option<Probe>) {
        self.lock().probe = probe;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn access(&self, offset: u64, len: u64) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.lock();
        check_range(offset, len, state.visible.len() as u64)?;
        state.accesses += 1;
        if state.fail_at.is_some_and(|at| state.accesses > at) {
            return Err(failed(offset));
        }
        Ok(state)
    }

    /// Counts a flush or a fence. Returns whether the flush or fence has an effect.
    fn arrive(&self, fence: bool, location: &'static Location<'static>) -> bool {
        let site = Site {
            fence,
            file: location.file(),
            line: location.line(),
        };
        let probe = {
            let mut state = self.lock();
            *state.sites.entry(site).or_default() += 1;
            state.probe.clone()
        };
        if let Some(probe) = probe {
            probe(self);
        }
        !self.lock().ignored.contains(&site)
    }
}

impl Medium for ShadowMedium {
    fn len(&self) -> u64 {
        self.lock().visible.len() as u64
    }

    fn class(&self) -> Class {
        Class::Pmem
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.inspect(offset, buf).inspect_err(|error| {
            if matches!(error, Error::Medium { .. }) {
                self.fail_after(Some(0));
            }
        })
    }

    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let state = self.access(offset, buf.len() as u64)?;
        let lines = offset / LINE..(offset + buf.len() as u64).div_ceil(LINE);
        if let Some(line) = state.poison.range(lines).next() {
            return Err(failed(line * LINE));
        }
        let from = at(offset);
        buf.copy_from_slice(&state.visible[from..from + buf.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.access(offset, bytes.len() as u64)?;
        let from = at(offset);
        state.visible[from..from + bytes.len()].copy_from_slice(bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let State {
            visible, pending, ..
        } = &mut *state;
        for word in offset / WORD..=(offset + bytes.len() as u64 - 1) / WORD {
            if let Some(value) = visible[at(word * WORD)..].first_chunk() {
                pending.entry(word).or_default().values.push(*value);
            }
        }
        Ok(())
    }

    fn store(&self, offset: u64, word: u64) -> Result<(), Error> {
        check_word(offset, self.len())?;
        self.write(offset, &word.to_le_bytes())
    }

    /// Writes zeros over the bytes. A power cut may lose these zeros, like any write.
    fn renew(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.write(offset, &vec![0; at(len)])
    }

    #[track_caller]
    fn flush(&self, offset: u64, len: u64) -> Result<(), Error> {
        let counts = self.arrive(false, Location::caller());
        let mut state = self.access(offset, len)?;
        if !counts || len == 0 {
            return Ok(());
        }
        let words = offset / LINE * LINE / WORD..(offset + len).next_multiple_of(LINE) / WORD;
        let State {
            pending,
            flushing,
            lane,
            ..
        } = &mut *state;
        let flushing = flushing.entry(*lane).or_default();
        for (word, pending) in pending.range_mut(words) {
            pending.flushed.insert(*lane, pending.values.len());
            flushing.insert(*word);
        }
        Ok(())
    }

    #[track_caller]
    fn fence(&self) -> Result<(), Error> {
        let counts = self.arrive(true, Location::caller());
        let mut state = self.access(0, 0)?;
        if !counts {
            return Ok(());
        }
        let State {
            pending,
            flushing,
            durable,
            lane,
            ..
        } = &mut *state;
        for word in flushing.remove(lane).unwrap_or_default() {
            let Some(of) = pending.get_mut(&word) else {
                continue;
            };
            let count = of.flushed.remove(lane).unwrap_or(0);
            let Some(value) = count.checked_sub(1).and_then(|last| of.values.get(last)) else {
                continue;
            };
            put(durable, word * WORD, value);
            of.values.drain(..count);
            of.flushed
                .values_mut()
                .for_each(|other| *other = other.saturating_sub(count));
            if of.values.is_empty() {
                pending.remove(&word);
            }
        }
        Ok(())
    }
}

fn put(bytes: &mut [u8], offset: u64, value: &[u8; 8]) {
    let from = at(offset);
    bytes[from..from + 8].copy_from_slice(value);
}

/// Converts an offset to an index. An offset that is too large for an index becomes an index that
/// bounds checks reject.
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
