//! What a region holds: formats it, or reads it back.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use super::entry::{Extent, Stored, tail};
use super::layout::{
    COMMIT, Copy, HEADS, Head, Kind, LINE, Line, PART, Part, Record, check_shape, decode_segment,
    judge, u64_at,
};
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
}

pub(super) fn open<M: Medium>(medium: M, options: Options) -> Result<(Log<M>, Recovered), Error> {
    let (head, formatted) = head(&medium, options)?;
    let sequences = sequences(&medium, &head)?;
    let last = sequences.iter().copied().max().unwrap_or(0);
    // A damaged head may have had a higher one: its records must not pass for those of the next use of its segment.
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
    };
    for (index, sequence) in (0u32..).zip(&sequences) {
        if *sequence > 0 {
            scan.segment(index, *sequence)?;
        }
    }
    // After a kill without a power cut what was read may be in the processor's cache alone. What is shown now must be
    // there after the next cut, and what is not shown must not.
    medium.fence()?;
    let Scan {
        values,
        last_serial,
        dropped,
        ..
    } = scan;
    let index: HashMap<_, _> = values
        .into_iter()
        .map(|(key, (_, stored))| (key, stored))
        .collect();
    index.values().for_each(|stored| space.settle_in(stored));
    space.settle();
    let recovered = Recovered {
        entries: index.len() as u64,
        bytes: space.used(),
        dropped,
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
    let copies = [
        Copy::decode(&line(medium, HEADS[0])?),
        Copy::decode(&line(medium, HEADS[1])?),
    ];
    match judge(copies, len)? {
        Some((head, false)) => Ok((head, false)),
        Some((head, true)) => {
            put_heads(medium, &head)?;
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

/// The copy at nought comes last, and only after the other is durable: while it is blank, nothing was committed.
fn put_heads<M: Medium>(medium: &M, head: &Head) -> Result<(), Error> {
    for at in HEADS.into_iter().rev() {
        medium.write(at, &head.encode())?;
        medium.flush(at, LINE)?;
        medium.fence()?;
    }
    Ok(())
}

/// The sequence of every segment, nought for those without a head of this log.
fn sequences<M: Medium>(medium: &M, head: &Head) -> Result<Vec<u64>, Error> {
    let count = u32::try_from(head.segments()).unwrap_or(u32::MAX);
    let of = |index: u32| {
        let at = super::layout::BASE + u64::from(index) * head.segment;
        Ok(decode_segment(&line(medium, at)?, head.id, index).unwrap_or(0))
    };
    (0..count).map(of).collect()
}

impl<M: Medium> Scan<'_, M> {
    /// Walks the records of a segment, up to the first that is none.
    fn segment(&mut self, index: u32, sequence: u64) -> Result<(), Error> {
        let (begin, end) = self.space.bounds(index);
        let mut at = begin + LINE;
        while end - at >= LINE {
            let head = line(self.medium, at)?;
            let Some(record) = Record::decode(&head, self.head.id, sequence, at) else {
                break;
            };
            let footprint = record.footprint();
            if footprint > end - at {
                break;
            }
            self.medium.flush(at, LINE)?;
            self.last_serial = self.last_serial.max(record.serial);
            let word = u64_at(&head, 56);
            if record.kind == Kind::Last && word == Record::commit_word(&head, self.head.id, at) {
                match self.value(&record, at, word) {
                    Err(Error::Damaged { .. }) => self.dropped += 1,
                    found => self.insert(record.serial, found?)?,
                }
            } else if record.kind == Kind::Last
                && rotten(word, Record::commit_word(&head, self.head.id, at))
            {
                self.dropped += 1;
            }
            at += footprint;
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

    /// Of two values with one key the newer stays: a cut came between its commit and the end of the older.
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
    medium.read(at, &mut line)?;
    Ok(line)
}

/// Whether a commit word was this one before some bits of it flipped. What a cut leaves there is nought or has nothing to
/// do with it.
fn rotten(word: u64, commit: u64) -> bool {
    (word ^ commit).count_ones() <= 8
}

/// 64 bits that nobody outside can know.
fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}
