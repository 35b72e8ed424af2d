//! One value on its way in: straight to the medium, invisible until its commit word.

use std::sync::{Arc, PoisonError, RwLock};

use super::Log;
use super::entry::{self, Entry, Extent, Stored};
use super::layout::{Kind, LINE, Line, MAX_KEY, MAX_META, Record, align, encode_segment};
use super::space::{Hold, Lease, Leave, Stream};
use crate::{Class, Error, Fault, Medium};

/// Lines are flushed after this many bytes, while they are in the processor's cache still. A file's
/// pages are not: there a flush is a system call that waits for the disk.
const STRIDE: u64 = 256 * 1024;
/// The room that a record of a value needs at least, head included, or its bytes go elsewhere.
const LEAST: u64 = 2 * LINE;

/// A value that is being written. Dropping it frees at once what it took.
///
/// After an error it takes no more.
pub struct Writer<M: Medium> {
    log: Log<M>,
    key: Box<[u8]>,
    stream: Stream,
    growing: Arc<Growing>,
    open: Option<Open>,
    /// An error came: nothing more is taken.
    spent: bool,
    /// It was the medium's: nobody else shall meet it there.
    sick: bool,
}

/// Reads what is written of a value while more is; goes on through commit, drop and removal.
pub struct Partial<M> {
    log: Log<M>,
    growing: Arc<Growing>,
}

/// What a writer and those that read behind it share.
struct Growing {
    extents: RwLock<Vec<Extent>>,
    hold: Arc<Hold>,
}

/// The record that is being written.
struct Open {
    lease: Lease,
    /// Its head.
    start: u64,
    /// The next byte.
    at: u64,
    /// The body before this is durable.
    settled: u64,
}

impl<M: Medium> Writer<M> {
    pub(super) fn new(log: Log<M>, key: &[u8], stream: Stream) -> Result<Self, Error> {
        bounded("key", key.len() as u64, MAX_KEY as u64)?;
        let hold = Hold::new(&log.inner.space);
        if stream == Stream::Moved {
            hold.copies();
        }
        Ok(Self {
            log,
            key: key.into(),
            stream,
            growing: Arc::new(Growing {
                extents: RwLock::default(),
                hold,
            }),
            open: None,
            spent: false,
            sick: false,
        })
    }

    /// Bytes written.
    pub fn len(&self) -> u64 {
        self.growing.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends. Visible to [`reader`](Self::reader) when it returns.
    ///
    /// # Errors
    /// [`Error::NoRoom`] at the limit, or when readers hold what could be reused.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.guarded(|writer| writer.append(bytes))
    }

    /// Who reads behind.
    pub fn reader(&self) -> Partial<M> {
        Partial {
            log: self.log.clone(),
            growing: Arc::clone(&self.growing),
        }
    }

    /// Makes the value durable and visible, all or nothing, in place of the one before.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than [`MAX_META`] bytes of meta. After an error of the medium
    /// the value is not visible; it may be when the log is opened again.
    pub fn commit(self, meta: &[u8]) -> Result<Entry, Error> {
        let log = self.log.clone();
        let key = self.key.clone();
        let stored = self.prepare(meta)?;
        let _turn = log.turn(&key);
        log.publish(&stored)?;
        Ok(Entry::new(stored, meta.to_vec()))
    }

    /// All of [`commit`](Self::commit) but the commit word: every byte is durable when it returns.
    pub(super) fn prepare(mut self, meta: &[u8]) -> Result<Arc<Stored>, Error> {
        bounded("meta", meta.len() as u64, MAX_META as u64)?;
        self.guarded(|writer| writer.finish(meta))
    }

    /// Takes over bytes that another value has.
    pub(super) fn adopt(&mut self, extent: &Extent) -> Result<(), Error> {
        self.guarded(|writer| {
            writer.finish_part()?;
            let part = extent.part(writer.log.inner.space.sequence_of(extent.offset));
            writer.growing.hold.charge(part.footprint(), false)?;
            writer.growing.hold.keep_part(&part);
            writer.growing.grow(part.offset, part.len);
            Ok(())
        })
    }

    fn guarded<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.spent {
            return Err(Error::Spent);
        }
        body(self).inspect_err(|error| {
            self.spent = true;
            self.sick = error.fault() == Fault::Machine;
        })
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.open(LEAST)?;
            let Some(open) = &mut self.open else {
                return Err(Error::Spent);
            };
            let end = self.log.inner.space.bounds(open.lease.segment).1;
            let room = usize::try_from(end - open.at).unwrap_or(bytes.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let len = now.len() as u64;
            self.growing
                .hold
                .charge(len, self.stream == Stream::Fresh)?;
            self.log.inner.medium.write(open.at, now)?;
            self.growing.grow(open.at, len);
            open.at += len;
            bytes = later;
            if open.at == end {
                self.finish_part()?;
            } else if open.at - open.settled >= stride(&self.log) {
                // Fenced by the thread that flushed: the next write may come from another.
                let medium = &self.log.inner.medium;
                medium.flush(open.settled, open.at - open.settled)?;
                medium.fence()?;
                open.settled = open.at;
            }
        }
        Ok(())
    }

    /// Sees to it that a record with room for `need` bytes, head included, is begun.
    fn open(&mut self, need: u64) -> Result<(), Error> {
        if self.open.is_some() {
            return Ok(());
        }
        let lease = self.log.lease(self.stream, need)?;
        let start = lease.at;
        self.open = Some(Open {
            lease,
            start,
            at: start + LINE,
            settled: start + LINE,
        });
        if lease.fresh {
            let head = encode_segment(self.log.inner.head.id, lease.sequence, lease.segment);
            self.log.inner.medium.write(start - LINE, &head)?;
        }
        Ok(())
    }

    /// Ends the record that is being written as a part of the value; nothing when there is none.
    fn finish_part(&mut self) -> Result<(), Error> {
        let Some(open) = self
            .open
            .as_mut()
            .filter(|open| open.at > open.start + LINE)
        else {
            return Ok(());
        };
        let record = open.part();
        let (_, footprint) = open.seal(&self.log, &self.growing.hold, self.stream, &record)?;
        open.start += footprint;
        open.at = open.start + LINE;
        open.settled = open.at;
        let (lease, next) = (open.lease, open.start);
        if self.log.inner.space.bounds(lease.segment).1 - next < LEAST {
            self.open = None;
            self.log
                .inner
                .space
                .give_back(lease.segment, self.stream, Leave::Full);
        }
        Ok(())
    }

    fn finish(&mut self, meta: &[u8]) -> Result<Arc<Stored>, Error> {
        let space = Arc::clone(&self.log.inner.space);
        let own = self.own_body();
        let mut parts = self.growing.parts(own);
        let mut tail = self.tail_len(meta, parts.len());
        if let Some(open) = &self.open
            && space.bounds(open.lease.segment).1 - open.at < tail
        {
            self.finish_part()?;
            if let Some(open) = self.open.take() {
                space.give_back(open.lease.segment, self.stream, Leave::At(open.start));
            }
            parts = self.growing.parts(0);
            tail = self.tail_len(meta, parts.len());
        }
        bounded(
            "value (its list of parts)",
            LINE + tail,
            space.segment() - LINE,
        )?;
        self.open(LINE + align(tail))?;
        let Some(open) = &mut self.open else {
            return Err(Error::Spent);
        };
        let mut bytes = Vec::with_capacity(self.key.len() + meta.len());
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(meta);
        for extent in &parts {
            extent
                .part(space.sequence_of(extent.offset))
                .encode(&mut bytes);
        }
        let record = Record {
            serial: self.log.next_serial(),
            meta: u32::try_from(meta.len()).unwrap_or(u32::MAX),
            parts: u32::try_from(parts.len()).unwrap_or(u32::MAX),
            key: u8::try_from(self.key.len()).unwrap_or(u8::MAX),
            kind: Kind::Last,
            tail_sum: crc32c::crc32c(&bytes),
            ..open.part()
        };
        self.log.inner.medium.write(open.at, &bytes)?;
        let tail_at = open.at;
        open.at += bytes.len() as u64;
        let (line, footprint) = open.seal(&self.log, &self.growing.hold, self.stream, &record)?;
        let stored = Stored {
            key: self.key.clone(),
            record: open.start,
            word: Record::commit_word(&line, self.log.inner.head.id, open.start),
            tail_at,
            tail_len: bytes.len(),
            tail_sum: record.tail_sum,
            meta_len: meta.len(),
            len: self.growing.len(),
            bytes: self.growing.hold.charged(),
            extents: self.growing.extents().clone().into(),
            hold: Arc::clone(&self.growing.hold),
        };
        let (lease, next) = (open.lease, open.start + footprint);
        self.open = None;
        space.give_back(lease.segment, self.stream, Leave::At(next));
        Ok(Arc::new(stored))
    }

    fn own_body(&self) -> u64 {
        self.open.as_ref().map_or(0, Open::body)
    }

    fn tail_len(&self, meta: &[u8], parts: usize) -> u64 {
        (self.key.len() + meta.len() + parts * super::layout::PART) as u64
    }
}

impl<M: Medium> Drop for Writer<M> {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let leave = if self.sick {
            Leave::Retired
        } else if Arc::get_mut(&mut self.growing).is_some() {
            // Nobody has seen a byte of it: whoever is next writes over it.
            Leave::At(open.start)
        } else {
            self.growing
                .hold
                .keep(open.lease.segment, align(open.at - open.start));
            Leave::Full
        };
        self.log
            .inner
            .space
            .give_back(open.lease.segment, self.stream, leave);
    }
}

impl<M: Medium> Partial<M> {
    /// Bytes that can be read by now.
    pub fn len(&self) -> u64 {
        self.growing.len()
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`Error::Range`] beyond what was written by now.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let touched = self.growing.touched(offset, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        let read = entry::read(&self.log.inner.medium, &touched, offset, buf);
        read.inspect_err(|error| self.log.avoid(error))
    }
}

impl Growing {
    fn extents(&self) -> std::sync::RwLockReadGuard<'_, Vec<Extent>> {
        self.extents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> u64 {
        self.extents()
            .last()
            .map_or(0, |last| last.start + last.len)
    }

    /// Those of the extents that `len` bytes from `offset` lie in: not lent, or whoever reads from
    /// a slow medium would keep the writer from going on.
    fn touched(&self, offset: u64, len: u64) -> Result<Vec<Extent>, Error> {
        let extents = self.extents();
        let of = extents.last().map_or(0, |last| last.start + last.len);
        crate::medium::within(offset, len, of)?;
        let from = extents.partition_point(|extent| extent.start + extent.len <= offset);
        let touched = extents[from..].iter();
        Ok(touched
            .take_while(|extent| extent.start < offset + len)
            .copied()
            .collect())
    }

    /// The value goes on with `len` bytes at `offset`.
    fn grow(&self, offset: u64, len: u64) {
        let start = self.len();
        let mut extents = self.extents.write().unwrap_or_else(PoisonError::into_inner);
        match extents
            .last_mut()
            .filter(|last| last.offset + last.len == offset)
        {
            Some(last) => last.len += len,
            None => extents.push(Extent { start, offset, len }),
        }
    }

    /// The extents in other records than the last, which has `own` bytes itself.
    fn parts(&self, own: u64) -> Vec<Extent> {
        let mut parts = self.extents().clone();
        if own > 0 {
            parts.pop();
        }
        parts
    }
}

impl Open {
    /// Bytes behind the head by now.
    const fn body(&self) -> u64 {
        self.at - self.start - LINE
    }

    /// What is written by now, as a part of a value.
    fn part(&self) -> Record {
        Record {
            sequence: self.lease.sequence,
            serial: 0,
            body: u32::try_from(self.body()).unwrap_or(u32::MAX),
            meta: 0,
            parts: 0,
            key: 0,
            kind: Kind::Part,
            tail_sum: 0,
        }
    }

    /// Puts the head before a record of which all else is written, makes all of it durable, and
    /// keeps it alive: the head, and the bytes that the record takes.
    fn seal<M: Medium>(
        &mut self,
        log: &Log<M>,
        hold: &Hold,
        stream: Stream,
        record: &Record,
    ) -> Result<(Line, u64), Error> {
        let medium = &log.inner.medium;
        let line = record.encode(log.inner.head.id, self.start);
        let footprint = record.footprint();
        // The body was counted as it came.
        let more = footprint - u64::from(record.body);
        hold.charge(more, stream == Stream::Fresh)?;
        medium.write(self.start, &line)?;
        let lead = if self.lease.fresh {
            self.start - LINE
        } else {
            self.start
        };
        medium.flush(lead, self.start + LINE - lead)?;
        medium.flush(self.settled, self.at - self.settled)?;
        medium.fence()?;
        self.lease.fresh = false;
        hold.keep(self.lease.segment, footprint);
        Ok((line, footprint))
    }
}

fn stride<M: Medium>(log: &Log<M>) -> u64 {
    let segment = log.inner.space.segment();
    match log.inner.medium.class() {
        Class::Pmem => STRIDE.min(segment / 4),
        Class::EmulatedFile | Class::Volatile => segment,
    }
}

fn bounded(what: &'static str, len: u64, most: u64) -> Result<(), Error> {
    if len > most {
        Err(Error::TooLarge { what, len, most })
    } else {
        Ok(())
    }
}
