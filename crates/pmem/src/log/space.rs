//! The space of a log: which segments are free, which segments are being written, and how many
//! bytes of each segment are live (of values that still exist). Makes no I/O.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::IndexEntry;
use super::layout::{Head, LINE, PART_LEN, Part, align, base};
use crate::Error;

/// Number of free segments that only compaction may use: compaction needs space for its copies
/// before it can free a segment.
const SPARE_SEGMENTS: usize = 2;
/// Denominator of the smallest useful rest of a segment: if less than 1/64 of a segment is
/// unwritten, nothing more is written to the segment.
const MIN_REST_DIVISOR: u64 = 64;
/// Denominator of the minimum gain of compaction: at least 1/16 of the victim must be free. With a
/// smaller gain, compaction would copy bytes and free hardly any space.
const MIN_GAIN_DIVISOR: u64 = 16;
/// Maximum number of segments that compaction examines. Compaction rejects a segment if readers or
/// writers hold its values.
const MAX_CANDIDATES: usize = 64;

/// The two kinds of appenders. Each kind has its own segments, so that old and new values are not
/// mixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// Appends values that callers write.
    New,
    /// Appends values that compaction copies. These values have existed for long, and will probably
    /// exist for long.
    Compacted,
}

/// A segment, with the exclusive permission to append to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) segment: u32,
    pub(super) sequence: u64,
    /// Position at which the next record is written.
    pub(super) at: u64,
    /// Whether the head of the segment is not durable yet.
    pub(super) fresh: bool,
    /// Whether the segment's memory must be replaced before a write, because readers may still use
    /// the old bytes, or because the memory was released.
    pub(super) stale: bool,
}

/// The state in which a writer returns a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseEnd {
    /// All bytes before this offset are durable or unused: another writer may continue at this
    /// offset.
    ContinueAt(u64),
    /// No more bytes are appended to this segment.
    Full,
    /// The medium failed in this segment. The segment is not used until the log is opened again.
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
    /// Number of bytes of live records.
    live: u64,
    state: State,
    /// Committed values that have bytes in this segment, by [`Allocation::id`].
    residents: HashMap<u64, Weak<IndexEntry>>,
    /// Whether the memory of the segment was released after the last write.
    is_hole: bool,
    /// Whether the medium failed while the segment was leased. The segment is retired when the
    /// writer returns it.
    is_bad: bool,
}

struct Inner {
    segments: Vec<Segment>,
    /// Free segments. The segment that was freed first is used first, so that all segments wear
    /// evenly.
    free: VecDeque<u32>,
    pools: [Vec<u32>; 2],
    used: u64,
    limit: u64,
    next_sequence: u64,
    next_allocation: u64,
}

/// The segments of a log, as the documentation of this module describes. Takes about 100 bytes of
/// memory per segment, and 40 bytes for each pair of a segment and a value in it.
pub(super) struct Space {
    segment: u64,
    capacity: u64,
    /// For each segment, whether its bytes were sent by `sendfile` after its memory was last
    /// renewed. Sockets may still refer to these bytes.
    was_sent: Box<[AtomicBool]>,
    inner: Mutex<Inner>,
}

/// Bytes of one value. The bytes are live until this value is dropped.
pub(super) struct Allocation {
    space: Arc<Space>,
    id: u64,
    state: Mutex<AllocationState>,
}

#[derive(Default)]
struct AllocationState {
    /// Number of bytes of the value that count as used.
    charged: u64,
    /// Whether `used` does not include these bytes, because another allocation of the same value
    /// counts them.
    is_copy: bool,
    /// Number of live bytes in each segment.
    live: Vec<(u32, u64)>,
}

impl Space {
    /// Creates the space. `sequences` contains the sequences in the segments' heads, with 0 for a
    /// segment without a head. `next` is greater than all sequences that were ever used.
    pub(super) fn new(head: &Head, sequences: Vec<u64>, next: u64) -> Self {
        let count = sequences.len() as u64;
        let capacity = (count - reserve(count)) * (head.segment - LINE);
        // Sockets may still refer to bytes that an earlier process sent.
        let was_sent = sequences.iter().map(|sequence| (*sequence > 0).into());
        let was_sent = was_sent.collect();
        let segments = sequences.into_iter().map(|sequence| Segment {
            sequence,
            live: 0,
            // Segments start in this state, so that none is freed while the log is still being
            // read.
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

    /// Frees all segments without live bytes, except for `bad` segments. Must be called once, after
    /// the log was read.
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

    /// Whether a value has bytes in this segment.
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

    /// Returns the maximum number of bytes of a value with `len` content bytes and `tail` bytes of
    /// key and meta.
    pub(super) fn footprint(&self, len: u64, tail: u64) -> u64 {
        // A part fills its segment to the end, and an appender gets at least 1/[`MIN_REST_DIVISOR`]
        // of a segment. The part before the last record is an exception: it ends earlier if the
        // list of parts would not fit behind this part.
        let least = (self.segment / MIN_REST_DIVISOR)
            .saturating_sub(LINE)
            .max(LINE);
        let parts = len / least + 1;
        let heads = parts.saturating_mul(LINE + PART_LEN as u64);
        let ends = 3 * LINE;
        len.saturating_add(heads).saturating_add(align(tail) + ends)
    }

    /// Returns start and end of segment `index`.
    pub(super) fn bounds(&self, index: u32) -> (u64, u64) {
        let begin = base(self.segment) + u64::from(index) * self.segment;
        (begin, begin + self.segment)
    }

    /// Returns the size of a segment in bytes.
    pub(super) fn segment(&self) -> u64 {
        self.segment
    }

    /// Returns the index of the segment that contains this offset.
    pub(super) fn segment_of(&self, offset: u64) -> Option<u32> {
        u32::try_from(offset.checked_sub(base(self.segment))? / self.segment).ok()
    }

    /// Returns the sequence of the segment that contains this offset.
    pub(super) fn sequence_of(&self, offset: u64) -> u64 {
        let index = self
            .segment_of(offset)
            .and_then(|index| usize::try_from(index).ok());
        let inner = self.lock();
        index
            .and_then(|index| inner.segments.get(index))
            .map_or(0, |segment| segment.sequence)
    }

    /// Checks whether the limit allows another value.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when the limit is reached.
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

    /// Leases a segment with room for at least `need` bytes of records: a partly filled segment or
    /// a free segment.
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

    /// Records that bytes at this offset are passed to the kernel, which may use these bytes after
    /// the handle of the value is dropped.
    pub(super) fn mark_sent(&self, offset: u64) {
        let index = self.segment_of(offset).unwrap_or(u32::MAX);
        if let Some(was_sent) = usize::try_from(index)
            .ok()
            .and_then(|index| self.was_sent.get(index))
        {
            // A `Relaxed` store is enough: the value is released later under the lock, so the
            // thread that leases the segment next sees this store.
            was_sent.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the memory of a leased segment is new.
    pub(super) fn mark_renewed(&self, index: u32) {
        self.was_sent[index as usize].store(false, Ordering::Relaxed);
        self.lock().segments[index as usize].is_hole = false;
    }

    /// Takes a free segment whose memory is not released yet, so that the caller can release it.
    /// Never takes the segments that compaction needs.
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

    /// Records that the memory of a segment was released, and frees the segment.
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

    /// Ends the lease of a segment.
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

    /// Retires the segment that contains `offset`, because the medium failed there. The segment is
    /// not written until the log is opened again.
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
            // The current writer of the segment continues, unless it fails, too. No other writer
            // gets the segment.
            State::Leased => {
                inner.segments[index as usize].is_bad = true;
                return;
            }
            State::Retired => return,
        }
        inner.segments[index as usize].state = State::Retired;
    }

    /// Returns the segment with the fewest live bytes that compaction can free, and the values in
    /// this segment. Skips segments whose values readers or writers hold. After this call, no
    /// writer appends to the returned segment.
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
            // A value that no reader holds has two references: in the index and in this list. If
            // these values have fewer bytes than are live, a writer or a reader of a removed value
            // has the other bytes.
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
        // If the index has dropped a value in the meantime, this list has the last reference to it.
        // The drop of the last reference takes the lock, so the lock is released before the list is
        // dropped.
        drop(passed);
        found
    }

    /// Registers `value` in all segments that contain bytes of it.
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
    /// Frees a segment if it has no live bytes.
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

    /// Adds bytes that will be written to `used`.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when the bytes would exceed the limit.
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

    /// Excludes the charged bytes from `used`, because they are a copy of a value that `used`
    /// already includes. If the copied bytes counted twice, writers could reach the limit during
    /// compaction.
    pub(super) fn set_copy(&self) {
        self.state().is_copy = true;
    }

    /// After this call, `used` counts this copy of the value in place of the first copy.
    pub(super) fn replace_first(&self, first: &Self) {
        let mut inner = self.space.lock();
        let before = std::mem::take(&mut first.state().charged);
        let mut state = self.state();
        state.is_copy = false;
        inner.used = inner.used.saturating_sub(before) + state.charged;
    }

    /// Returns the number of bytes that this allocation added to `used`.
    pub(super) fn charged(&self) -> u64 {
        self.state().charged
    }

    /// Marks `bytes` bytes of a segment as live.
    pub(super) fn mark_live(&self, index: u32, bytes: u64) {
        let mut inner = self.space.lock();
        inner.segments[index as usize].live += bytes;
        self.state().live.push((index, bytes));
    }

    /// Marks a part as live, regardless of which value wrote it.
    pub(super) fn mark_part_live(&self, part: &Part) {
        self.mark_live_at(part.offset, part.footprint());
    }

    /// Marks `bytes` bytes as live in the segment that contains `offset`.
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

/// Returns the number of segments that do not count towards the capacity: the segments for
/// compaction, and space for dead bytes between live bytes. At a fill level of 31/32, each
/// compacted segment frees at least 1/32 of its bytes.
fn reserve(segments: u64) -> u64 {
    (segments / 32).max(4)
}
