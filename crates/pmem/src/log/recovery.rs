//! What a region holds: formats it, or reads it back.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use super::entry::{Extent, Stored, tail};
use super::layout::{
    COMMIT, Copy, HEADS, Head, Kind, LINE, Line, PART, Part, Record, SegmentHead, base,
    check_shape, decode_segment, judge, u64_at,
};
use super::lines::Lines;
use super::space::{Hold, Space};
use super::{Inner, Log, Options, Recovered};
use crate::{Error, Medium};

/// What is found while the segments are read.
struct Scan<'a, M> {
    medium: &'a M,
    head: Head,
    space: &'a Arc<Space>,
    sequences: &'a [u64],
    /// The newest record of each key, and its serial.
    values: HashMap<Box<[u8]>, (u64, Arc<Stored>)>,
    last_serial: u64,
    dropped: u64,
    damaged: u64,
    /// Segments with lines that cannot be read.
    bad: Vec<u32>,
}

pub(super) fn open<M: Medium>(medium: M, options: Options) -> Result<(Log<M>, Recovered), Error> {
    let (head, formatted) = head(&medium, options)?;
    let mut lines = Lines::new(&medium);
    let mut bad = Vec::new();
    let (sequences, rescued) = sequences(&mut lines, &head, &mut bad)?;
    let last = sequences.iter().copied().max().unwrap_or(0);
    // A damaged head may have had a higher one: its records must not pass for those of the next use
    // of its segment.
    let next = last + 1 + (random() >> 40);
    let space = Arc::new(Space::new(&head, sequences.clone(), next));
    let mut scan = Scan {
        medium: &medium,
        head,
        space: &space,
        sequences: &sequences,
        values: HashMap::new(),
        last_serial: 0,
        dropped: 0,
        damaged: 0,
        bad,
    };
    let mut suspects = Vec::new();
    for (index, sequence) in (0u32..).zip(&sequences) {
        if *sequence > 0 {
            let gaps = scan.segment(&mut lines, index, *sequence)?;
            suspects.push((index, gaps + u64::from(rescued.contains(&index))));
        }
    }
    // After a kill without a power cut what was read may be in the processor's cache alone. What is
    // shown now must be there after the next cut, and what is not shown must not.
    medium.fence()?;
    let Scan {
        values,
        last_serial,
        dropped,
        mut damaged,
        bad,
        ..
    } = scan;
    let index: HashMap<_, _> = values
        .into_iter()
        .map(|(key, (_, stored))| (key, stored))
        .collect();
    index.values().for_each(|stored| space.settle_in(stored));
    for (segment, places) in suspects {
        // Whoever begins a segment anew has seen the last value in it go.
        if space.is_used(segment) {
            damaged += places;
        }
    }
    space.settle(&bad);
    let recovered = Recovered {
        entries: index.len() as u64,
        bytes: space.used(),
        dropped,
        damaged,
        segments: sequences.len() as u64,
        formatted,
    };
    let inner = Inner {
        medium,
        head,
        space,
        index: RwLock::new(index),
        turns: std::array::from_fn(|_| Mutex::default()),
        hasher: RandomState::new(),
        serial: AtomicU64::new(last_serial + 1),
        compaction: Mutex::default(),
        limbo: Mutex::default(),
    };
    Ok((
        Log {
            inner: Arc::new(inner),
        },
        recovered,
    ))
}

/// The head of the log, and whether it was made just now.
fn head<M: Medium>(medium: &M, options: Options) -> Result<(Head, bool), Error> {
    let len = medium.len();
    check_shape(len, super::layout::SEGMENTS.0)?;
    let lines = HEADS.map(|at| line(medium, at));
    if let [Err(_), Err(error)] = lines {
        return Err(error);
    }
    let copy = |line: &Result<Line, Error>| line.as_ref().map_or(Copy::Bad, Copy::decode);
    let copies = lines.each_ref().map(copy);
    match judge(copies, len)? {
        Some((head, mend)) => {
            // What cannot be read cannot be counted on to be written.
            if mend && lines.iter().all(Result::is_ok) {
                put_heads(medium, &head)?;
            }
            Ok((head, false))
        }
        None => {
            check_shape(len, options.segment)?;
            let head = Head {
                id: random(),
                size: len,
                segment: options.segment,
            };
            put_heads(medium, &head)?;
            Ok((head, true))
        }
    }
}

/// The copy at nought comes last, and only after the other is durable: while it is blank, nothing
/// was committed.
fn put_heads<M: Medium>(medium: &M, head: &Head) -> Result<(), Error> {
    for at in HEADS.into_iter().rev() {
        medium.write(at, &head.encode())?;
        medium.flush(at, LINE)?;
        medium.fence()?;
    }
    Ok(())
}

/// The sequence of every segment, nought for those that this log has not used. Where the head is
/// damaged (which of them is the second result) it is that of the records behind it; where it
/// cannot be read the segment is `bad`.
fn sequences<M: Medium>(
    lines: &mut Lines<'_, M>,
    head: &Head,
    bad: &mut Vec<u32>,
) -> Result<(Vec<u64>, HashSet<u32>), Error> {
    let count = u32::try_from(head.segments()).unwrap_or(u32::MAX);
    let mut rescued = HashSet::new();
    let mut sequences = Vec::new();
    for index in 0..count {
        let begin = base(head.segment) + u64::from(index) * head.segment;
        let line = lines.at(begin)?;
        if line.is_none() {
            bad.push(index);
        }
        let found = line.map_or(SegmentHead::Bad, |line| {
            decode_segment(&line, head.id, index)
        });
        let sequence = match found {
            SegmentHead::Ours(sequence) => sequence,
            // A head that was wiped out: a look at what would be the first record tells.
            SegmentHead::None if newest(lines, head, begin, begin + 2 * LINE)? == 0 => 0,
            SegmentHead::None | SegmentHead::Bad => {
                rescued.insert(index);
                newest(lines, head, begin, begin + head.segment)?
            }
        };
        sequences.push(sequence);
    }
    Ok((sequences, rescued))
}

/// The highest sequence of the records between `begin` and `end`; nought when there are none. Of
/// one that a cut left before its segment's head was durable none is committed, so it does no harm.
fn newest<M: Medium>(
    lines: &mut Lines<'_, M>,
    head: &Head,
    begin: u64,
    end: u64,
) -> Result<u64, Error> {
    let mut newest = 0;
    for at in Lines::<M>::offsets(begin + LINE, end) {
        let record = lines.at(at)?;
        let record = record.and_then(|line| Record::decode_any(&line, head.id, at));
        newest = newest.max(record.map_or(0, |record| record.sequence));
    }
    Ok(newest)
}

impl<M: Medium> Scan<'_, M> {
    /// Walks the records of a segment. Behind one that is damaged it goes on at the next that is
    /// not: no other bytes pass for a record of this segment. Says how many gaps there were: each
    /// was a damaged record, unless what stands there belongs to a later use of the segment that a
    /// cut ended.
    fn segment(
        &mut self,
        lines: &mut Lines<'_, M>,
        index: u32,
        sequence: u64,
    ) -> Result<u64, Error> {
        let (begin, end) = self.space.bounds(index);
        let mut at = begin + LINE;
        let mut expected = at;
        let (mut gap, mut gaps, mut unreadable) = (false, 0, false);
        while end - at >= LINE {
            let line = lines.at(at)?;
            unreadable |= line.is_none();
            let record = line.and_then(|line| {
                let record = Record::decode(&line, self.head.id, sequence, at)?;
                Some((line, record)).filter(|_| record.footprint() <= end - at)
            });
            let Some((head, record)) = record else {
                // The end, or a damaged one: what comes says which, or what is left of it.
                if line.is_some_and(|line| remnant(&line, self.head.id, sequence, at)) {
                    self.damaged += 1;
                    gap = false;
                } else {
                    gap = gap || at == expected;
                }
                at += LINE;
                continue;
            };
            gaps += u64::from(std::mem::take(&mut gap));
            self.record(&record, &head, at)?;
            at += record.footprint();
            expected = at;
        }
        if unreadable {
            self.damaged += 1;
            self.bad.push(index);
        }
        Ok(gaps)
    }

    /// Enters the value of a record, if it is the last of one that is committed.
    fn record(&mut self, record: &Record, head: &Line, at: u64) -> Result<(), Error> {
        self.medium.flush(at, LINE)?;
        self.last_serial = self.last_serial.max(record.serial);
        if record.kind != Kind::Last {
            return Ok(());
        }
        let (word, commit) = (
            u64_at(head, 56),
            Record::commit_word(head, self.head.id, at),
        );
        if word == commit {
            match self.value(record, at, word) {
                Err(Error::Damaged { .. }) => self.dropped += 1,
                Err(Error::Medium { offset, .. }) => {
                    self.dropped += 1;
                    self.bad.extend(self.space.segment_of(offset));
                }
                found => self.insert(record.serial, found?)?,
            }
        } else if rotten(word, commit) {
            self.dropped += 1;
        }
        Ok(())
    }

    /// The value of a committed record.
    fn value(&self, record: &Record, at: u64, word: u64) -> Result<Stored, Error> {
        let damaged = Error::Damaged { offset: at };
        let tail_at = at + LINE + u64::from(record.body);
        let Ok(tail_len) = usize::try_from(record.tail()) else {
            return Err(damaged);
        };
        let tail = tail(self.medium, tail_at, tail_len, record.tail_sum)?;
        let (key, rest) = tail.split_at(usize::from(record.key));
        let meta_len = usize::try_from(record.meta).unwrap_or(rest.len());
        let parts = rest
            .get(meta_len..)
            .unwrap_or_default()
            .chunks_exact(PART)
            .map(Part::decode);
        let hold = Hold::new(self.space);
        let mut extents = Vec::with_capacity(parts.len() + 1);
        let mut start = 0u64;
        let mut bytes = record.footprint();
        hold.keep_at(at, bytes);
        for part in parts {
            if !self.holds(&part) {
                return Err(damaged);
            }
            hold.keep_part(&part);
            bytes += part.footprint();
            extents.push(Extent {
                start,
                offset: part.offset,
                len: part.len,
            });
            start += part.len;
        }
        if record.body > 0 {
            extents.push(Extent {
                start,
                offset: at + LINE,
                len: record.body.into(),
            });
            start += u64::from(record.body);
        }
        hold.charge(bytes, false)?;
        Ok(Stored {
            key: key.into(),
            record: at,
            word,
            tail_at,
            tail_len,
            tail_sum: record.tail_sum,
            meta_len,
            len: start,
            bytes,
            extents: extents.into(),
            hold,
        })
    }

    /// Whether a part lies within one segment that was not used for anything else since.
    fn holds(&self, part: &Part) -> bool {
        let Some(index) = self.space.segment_of(part.offset) else {
            return false;
        };
        let sequence = usize::try_from(index)
            .ok()
            .and_then(|index| self.sequences.get(index));
        let (begin, end) = self.space.bounds(index);
        let inside =
            part.offset >= begin + 2 * LINE && part.offset < end && part.len <= end - part.offset;
        inside && part.len > 0 && sequence == Some(&part.sequence)
    }

    /// Of two values with one key the newer stays: a cut came between its commit and the end of the
    /// older.
    fn insert(&mut self, serial: u64, stored: Stored) -> Result<(), Error> {
        let stored = Arc::new(stored);
        let older = match self.values.entry(stored.key.clone()) {
            Slot::Vacant(slot) => {
                slot.insert((serial, stored));
                return Ok(());
            }
            Slot::Occupied(mut slot) if slot.get().0 < serial => slot.insert((serial, stored)).1,
            Slot::Occupied(_) => stored,
        };
        let at = older.record + COMMIT;
        self.medium.store(at, 0)?;
        self.medium.flush(at, 8)
    }
}

fn line<M: Medium>(medium: &M, at: u64) -> Result<Line, Error> {
    let mut line = [0; 64];
    medium.inspect(at, &mut line)?;
    Ok(line)
}

/// Whether a commit word was this one before some bits of it flipped. What a cut leaves there is
/// nought or has nothing to do with it.
fn rotten(word: u64, commit: u64) -> bool {
    (word ^ commit).count_ones() <= 8
}

/// Whether this was the head of a committed record before one of its bits flipped. What a cut
/// leaves of one that was being written has no such commit word.
fn remnant(line: &Line, id: u64, sequence: u64, at: u64) -> bool {
    if (u64_at(line, 0) ^ id).count_ones() + (u64_at(line, 8) ^ sequence).count_ones() > 1 {
        return false;
    }
    (0..52 * 8).any(|bit| {
        let mut line = *line;
        line[bit / 8] ^= 1 << (bit % 8);
        Record::decode(&line, id, sequence, at).is_some()
            && Record::commit_word(&line, id, at) == u64_at(&line, 56)
    })
}

/// 64 bits that nobody outside can know.
fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}
