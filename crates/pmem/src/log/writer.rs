//! Writes one value of the log directly to the medium. The value is invisible until its commit word
//! is written.

use parking_lot::RwLock;
use std::sync::Arc;

use super::Log;
use super::entry::{self, Entry, Extent, IndexEntry};
use super::layout::{Kind, LINE, Line, MAX_KEY_LEN, MAX_META_LEN, Record, align, encode_segment};
use super::space::{Allocation, Lease, LeaseEnd, Stream};
use crate::{Class, Error, Fault, Medium};

/// Number of written bytes after which their cache lines are flushed, while they are still in the
/// CPU cache. Bytes of a file on a disk are not flushed early, because such a flush is a system
/// call that waits for the disk.
const FLUSH_INTERVAL: u64 = 256 * 1024;
/// Minimum room for a record of a value in bytes, including its head. If a segment has less room,
/// the record goes to another segment.
const MIN_RECORD_ROOM: u64 = 2 * LINE;

/// A value that is being written. If the writer is dropped before the commit, the space of the
/// value is released.
///
/// After an error, all further calls of the writer fail.
pub struct Writer<M: Medium> {
    log: Log<M>,
    key: Box<[u8]>,
    stream: Stream,
    value: Arc<UncommittedValue>,
    open: Option<OpenRecord>,
    /// Whether a call failed. After that, all further calls fail.
    has_failed: bool,
    /// Whether the medium failed. After a failure of the medium, the segment must be retired.
    medium_failed: bool,
}

/// Reads a value while the value is being written. The reader stays valid after the commit, drop or
/// removal of the value.
pub struct UncommittedReader<M> {
    log: Log<M>,
    value: Arc<UncommittedValue>,
}

/// State of an uncommitted value that its writer and its readers share.
struct UncommittedValue {
    extents: RwLock<Vec<Extent>>,
    allocation: Arc<Allocation>,
}

/// The record that is being written.
struct OpenRecord {
    lease: Lease,
    /// Position of the record's head.
    start: u64,
    /// Position at which the next byte is written.
    at: u64,
    /// Position up to which the content of the record is durable.
    durable_to: u64,
}

impl<M: Medium> Writer<M> {
    pub(super) fn new(log: Log<M>, key: &[u8], stream: Stream) -> Result<Self, Error> {
        bounded("key", key.len() as u64, MAX_KEY_LEN as u64)?;
        let allocation = Allocation::new(&log.inner.space);
        if stream == Stream::Compacted {
            allocation.set_copy();
        }
        Ok(Self {
            log,
            key: key.into(),
            stream,
            value: Arc::new(UncommittedValue {
                extents: RwLock::default(),
                allocation,
            }),
            open: None,
            has_failed: false,
            medium_failed: false,
        })
    }

    /// Returns the number of content bytes that were written so far.
    pub fn len(&self) -> u64 {
        self.value.len()
    }

    /// Whether no content was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends content. When the call returns, a [`reader`](Self::reader) can read the content.
    ///
    /// # Errors
    /// [`Error::NoRoom`] at the limit, or when readers hold the space that could be reused.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.guarded(|writer| writer.append(bytes))
    }

    /// Returns a reader of the content that was written so far.
    pub fn reader(&self) -> UncommittedReader<M> {
        UncommittedReader {
            log: self.log.clone(),
            value: Arc::clone(&self.value),
        }
    }

    /// Makes the value durable and visible atomically, and replaces the previous value of the key.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for more than [`MAX_META_LEN`] bytes of meta. After an error of the
    /// medium, the value is not visible, but it may become visible when the log is opened again.
    pub fn commit(self, meta: &[u8]) -> Result<Entry, Error> {
        let log = self.log.clone();
        let key = self.key.clone();
        let stored = self.prepare(meta)?;
        let _key_lock = log.lock_key(&key);
        log.publish(&stored)?;
        Ok(Entry::new(stored, meta.to_vec()))
    }

    /// Does all steps of [`commit`](Self::commit) except for the commit word. When the call
    /// returns, all bytes are durable.
    pub(super) fn prepare(mut self, meta: &[u8]) -> Result<Arc<IndexEntry>, Error> {
        bounded("meta", meta.len() as u64, MAX_META_LEN as u64)?;
        self.guarded(|writer| writer.finish(meta))
    }

    /// Appends a part of another value, without copying its bytes.
    pub(super) fn adopt(&mut self, extent: &Extent) -> Result<(), Error> {
        self.guarded(|writer| {
            writer.finish_part()?;
            let part = extent.part(writer.log.inner.space.sequence_of(extent.offset));
            writer.value.allocation.charge(part.footprint(), false)?;
            writer.value.allocation.mark_part_live(&part);
            writer.value.grow(part.offset, part.len);
            Ok(())
        })
    }

    fn guarded<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.has_failed {
            return Err(Error::WriterFailed);
        }
        body(self).inspect_err(|error| {
            self.has_failed = true;
            self.medium_failed = error.fault() == Fault::Machine;
        })
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.open(MIN_RECORD_ROOM)?;
            let Some(open) = &mut self.open else {
                return Err(Error::WriterFailed);
            };
            let end = self.log.inner.space.bounds(open.lease.segment).1;
            let room = usize::try_from(end - open.at).unwrap_or(bytes.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let len = now.len() as u64;
            self.value
                .allocation
                .charge(len, self.stream == Stream::New)?;
            self.log.inner.medium.write(open.at, now)?;
            self.value.grow(open.at, len);
            open.at += len;
            bytes = later;
            if open.at == end {
                self.finish_part()?;
            } else if open.at - open.durable_to >= flush_interval(&self.log) {
                // The fence is here, because a fence covers only flushes of its own thread, and
                // another thread may do the next write.
                let medium = &self.log.inner.medium;
                medium.flush(open.durable_to, open.at - open.durable_to)?;
                medium.fence()?;
                open.durable_to = open.at;
            }
        }
        Ok(())
    }

    /// Ensures that a record with room for `need` bytes, including its head, is open.
    fn open(&mut self, need: u64) -> Result<(), Error> {
        if self.open.is_some() {
            return Ok(());
        }
        let lease = self.log.lease(self.stream, need)?;
        let start = lease.at;
        self.open = Some(OpenRecord {
            lease,
            start,
            at: start + LINE,
            durable_to: start + LINE,
        });
        if lease.fresh {
            let head = encode_segment(self.log.inner.head.id, lease.sequence, lease.segment);
            self.log.inner.medium.write(start - LINE, &head)?;
        }
        Ok(())
    }

    /// Ends the open record as a part of the value. Does nothing without an open record.
    fn finish_part(&mut self) -> Result<(), Error> {
        let Some(open) = self
            .open
            .as_mut()
            .filter(|open| open.at > open.start + LINE)
        else {
            return Ok(());
        };
        let record = open.part();
        let (_, footprint) = open.seal(&self.log, &self.value.allocation, self.stream, &record)?;
        open.start += footprint;
        open.at = open.start + LINE;
        open.durable_to = open.at;
        let (lease, next) = (open.lease, open.start);
        if self.log.inner.space.bounds(lease.segment).1 - next < MIN_RECORD_ROOM {
            self.open = None;
            self.log
                .inner
                .space
                .give_back(lease.segment, self.stream, LeaseEnd::Full);
        }
        Ok(())
    }

    fn finish(&mut self, meta: &[u8]) -> Result<Arc<IndexEntry>, Error> {
        let space = Arc::clone(&self.log.inner.space);
        let own = self.own_body();
        let mut parts = self.value.parts(own);
        let mut tail = self.tail_len(meta, parts.len());
        if let Some(open) = &self.open
            && space.bounds(open.lease.segment).1 - open.at < tail
        {
            self.finish_part()?;
            if let Some(open) = self.open.take() {
                space.give_back(
                    open.lease.segment,
                    self.stream,
                    LeaseEnd::ContinueAt(open.start),
                );
            }
            parts = self.value.parts(0);
            tail = self.tail_len(meta, parts.len());
        }
        bounded(
            "value (its list of parts)",
            LINE + tail,
            space.segment() - LINE,
        )?;
        self.open(LINE + align(tail))?;
        let Some(open) = &mut self.open else {
            return Err(Error::WriterFailed);
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
        let (line, footprint) =
            open.seal(&self.log, &self.value.allocation, self.stream, &record)?;
        let stored = IndexEntry {
            key: self.key.clone(),
            record: open.start,
            word: Record::commit_word(&line, self.log.inner.head.id, open.start),
            tail_at,
            tail_len: bytes.len(),
            tail_sum: record.tail_sum,
            meta_len: meta.len(),
            len: self.value.len(),
            bytes: self.value.allocation.charged(),
            extents: self.value.extents().clone().into(),
            allocation: Arc::clone(&self.value.allocation),
        };
        let (lease, next) = (open.lease, open.start + footprint);
        self.open = None;
        space.give_back(lease.segment, self.stream, LeaseEnd::ContinueAt(next));
        Ok(Arc::new(stored))
    }

    fn own_body(&self) -> u64 {
        self.open.as_ref().map_or(0, OpenRecord::body)
    }

    fn tail_len(&self, meta: &[u8], parts: usize) -> u64 {
        (self.key.len() + meta.len() + parts * super::layout::PART_LEN) as u64
    }
}

impl<M: Medium> Drop for Writer<M> {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let end_of_lease = if self.medium_failed {
            LeaseEnd::Retired
        } else if Arc::get_mut(&mut self.value).is_some() {
            // No reader has seen these bytes, so the next writer may overwrite them.
            LeaseEnd::ContinueAt(open.start)
        } else {
            self.value
                .allocation
                .mark_live(open.lease.segment, align(open.at - open.start));
            LeaseEnd::Full
        };
        self.log
            .inner
            .space
            .give_back(open.lease.segment, self.stream, end_of_lease);
    }
}

impl<M: Medium> UncommittedReader<M> {
    /// Returns the number of readable bytes so far.
    pub fn len(&self) -> u64 {
        self.value.len()
    }

    /// Whether no bytes are readable yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` with the content from `offset` on.
    ///
    /// # Errors
    /// [`Error::Range`] if the range exceeds the bytes that were written so far.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let touched = self.value.extents_of(offset, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        let read = entry::read(&self.log.inner.medium, &touched, offset, buf);
        read.inspect_err(|error| self.log.retire_failed_segment(error))
    }
}

impl UncommittedValue {
    fn extents(&self) -> parking_lot::RwLockReadGuard<'_, Vec<Extent>> {
        self.extents.read()
    }

    fn len(&self) -> u64 {
        self.extents()
            .last()
            .map_or(0, |last| last.start + last.len)
    }

    /// Returns a copy of the list of extents that contain the `len` bytes from `offset` on. The
    /// list is copied, because a reader of a slow medium must not block the writer.
    fn extents_of(&self, offset: u64, len: u64) -> Result<Vec<Extent>, Error> {
        let extents = self.extents();
        let of = extents.last().map_or(0, |last| last.start + last.len);
        crate::medium::check_range(offset, len, of)?;
        let from = extents.partition_point(|extent| extent.start + extent.len <= offset);
        let touched = extents[from..].iter();
        Ok(touched
            .take_while(|extent| extent.start < offset + len)
            .copied()
            .collect())
    }

    /// Appends the `len` bytes at `offset` of the medium to the value.
    fn grow(&self, offset: u64, len: u64) {
        let start = self.len();
        let mut extents = self.extents.write();
        match extents
            .last_mut()
            .filter(|last| last.offset + last.len == offset)
        {
            Some(last) => last.len += len,
            None => extents.push(Extent { start, offset, len }),
        }
    }

    /// Returns the extents in all records except for the last record. The last record contains
    /// `own` bytes of content.
    fn parts(&self, own: u64) -> Vec<Extent> {
        let mut parts = self.extents().clone();
        if own > 0 {
            parts.pop();
        }
        parts
    }
}

impl OpenRecord {
    /// Returns the number of content bytes in this record so far.
    const fn body(&self) -> u64 {
        self.at - self.start - LINE
    }

    /// Returns the head of this record as a part of a value.
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

    /// Writes the head of the record and makes the whole record durable; all other bytes of the
    /// record must be written before. Marks the record as live. Returns the head and the size of
    /// the record in bytes.
    fn seal<M: Medium>(
        &mut self,
        log: &Log<M>,
        allocation: &Allocation,
        stream: Stream,
        record: &Record,
    ) -> Result<(Line, u64), Error> {
        let medium = &log.inner.medium;
        let line = record.encode(log.inner.head.id, self.start);
        let footprint = record.footprint();
        // The bytes of the content were added to `used` when they were written.
        let more = footprint - u64::from(record.body);
        allocation.charge(more, stream == Stream::New)?;
        medium.write(self.start, &line)?;
        let lead = if self.lease.fresh {
            self.start - LINE
        } else {
            self.start
        };
        medium.flush(lead, self.start + LINE - lead)?;
        medium.flush(self.durable_to, self.at - self.durable_to)?;
        medium.fence()?;
        self.lease.fresh = false;
        allocation.mark_live(self.lease.segment, footprint);
        Ok((line, footprint))
    }
}

fn flush_interval<M: Medium>(log: &Log<M>) -> u64 {
    let segment = log.inner.space.segment();
    match log.inner.medium.class() {
        Class::Pmem => FLUSH_INTERVAL.min(segment / 4),
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
