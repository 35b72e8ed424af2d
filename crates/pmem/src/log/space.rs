//! Which segments are free, who appends to which, and what of each is alive. Touches no medium.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Stored;
use super::layout::{Head, LINE, PART, Part, align, base};
use crate::Error;

/// Free segments that only compaction may take: it needs room to copy to before it frees any.
const SPARE: usize = 2;
/// A leftover smaller than 1/64 of a segment is not worth an appender.
const LEFTOVER: u64 = 64;
/// A victim must free at least 1/16 of its bytes, or compaction would copy without end for nothing.
const GAIN: u64 = 16;
/// Victims looked at before compaction gives up: those before were held by readers or writers.
const CANDIDATES: usize = 64;

/// Who appends. Each has segments of its own, so that what was copied once is not mixed with what
/// is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// Values from outside.
    Fresh,
    /// What compaction copies: it has lived long, and probably goes on to.
    Moved,
}

/// A segment to append to, exclusively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) segment: u32,
    pub(super) sequence: u64,
    /// Where the next record begins.
    pub(super) at: u64,
    /// Whether the segment's head is still to be made durable.
    pub(super) fresh: bool,
    /// Whether its memory must be renewed before it is written: others may read what lies there, or
    /// there is none.
    pub(super) stale: bool,
}

/// What a writer leaves a segment as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leave {
    /// All before this offset is durable, or never mattered: somebody may go on from here.
    At(u64),
    /// Nothing more is appended.
    Full,
    /// The medium failed there: not used again before the log is opened again.
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
    /// Bytes of records that somebody holds.
    live: u64,
    state: State,
    /// Committed values with bytes here, by [`Hold::id`].
    residents: HashMap<u64, Weak<Stored>>,
    /// Whether its memory was given back since it was last written.
    is_hole: bool,
    /// The medium failed there while somebody had it: retired once it is given back.
    is_bad: bool,
}

struct Inner {
    segments: Vec<Segment>,
    /// First in, first out: every segment wears alike.
    free: VecDeque<u32>,
    pools: [Vec<u32>; 2],
    used: u64,
    limit: u64,
    next_sequence: u64,
    next_hold: u64,
}

/// See the head of this module. About 100 bytes a segment, and 40 a value in each segment that it
/// has bytes in.
pub(super) struct Space {
    segment: u64,
    capacity: u64,
    /// Segments of which bytes were lent since their memory was new: whoever has them may have them
    /// still.
    lent: Box<[AtomicBool]>,
    inner: Mutex<Inner>,
}

/// Bytes of segments that are not used for anything else before this is dropped.
pub(super) struct Hold {
    space: Arc<Space>,
    id: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Bytes that it takes.
    charged: u64,
    /// Whether they are not counted in `used`: another hold has the same value, and has it counted.
    is_copy: bool,
    /// Counted as live: segment and bytes.
    claims: Vec<(u32, u64)>,
}

impl Space {
    /// `sequences` are those of the segments' heads, nought where there is none; `next` is above
    /// all that were ever given.
    pub(super) fn new(head: &Head, sequences: Vec<u64>, next: u64) -> Self {
        let count = sequences.len() as u64;
        let capacity = (count - reserve(count)) * (head.segment - LINE);
        // What an earlier process sent may wait in sockets that have outlived it.
        let lent = sequences.iter().map(|sequence| (*sequence > 0).into());
        let lent = lent.collect();
        let segments = sequences.into_iter().map(|sequence| Segment {
            sequence,
            live: 0,
            // Or what is let go while the rest is still to be read would free it.
            state: State::Leased,
            residents: HashMap::new(),
            is_hole: false,
            is_bad: false,
        });
        Self {
            segment: head.segment,
            capacity,
            lent,
            inner: Mutex::new(Inner {
                segments: segments.collect(),
                free: VecDeque::new(),
                pools: [Vec::new(), Vec::new()],
                used: 0,
                limit: capacity,
                next_sequence: next,
                next_hold: 0,
            }),
        }
    }

    /// What nobody has claimed by now is free, but for `bad` segments. Called once, when the log
    /// has been read.
    pub(super) fn settle(&self, bad: &[u32]) {
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

    /// The most that a value takes of `len` bytes and so many of key and meta.
    pub(super) fn footprint(&self, len: u64, tail: u64) -> u64 {
        // A part goes to the end of its segment, of which an appender gets a LEFTOVERth at least;
        // but for the one before the last record, which ends where the list of parts no longer
        // fits.
        let least = (self.segment / LEFTOVER).saturating_sub(LINE).max(LINE);
        let parts = len / least + 1;
        let heads = parts.saturating_mul(LINE + PART as u64);
        let ends = 3 * LINE;
        len.saturating_add(heads).saturating_add(align(tail) + ends)
    }

    /// Where segment `index` begins, and where it ends.
    pub(super) fn bounds(&self, index: u32) -> (u64, u64) {
        let begin = base(self.segment) + u64::from(index) * self.segment;
        (begin, begin + self.segment)
    }

    /// Bytes of a segment.
    pub(super) fn segment(&self) -> u64 {
        self.segment
    }

    /// Which segment an offset lies in.
    pub(super) fn segment_of(&self, offset: u64) -> Option<u32> {
        u32::try_from(offset.checked_sub(base(self.segment))? / self.segment).ok()
    }

    /// The sequence of the segment that this offset lies in.
    pub(super) fn sequence_of(&self, offset: u64) -> u64 {
        let index = self
            .segment_of(offset)
            .and_then(|index| usize::try_from(index).ok());
        let inner = self.lock();
        index
            .and_then(|index| inner.segments.get(index))
            .map_or(0, |segment| segment.sequence)
    }

    /// Whether a value may be begun.
    ///
    /// # Errors
    /// [`Error::NoRoom`] at the limit.
    pub(super) fn admit(&self) -> Result<(), Error> {
        let inner = self.lock();
        if inner.used >= inner.limit {
            Err(Error::NoRoom)
        } else {
            Ok(())
        }
    }

    /// Whether fewer segments are free than writers may take.
    pub(super) fn is_short(&self) -> bool {
        self.lock().free.len() <= SPARE
    }

    /// A segment with room for at least `need` bytes of records: one that was begun, or a free one.
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
        let kept = if stream == Stream::Fresh { SPARE } else { 0 };
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
            stale: segment.is_hole || self.lent[index as usize].load(Ordering::Relaxed),
        })
    }

    /// Bytes at this offset go to somebody who may keep them for longer than their value is held.
    pub(super) fn lend(&self, offset: u64) {
        let index = self.segment_of(offset).unwrap_or(u32::MAX);
        if let Some(lent) = usize::try_from(index)
            .ok()
            .and_then(|index| self.lent.get(index))
        {
            // Seen by whoever leases it: the value is let go first, under the lock.
            lent.store(true, Ordering::Relaxed);
        }
    }

    /// The memory of a leased segment is new, and nobody else's.
    pub(super) fn renewed(&self, index: u32) {
        self.lent[index as usize].store(false, Ordering::Relaxed);
        self.lock().segments[index as usize].is_hole = false;
    }

    /// A free segment whose memory was not given back yet, taken out of use for that; but for those
    /// that compaction needs.
    pub(super) fn take_unreleased(&self) -> Option<u32> {
        let mut inner = self.lock();
        if inner.free.len() <= SPARE {
            return None;
        }
        let segments = &inner.segments;
        let mut free = inner.free.iter();
        let place = free.position(|index| !segments[*index as usize].is_hole)?;
        let index = inner.free.remove(place)?;
        inner.segments[index as usize].state = State::Leased;
        Some(index)
    }

    /// Its memory was given back.
    pub(super) fn released(&self, index: u32) {
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
    pub(super) fn give_back(&self, index: u32, stream: Stream, leave: Leave) {
        let end = self.bounds(index).1;
        let mut inner = self.lock();
        let leave = match inner.segments[index as usize].is_bad {
            true => Leave::Retired,
            false => leave,
        };
        inner.segments[index as usize].state = match leave {
            Leave::At(at) if at < end && end - at >= self.segment / LEFTOVER => {
                inner.pools[stream as usize].push(index);
                State::Pooled(stream, at)
            }
            Leave::At(_) | Leave::Full => State::Full,
            Leave::Retired => State::Retired,
        };
        inner.reclaim(index);
    }

    /// The medium failed at `offset`: nobody begins to write to that segment before the log is
    /// opened again.
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
            // Whoever has it goes on, or meets the failure himself; nobody does after that.
            State::Leased => {
                inner.segments[index as usize].is_bad = true;
                return;
            }
            State::Retired => return,
        }
        inner.segments[index as usize].state = State::Retired;
    }

    /// The least live segment that copying would free, with the values in it; none that a reader or
    /// a writer holds. Nobody appends to it any more.
    pub(super) fn victim(&self) -> Option<(u32, Vec<Arc<Stored>>)> {
        let mut inner = self.lock();
        let most = (self.segment - LINE) / GAIN * (GAIN - 1);
        let mut order: Vec<(u64, u32)> = (0u32..)
            .zip(&inner.segments)
            .filter(|(_, segment)| {
                matches!(segment.state, State::Full | State::Pooled(Stream::Fresh, _))
            })
            .filter(|(_, segment)| segment.live > 0 && segment.live <= most)
            .map(|(index, segment)| (segment.live, index))
            .collect();
        order.sort_unstable();
        let mut passed = Vec::new();
        let mut found = None;
        for (live, index) in order.into_iter().take(CANDIDATES) {
            let values: Vec<_> = inner.segments[index as usize]
                .residents
                .values()
                .filter_map(Weak::upgrade)
                .collect();
            // The index has one, this list the other. Less alive than claimed: a writer's, or a
            // reader's of what was removed.
            let alone = values.iter().all(|value| Arc::strong_count(value) == 2);
            let claimed: u64 = values.iter().map(|value| value.hold.claim(index)).sum();
            if alone && claimed == live {
                found = Some((index, values));
                break;
            }
            passed.push(values);
        }
        if let Some((index, _)) = &found {
            inner.pools[Stream::Fresh as usize].retain(|pooled| pooled != index);
            inner.segments[*index as usize].state = State::Full;
        }
        drop(inner);
        // Whoever let go of one meanwhile left the last hold of it here, and dropping it wants the
        // lock.
        drop(passed);
        found
    }

    /// `value` has bytes in all segments that its hold claims.
    pub(super) fn settle_in(&self, value: &Arc<Stored>) {
        let claims = value.hold.held().claims.clone();
        let mut inner = self.lock();
        for (index, _) in claims {
            let residents = &mut inner.segments[index as usize].residents;
            residents.insert(value.hold.id, Arc::downgrade(value));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Frees a segment that nothing in it keeps.
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

impl Hold {
    pub(super) fn new(space: &Arc<Space>) -> Arc<Self> {
        let mut inner = space.lock();
        inner.next_hold += 1;
        Arc::new(Self {
            space: Arc::clone(space),
            id: inner.next_hold,
            held: Mutex::default(),
        })
    }

    /// Counts bytes that are about to be written.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when they would exceed the limit.
    pub(super) fn charge(&self, bytes: u64, limited: bool) -> Result<(), Error> {
        let mut inner = self.space.lock();
        let used = inner.used.saturating_add(bytes);
        if limited && used > inner.limit {
            return Err(Error::NoRoom);
        }
        let mut held = self.held();
        if !held.is_copy {
            inner.used = used;
        }
        held.charged += bytes;
        Ok(())
    }

    /// What is charged is not counted: a second of a value that is. Else nobody could write while
    /// one is moved.
    pub(super) fn copies(&self) {
        self.held().is_copy = true;
    }

    /// Counts the copy from now on, and the first no more.
    pub(super) fn replaces(&self, first: &Self) {
        let mut inner = self.space.lock();
        let before = std::mem::take(&mut first.held().charged);
        let mut held = self.held();
        held.is_copy = false;
        inner.used = inner.used.saturating_sub(before) + held.charged;
    }

    /// Bytes that were charged.
    pub(super) fn charged(&self) -> u64 {
        self.held().charged
    }

    /// Keeps `bytes` of a segment alive.
    pub(super) fn keep(&self, index: u32, bytes: u64) {
        let mut inner = self.space.lock();
        inner.segments[index as usize].live += bytes;
        self.held().claims.push((index, bytes));
    }

    /// Keeps a part alive, whoever wrote it.
    pub(super) fn keep_part(&self, part: &Part) {
        self.keep_at(part.offset, part.footprint());
    }

    /// Keeps `bytes` alive in the segment of an offset that lies in one.
    pub(super) fn keep_at(&self, offset: u64, bytes: u64) {
        if let Some(index) = self.space.segment_of(offset) {
            self.keep(index, bytes);
        }
    }

    fn claim(&self, index: u32) -> u64 {
        let held = self.held();
        held.claims
            .iter()
            .filter(|(segment, _)| *segment == index)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.held());
        let mut inner = self.space.lock();
        if !held.is_copy {
            inner.used = inner.used.saturating_sub(held.charged);
        }
        for (index, bytes) in held.claims {
            let segment = &mut inner.segments[index as usize];
            segment.live = segment.live.saturating_sub(bytes);
            segment.residents.remove(&self.id);
            inner.reclaim(index);
        }
    }
}

/// Segments beyond the capacity: those that compaction keeps, and what dead bytes between live ones
/// cost. At 31/32 full, a copied segment frees at least a part in 32 of itself.
fn reserve(segments: u64) -> u64 {
    (segments / 32).max(4)
}
