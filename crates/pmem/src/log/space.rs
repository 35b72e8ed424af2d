//! Tracks which segments are free, which are being written, and which of their bytes are live. Does
//! no I/O.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::IndexEntry;
use super::layout::{Head, LINE, PART_LEN, Part, align, base};
use crate::Error;

/// Number of free segments that only compaction may use: it needs space to copy to before it frees
/// any.
const SPARE_SEGMENTS: usize = 2;
/// Denominator of the smallest useful rest of a segment: a smaller one is not written to.
const MIN_REST_DIVISOR: u64 = 64;
/// Denominator of the minimum gain of compaction: at least 1/16 of the victim must be free.
/// Otherwise compaction would copy endlessly for nothing.
const MIN_GAIN_DIVISOR: u64 = 16;
/// Maximum number of candidates that compaction examines. Readers or writers hold the rejected
/// ones.
const MAX_CANDIDATES: usize = 64;

/// The two kinds of appenders. Each has its own segments, so that old and new values are not mixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// New values.
    New,
    /// Values that compaction copies: they have lived long, and probably live on.
    Compacted,
}

/// A segment with exclusive permission to append.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) segment: u32,
    pub(super) sequence: u64,
    /// Position of the next record.
    pub(super) at: u64,
    /// Whether the head of the segment is not durable yet.
    pub(super) fresh: bool,
    /// Whether the memory must be renewed before a write: readers may still use the old bytes, or
    /// the memory was released.
    pub(super) stale: bool,
}

/// The state of a segment after a writer returned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseEnd {
    /// All bytes before this offset are durable or unused: another writer may continue here.
    ContinueAt(u64),
    /// No more bytes are appended.
    Full,
    /// The medium failed there: unused until the log is opened again.
    Retired,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Leased,
    Pooled(Stream, u64),
    Full,
    Retired,
}

struct Segment {
    sequence: u64,
    /// Bytes of live records.
    live: u64,
    state: State,
    /// Committed values with bytes here, by [`Allocation::id`].
    residents: HashMap<u64, Weak<IndexEntry>>,
    /// Whether its memory was released since the last write.
    is_hole: bool,
    /// Whether the medium failed while the segment was leased: it is retired when it is returned.
    is_bad: bool,
}

struct Inner {
    segments: Vec<Segment>,
    /// First in, first out, so that all segments wear evenly.
    free: VecDeque<u32>,
    pools: [Vec<u32>; 2],
    used: u64,
    limit: u64,
    next_sequence: u64,
    next_allocation: u64,
}

/// The segments of a log; see the head of this module. About 100 bytes per segment, and 40 per
/// value in each segment with bytes of it.
pub(super) struct Space {
    segment: u64,
    capacity: u64,
    /// Segments whose bytes were sent by `sendfile` since their memory was renewed: sockets may
    /// still refer to them.
    was_sent: Box<[AtomicBool]>,
    inner: Mutex<Inner>,
}

/// Bytes that are live until this is dropped.
pub(super) struct Allocation {
    space: Arc<Space>,
    id: u64,
    state: Mutex<AllocationState>,
}

#[derive(Default)]
struct AllocationState {
    /// Bytes of the value.
    charged: u64,
    /// Whether these bytes are not part of `used`, because another one of the same value counts
    /// them.
    is_copy: bool,
    /// Live bytes per segment.
    live: Vec<(u32, u64)>,
}

impl Space {
    /// `sequences`: those in the segments' heads, 0 without a head. `next`: greater than all
    /// sequences ever used.
    pub(super) fn new(head: &Head, sequences: Vec<u64>, next: u64) -> Self {
        let count = sequences.len() as u64;
        let capacity = (count - reserve(count)) * (head.segment - LINE);
        // Bytes that an earlier process sent may still be in sockets.
        let was_sent = sequences.iter().map(|sequence| (*sequence > 0).into());
        let was_sent = was_sent.collect();
        let segments = sequences.into_iter().map(|sequence| Segment {
            sequence,
            live: 0,
            // Prevents that a segment is freed while the log is still being read.
            state: State::Leased,
            residents: HashMap::new(),
            is_hole: false,
            is_bad: false,
        });
        Self {
            segment: head.segment,
            capacity,
            was_sent,
            inner: Mutex::new(Inner {
                segments: segments.collect(),
                free: VecDeque::new(),
                pools: [Vec::new(), Vec::new()],
                used: 0,
                limit: capacity,
                next_sequence: next,
                next_allocation: 0,
            }),
        }
    }

    /// Frees all segments without live bytes, except for `bad` ones. Called once, after the log was
    /// read.
    pub(super) fn free_unused(&self, bad: &[u32]) {
        let mut inner = self.lock();
        for index in (0..u32::MAX).take(inner.segments.len()) {
            inner.segments[index as usize].state = match bad.contains(&index) {
                true => State::Retired,
                false => State::Full,
            };
            inner.reclaim(index);
        }
    }

    /// Whether a value has bytes in a segment.
    pub(super) fn is_used(&self, index: u32) -> bool {
        self.lock().segments[index as usize].live > 0
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn used(&self) -> u64 {
        self.lock().used
    }

    pub(super) fn limit(&self) -> u64 {
        self.lock().limit
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.lock().limit = limit.min(self.capacity);
    }

    /// Maximum bytes of a value with `len` content bytes and `tail` bytes of key and meta.
    pub(super) fn footprint(&self, len: u64, tail: u64) -> u64 {
        // A part fills its segment to the end, and an appender gets at least 1/[`MIN_REST_DIVISOR`]
        // of a segment. The part before the last record is an exception: it ends where the list of
        // parts no longer fits.
        let least = (self.segment / MIN_REST_DIVISOR)
            .saturating_sub(LINE)
            .max(LINE);
        let parts = len / least + 1;
        let heads = parts.saturating_mul(LINE + PART_LEN as u64);
        let ends = 3 * LINE;
        len.saturating_add(heads).saturating_add(align(tail) + ends)
    }

    /// Start and end of segment `index`.
    pub(super) fn bounds(&self, index: u32) -> (u64, u64) {
        let begin = base(self.segment) + u64::from(index) * self.segment;
        (begin, begin + self.segment)
    }

    /// Size of a segment in bytes.
    pub(super) fn segment(&self) -> u64 {
        self.segment
    }

    /// Index of the segment with this offset.
    pub(super) fn segment_of(&self, offset: u64) -> Option<u32> {
        u32::try_from(offset.checked_sub(base(self.segment))? / self.segment).ok()
    }

    /// Sequence of the segment with this offset.
    pub(super) fn sequence_of(&self, offset: u64) -> u64 {
        let index = self
            .segment_of(offset)
            .and_then(|index| usize::try_from(index).ok());
        let inner = self.lock();
        index
            .and_then(|index| inner.segments.get(index))
            .map_or(0, |segment| segment.sequence)
    }

    /// Checks whether a value may be started.
    ///
    /// # Errors
    /// [`Error::NoRoom`] at the limit.
    pub(super) fn check_limit(&self) -> Result<(), Error> {
        let inner = self.lock();
        if inner.used >= inner.limit {
            Err(Error::NoRoom)
        } else {
            Ok(())
        }
    }

    /// Whether so few segments are free that writers must compact.
    pub(super) fn is_short(&self) -> bool {
        self.lock().free.len() <= SPARE_SEGMENTS
    }

    /// Leases a segment with room for at least `need` bytes of records: a partly filled one, or a
    /// free one.
    pub(super) fn lease(&self, stream: Stream, need: u64) -> Option<Lease> {
        let mut inner = self.lock();
        let pool = &inner.pools[stream as usize];
        let fits = pool.iter().enumerate().filter_map(|(place, index)| {
            match inner.segments[*index as usize].state {
                State::Pooled(_, at) if self.bounds(*index).1 - at >= need => {
                    Some((self.bounds(*index).1 - at, place))
                }
                _ => None,
            }
        });
        if let Some((room, place)) = fits.min() {
            let index = inner.pools[stream as usize].swap_remove(place);
            let segment = &mut inner.segments[index as usize];
            segment.state = State::Leased;
            let (segment, sequence) = (index, segment.sequence);
            return Some(Lease {
                segment,
                sequence,
                at: self.bounds(index).1 - room,
                fresh: false,
                stale: false,
            });
        }
        let kept = if stream == Stream::New {
            SPARE_SEGMENTS
        } else {
            0
        };
        if inner.free.len() <= kept || need > self.segment - LINE {
            return None;
        }
        let index = inner.free.pop_front()?;
        let sequence = inner.next_sequence;
        inner.next_sequence += 1;
        let segment = &mut inner.segments[index as usize];
        segment.sequence = sequence;
        segment.state = State::Leased;
        Some(Lease {
            segment: index,
            sequence,
            at: self.bounds(index).0 + LINE,
            fresh: true,
            stale: segment.is_hole || self.was_sent[index as usize].load(Ordering::Relaxed),
        })
    }

    /// Notes that bytes at this offset are passed to the kernel, which may use them longer than the
    /// value is held.
    pub(super) fn mark_sent(&self, offset: u64) {
        let index = self.segment_of(offset).unwrap_or(u32::MAX);
        if let Some(was_sent) = usize::try_from(index)
            .ok()
            .and_then(|index| self.was_sent.get(index))
        {
            // The thread that leases the segment sees this: the value is released first, under the
            // lock.
            was_sent.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the memory of a leased segment is new.
    pub(super) fn mark_renewed(&self, index: u32) {
        self.was_sent[index as usize].store(false, Ordering::Relaxed);
        self.lock().segments[index as usize].is_hole = false;
    }

    /// Takes a free segment whose memory was not released yet, to release it. Spares the segments
    /// that compaction needs.
    pub(super) fn take_unreleased(&self) -> Option<u32> {
        let mut inner = self.lock();
        if inner.free.len() <= SPARE_SEGMENTS {
            return None;
        }
        let segments = &inner.segments;
        let mut free = inner.free.iter();
        let place = free.position(|index| !segments[*index as usize].is_hole)?;
        let index = inner.free.remove(place)?;
        inner.segments[index as usize].state = State::Leased;
        Some(index)
    }

    /// Notes that the memory of a segment was released, and frees the segment.
    pub(super) fn mark_released(&self, index: u32) {
        let mut inner = self.lock();
        let segment = &mut inner.segments[index as usize];
        segment.is_hole = true;
        if segment.is_bad {
            segment.state = State::Retired;
        } else {
            segment.state = State::Free;
            inner.free.push_back(index);
        }
    }

    /// Ends a lease.
    pub(super) fn give_back(&self, index: u32, stream: Stream, end_of_lease: LeaseEnd) {
        let end = self.bounds(index).1;
        let mut inner = self.lock();
        let end_of_lease = match inner.segments[index as usize].is_bad {
            true => LeaseEnd::Retired,
            false => end_of_lease,
        };
        inner.segments[index as usize].state = match end_of_lease {
            LeaseEnd::ContinueAt(at) if at < end && end - at >= self.segment / MIN_REST_DIVISOR => {
                inner.pools[stream as usize].push(index);
                State::Pooled(stream, at)
            }
            LeaseEnd::ContinueAt(_) | LeaseEnd::Full => State::Full,
            LeaseEnd::Retired => State::Retired,
        };
        inner.reclaim(index);
    }

    /// Retires the segment with `offset`, where the medium failed: it is not written again until
    /// the log is opened again.
    pub(super) fn retire(&self, offset: u64) {
        let Some(index) = self.segment_of(offset) else {
            return;
        };
        let mut inner = self.lock();
        match inner.segments[index as usize].state {
            State::Pooled(stream, _) => {
                inner.pools[stream as usize].retain(|pooled| *pooled != index);
            }
            State::Free => inner.free.retain(|free| *free != index),
            State::Full => {}
            // Its current writer continues, or fails itself; no other writer follows.
            State::Leased => {
                inner.segments[index as usize].is_bad = true;
                return;
            }
            State::Retired => return,
        }
        inner.segments[index as usize].state = State::Retired;
    }

    /// The segment with the fewest live bytes that compaction can free, with its values. Skips
    /// segments that readers or writers hold. Stops appends to it.
    pub(super) fn victim(&self) -> Option<(u32, Vec<Arc<IndexEntry>>)> {
        let mut inner = self.lock();
        let most = (self.segment - LINE) / MIN_GAIN_DIVISOR * (MIN_GAIN_DIVISOR - 1);
        let mut order: Vec<(u64, u32)> = (0u32..)
            .zip(&inner.segments)
            .filter(|(_, segment)| {
                matches!(segment.state, State::Full | State::Pooled(Stream::New, _))
            })
            .filter(|(_, segment)| segment.live > 0 && segment.live <= most)
            .map(|(index, segment)| (segment.live, index))
            .collect();
        order.sort_unstable();
        let mut passed = Vec::new();
        let mut found = None;
        for (live, index) in order.into_iter().take(MAX_CANDIDATES) {
            let values: Vec<_> = inner.segments[index as usize]
                .residents
                .values()
                .filter_map(Weak::upgrade)
                .collect();
            // The index has one reference, this list the other. Fewer claimed than live bytes: a
            // writer has some, or a reader of a removed value.
            let alone = values.iter().all(|value| Arc::strong_count(value) == 2);
            let claimed: u64 = values
                .iter()
                .map(|value| value.allocation.live_bytes(index))
                .sum();
            if alone && claimed == live {
                found = Some((index, values));
                break;
            }
            passed.push(values);
        }
        if let Some((index, _)) = &found {
            inner.pools[Stream::New as usize].retain(|pooled| pooled != index);
            inner.segments[*index as usize].state = State::Full;
        }
        drop(inner);
        // If a value was released meanwhile, its last reference is here, and dropping it takes the
        // lock.
        drop(passed);
        found
    }

    /// Registers `value` in all segments with bytes of it.
    pub(super) fn register_resident(&self, value: &Arc<IndexEntry>) {
        let live = value.allocation.state().live.clone();
        let mut inner = self.lock();
        for (index, _) in live {
            let residents = &mut inner.segments[index as usize].residents;
            residents.insert(value.allocation.id, Arc::downgrade(value));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Inner {
    /// Frees a segment without live bytes.
    fn reclaim(&mut self, index: u32) {
        let segment = &mut self.segments[index as usize];
        if segment.live > 0 || !matches!(segment.state, State::Full | State::Pooled(..)) {
            return;
        }
        if let State::Pooled(stream, _) = segment.state {
            self.pools[stream as usize].retain(|pooled| *pooled != index);
        }
        segment.state = State::Free;
        segment.residents = HashMap::new();
        self.free.push_back(index);
    }
}

impl Allocation {
    pub(super) fn new(space: &Arc<Space>) -> Arc<Self> {
        let mut inner = space.lock();
        inner.next_allocation += 1;
        Arc::new(Self {
            space: Arc::clone(space),
            id: inner.next_allocation,
            state: Mutex::default(),
        })
    }

    /// Charges bytes that are about to be written.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when they would exceed the limit.
    pub(super) fn charge(&self, bytes: u64, limited: bool) -> Result<(), Error> {
        let mut inner = self.space.lock();
        let used = inner.used.saturating_add(bytes);
        if limited && used > inner.limit {
            return Err(Error::NoRoom);
        }
        let mut state = self.state();
        if !state.is_copy {
            inner.used = used;
        }
        state.charged += bytes;
        Ok(())
    }

    /// Excludes the charged bytes from `used`: they are a copy of a value that counts already.
    /// Otherwise writers would fail during compaction.
    pub(super) fn set_copy(&self) {
        self.state().is_copy = true;
    }

    /// Counts this copy from now on, instead of the first one.
    pub(super) fn replace_first(&self, first: &Self) {
        let mut inner = self.space.lock();
        let before = std::mem::take(&mut first.state().charged);
        let mut state = self.state();
        state.is_copy = false;
        inner.used = inner.used.saturating_sub(before) + state.charged;
    }

    /// Number of charged bytes.
    pub(super) fn charged(&self) -> u64 {
        self.state().charged
    }

    /// Marks `bytes` of a segment as live.
    pub(super) fn mark_live(&self, index: u32, bytes: u64) {
        let mut inner = self.space.lock();
        inner.segments[index as usize].live += bytes;
        self.state().live.push((index, bytes));
    }

    /// Marks a part as live, whichever value wrote it.
    pub(super) fn mark_part_live(&self, part: &Part) {
        self.mark_live_at(part.offset, part.footprint());
    }

    /// Marks `bytes` as live in the segment with `offset`.
    pub(super) fn mark_live_at(&self, offset: u64, bytes: u64) {
        if let Some(index) = self.space.segment_of(offset) {
            self.mark_live(index, bytes);
        }
    }

    fn live_bytes(&self, index: u32) -> u64 {
        let state = self.state();
        state
            .live
            .iter()
            .filter(|(segment, _)| *segment == index)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    fn state(&self) -> MutexGuard<'_, AllocationState> {
        self.state.lock()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.state());
        let mut inner = self.space.lock();
        if !state.is_copy {
            inner.used = inner.used.saturating_sub(state.charged);
        }
        for (index, bytes) in state.live {
            let segment = &mut inner.segments[index as usize];
            segment.live = segment.live.saturating_sub(bytes);
            segment.residents.remove(&self.id);
            inner.reclaim(index);
        }
    }
}

/// Number of segments beyond the capacity: those for compaction, and space for dead bytes between
/// live ones. At a fill level of 31/32, each compacted segment frees at least 1/32 of itself.
fn reserve(segments: u64) -> u64 {
    (segments / 32).max(4)
}
