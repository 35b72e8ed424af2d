//! Opens the log of a region: formats a new region, or finds all values of an existing log.

use parking_lot::{Mutex, RwLock};
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::entry::{Extent, IndexEntry, tail};
use super::layout::{
    COMMIT_OFFSET, HEAD_OFFSETS, Head, HeadCopy, Kind, LINE, Line, PART_LEN, Part, Record,
    SegmentHead, base, check_shape, combine_copies, decode_segment, u64_at,
};
use super::lines::Lines;
use super::space::{Allocation, Space};
use super::{Inner, Log, Options, RecoveryReport};
use crate::{Error, Medium};

/// The state of the scan that reads all segments.
struct Scan<'a, M> {
    medium: &'a M,
    head: Head,
    space: &'a Arc<Space>,
    sequences: &'a [u64],
    /// The newest record of each key, with its serial.
    values: HashMap<Box<[u8]>, (u64, Arc<IndexEntry>)>,
    last_serial: u64,
    dropped: u64,
    damaged: u64,
    /// Segments that have unreadable lines.
    bad: Vec<u32>,
}

pub(super) fn open<M: Medium>(
    medium: M,
    options: Options,
) -> Result<(Log<M>, RecoveryReport), Error> {
    let (head, formatted) = head(&medium, options)?;
    let mut lines = Lines::new(&medium);
    let mut bad = Vec::new();
    let (sequences, damaged_heads) = sequences(&mut lines, &head, &mut bad)?;
    let last = sequences.iter().copied().max().unwrap_or(0);
    // The sequence of a segment with a damaged head may have been higher, so the next sequence
    // skips a random distance: records of an earlier use of a segment must not be valid in its next
    // use.
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
    let mut gaps_by_segment = Vec::new();
    for (index, sequence) in (0u32..).zip(&sequences) {
        if *sequence > 0 {
            let gaps = scan.segment(&mut lines, index, *sequence)?;
            gaps_by_segment.push((index, gaps + u64::from(damaged_heads.contains(&index))));
        }
    }
    // If the process was killed without a power cut, the bytes that were just read may be only in
    // the CPU cache. This fence makes all records durable that were found. A record that was not
    // found stays invisible.
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
    index
        .values()
        .for_each(|stored| space.register_resident(stored));
    for (segment, places) in gaps_by_segment {
        // A segment is reused only after its last value was removed, so damage counts only in
        // segments that contain values.
        if space.is_used(segment) {
            damaged += places;
        }
    }
    space.free_unused(&bad);
    let recovered = RecoveryReport {
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
        key_locks: std::array::from_fn(|_| Mutex::default()),
        hasher: RandomState::new(),
        serial: AtomicU64::new(last_serial + 1),
        compaction: Mutex::default(),
        uncleared: Mutex::default(),
    };
    Ok((
        Log {
            inner: Arc::new(inner),
        },
        recovered,
    ))
}

/// Reads or creates the head of the log. Returns the head, and whether it was just created.
fn head<M: Medium>(medium: &M, options: Options) -> Result<(Head, bool), Error> {
    let len = medium.len();
    check_shape(len, super::layout::SEGMENT_SIZES.0)?;
    let lines = HEAD_OFFSETS.map(|at| line(medium, at));
    if let [Err(_), Err(error)] = lines {
        return Err(error);
    }
    let copy =
        |line: &Result<Line, Error>| line.as_ref().map_or(HeadCopy::Damaged, HeadCopy::decode);
    let copies = lines.each_ref().map(copy);
    match combine_copies(copies, len)? {
        Some((head, must_rewrite)) => {
            // If a copy of the head is in unreadable memory, no copy is rewritten, because the
            // write might fail, too.
            if must_rewrite && lines.iter().all(Result::is_ok) {
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

/// Writes both copies of the head. The copy at offset 0 is written last, after the other copy is
/// durable. A blank copy at offset 0 thus proves that no value was ever committed.
fn put_heads<M: Medium>(medium: &M, head: &Head) -> Result<(), Error> {
    for at in HEAD_OFFSETS.into_iter().rev() {
        medium.write(at, &head.encode())?;
        medium.flush(at, LINE)?;
        medium.fence()?;
    }
    Ok(())
}

/// Returns the sequence of every segment (0 for unused segments), and the set of segments with
/// damaged heads. For a segment with a damaged head, the sequence is the highest sequence of its
/// records. A segment with an unreadable head is added to `bad`.
fn sequences<M: Medium>(
    lines: &mut Lines<'_, M>,
    head: &Head,
    bad: &mut Vec<u32>,
) -> Result<(Vec<u64>, HashSet<u32>), Error> {
    let count = u32::try_from(head.segments()).unwrap_or(u32::MAX);
    let mut damaged_heads = HashSet::new();
    let mut sequences = Vec::new();
    for index in 0..count {
        let begin = base(head.segment) + u64::from(index) * head.segment;
        let line = lines.at(begin)?;
        if line.is_none() {
            bad.push(index);
        }
        let found = line.map_or(SegmentHead::Damaged, |line| {
            decode_segment(&line, head.id, index)
        });
        let sequence = match found {
            SegmentHead::Valid(sequence) => sequence,
            // The head may have been overwritten by zeros: a record at the first position shows
            // that.
            SegmentHead::Absent if newest_sequence(lines, head, begin, begin + 2 * LINE)? == 0 => 0,
            SegmentHead::Absent | SegmentHead::Damaged => {
                damaged_heads.insert(index);
                newest_sequence(lines, head, begin, begin + head.segment)?
            }
        };
        sequences.push(sequence);
    }
    Ok((sequences, damaged_heads))
}

/// Returns the highest sequence of the records between `begin` and `end`, or 0 if there are no
/// records. A power cut may leave a record in a segment whose head is not durable. A record in such
/// a segment is harmless, because it is not committed.
fn newest_sequence<M: Medium>(
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
    /// Reads the records of a segment. After a damaged record, continues at the next intact record:
    /// no other bytes can be mistaken for a record of this segment. Returns the number of gaps
    /// between records. A gap is a damaged record, or consists of bytes that were being written
    /// when the power was cut.
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
                // No valid record follows: either the records of this segment end here, or a record
                // is damaged. The lines that follow, or the rest of this record, show which of the
                // two is true.
                if line.is_some_and(|line| is_damaged_head(&line, self.head.id, sequence, at)) {
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

    /// Registers the value of a committed last record.
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
        } else if has_few_flipped_bits(word, commit) {
            self.dropped += 1;
        }
        Ok(())
    }

    /// Returns the value of a committed record.
    fn value(&self, record: &Record, at: u64, word: u64) -> Result<IndexEntry, Error> {
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
            .chunks_exact(PART_LEN)
            .map(Part::decode);
        let allocation = Allocation::new(self.space);
        let mut extents = Vec::with_capacity(parts.len() + 1);
        let mut start = 0u64;
        let mut bytes = record.footprint();
        allocation.mark_live_at(at, bytes);
        for part in parts {
            if !self.is_valid_part(&part) {
                return Err(damaged);
            }
            allocation.mark_part_live(&part);
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
        allocation.charge(bytes, false)?;
        Ok(IndexEntry {
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
            allocation,
        })
    }

    /// Whether a part is within one segment, and this segment was not reused after the part was
    /// written.
    fn is_valid_part(&self, part: &Part) -> bool {
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

    /// Inserts a value into the index. If the index has a value with the same key, keeps the newer
    /// of the two: a power cut happened after the commit of the newer value and before the removal
    /// of the older value.
    fn insert(&mut self, serial: u64, stored: IndexEntry) -> Result<(), Error> {
        let stored = Arc::new(stored);
        let older = match self.values.entry(stored.key.clone()) {
            Slot::Vacant(slot) => {
                slot.insert((serial, stored));
                return Ok(());
            }
            Slot::Occupied(mut slot) if slot.get().0 < serial => slot.insert((serial, stored)).1,
            Slot::Occupied(_) => stored,
        };
        let at = older.record + COMMIT_OFFSET;
        self.medium.store(at, 0)?;
        self.medium.flush(at, 8)
    }
}

fn line<M: Medium>(medium: &M, at: u64) -> Result<Line, Error> {
    let mut line = [0; 64];
    medium.inspect(at, &mut line)?;
    Ok(line)
}

/// Whether `word` differs from the commit word `commit` in at most 8 bits. After a power cut, a
/// word is 0 or differs in more bits.
fn has_few_flipped_bits(word: u64, commit: u64) -> bool {
    (word ^ commit).count_ones() <= 8
}

/// Whether the line is the head of a committed record with one flipped bit. A record whose write
/// was interrupted by a power cut has no valid commit word.
fn is_damaged_head(line: &Line, id: u64, sequence: u64, at: u64) -> bool {
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

/// Returns 64 random bits that no other process knows.
fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}
