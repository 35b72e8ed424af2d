//! A log-structured store of values over any [`Medium`]: committed by 8 bytes, reclaimed by
//! segments.
//!
//! `docs/formats/pmem.md` has the layout, and why each flush and each fence is there.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::looked::Looked;
use crate::{Error, Medium};

mod compaction;
mod entry;
#[cfg(any(test, feature = "fuzzing"))]
mod forge;
mod layout;
mod lines;
mod recovery;
mod space;
mod writer;

#[cfg(test)]
mod tests;

pub use entry::{Entry, Extent, Found};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use forge::forge;
pub use layout::{MAX_KEY, MAX_META, SEGMENTS};
pub use writer::{Partial, Writer};

use entry::Stored;
use layout::{COMMIT, Head};
use space::{Lease, Leave, Space, Stream};

/// Segments that one writer empties before it is told that there is no room: each frees a 16th of a
/// segment at least.
const ROUNDS: usize = 32;

/// How a region is formatted; one that is formatted already keeps its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a segment: a power of two within [`SEGMENTS`]. A value ends at most one segment
    /// that it does not fill, and no value has more than about `segment²/24` bytes (180 GB of the
    /// default).
    pub segment: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment: 2 << 20 }
    }
}

/// What was found in a region when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Values.
    pub entries: u64,
    /// Bytes that they take, heads and meta included.
    pub bytes: u64,
    /// Records that were committed once, and of which not enough is left to serve them: the medium
    /// rots.
    pub dropped: u64,
    /// Places that are not what was written, each in front of records that are, or that cannot be
    /// read at all: one record is lost there, or several.
    pub damaged: u64,
    /// Segments in the region.
    pub segments: u64,
    /// Whether the region was formatted just now.
    pub formatted: bool,
}

/// The store. A clone is another handle of the same; all calls block, and may come from any thread.
///
/// Memory: about 300 bytes a value and 24 for each of its parts, 100 a segment; no content.
/// A region belongs to one `Log` at a time: whoever opens the medium sees to that.
pub struct Log<M> {
    inner: Arc<Inner<M>>,
}

struct Inner<M> {
    medium: M,
    head: Head,
    space: Arc<Space>,
    index: RwLock<HashMap<Box<[u8]>, Arc<Stored>>>,
    /// Held while a key's record changes for another or none, from its commit word to that of the
    /// older: so no two have a durable commit word once a call has returned. By hash of the key.
    turns: [Mutex<()>; 16],
    hasher: RandomState,
    serial: AtomicU64,
    compaction: Mutex<()>,
    /// Values whose commit word the medium would not take back: their bytes stay untouched until
    /// the log is opened again.
    limbo: Mutex<Vec<Arc<Stored>>>,
}

impl<M> Clone for Log<M> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<M: Medium> Log<M> {
    /// Formats a region whose header was never written, reads any other: a page for each segment
    /// and each page with a record's head, one read for each key and meta, and the ends of segments
    /// that nothing was written to; no content. 1e5 values took 2 s on a busy machine.
    ///
    /// # Errors
    /// [`Error::Format`] for a region that is none of this version, of another size, or damaged in
    /// both headers; [`Error::Medium`] for one that cannot be read, and then nothing is thrown
    /// away.
    pub fn open(medium: M, options: Options) -> Result<(Self, Recovered), Error> {
        recovery::open(medium, options)
    }

    /// What [`open`](Self::open) would find, or say, at the same cost. Nothing is changed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn look(medium: &M, options: Options) -> Result<Recovered, Error> {
        recovery::open(Looked(medium), options).map(|(_, found)| found)
    }

    /// Begins a value that replaces the one under `key`, if any, when it is committed. Nothing
    /// waits in memory: what is written goes straight to the medium.
    ///
    /// # Errors
    /// [`Error::NoRoom`] at the limit; [`Error::TooLarge`] for a key of more than [`MAX_KEY`]
    /// bytes.
    pub fn begin(&self, key: &[u8]) -> Result<Writer<M>, Error> {
        self.inner.space.admit()?;
        Writer::new(self.clone(), key, Stream::Fresh)
    }

    /// The value under `key`, with its meta: one read of the medium.
    ///
    /// # Errors
    /// [`Error::Damaged`] when key or meta are not those that were committed.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        let stored = self.index().get(key).cloned();
        stored.map(|stored| self.entry(stored)).transpose()
    }

    /// Fills `buf` from `offset` of a value, whether or not it was removed since. It checks no
    /// content: whoever wrote it has its checksums.
    ///
    /// # Errors
    /// [`Error::Range`] beyond the end of the value; [`Error::Medium`] where it cannot be read,
    /// which costs that value alone: the segment is not written to any more.
    pub fn read_at(&self, entry: &Entry, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let read = entry::read(&self.inner.medium, entry.extents(), offset, buf);
        read.inspect_err(|error| self.avoid(error))
    }

    /// Removes the value under `key`; `false` when there is none. Durable when it returns. Its
    /// space is free once nobody holds an [`Entry`] of it.
    ///
    /// # Errors
    /// Of the medium: the value is still there, or will be gone when the log is opened again.
    pub fn remove(&self, key: &[u8]) -> Result<bool, Error> {
        let _turn = self.turn(key);
        let Some(stored) = self.index().get(key).cloned() else {
            return Ok(false);
        };
        self.bury(&stored)?;
        self.index_mut().remove(key);
        Ok(true)
    }

    /// Visits every value of a moment, in no order. Values may be removed meanwhile, by the visitor
    /// too.
    pub fn entries(&self, visit: &mut dyn FnMut(Found<'_>)) {
        let all: Vec<_> = self.index().values().cloned().collect();
        for stored in all {
            visit(stored.found());
        }
    }

    /// Bytes that values take, those being written and those removed but held by readers included.
    pub fn used(&self) -> u64 {
        self.inner.space.used()
    }

    /// The most that a value of `len` bytes adds to [`used`](Self::used), with a key and a meta of
    /// so many: in the many parts that it has when it fills the ends of segments that others left.
    pub fn footprint(&self, len: u64, key: usize, meta: usize) -> u64 {
        self.inner.space.footprint(len, (key + meta) as u64)
    }

    /// The most that [`used`](Self::used) can ever be: the region without headers and what
    /// compaction needs.
    pub fn capacity(&self) -> u64 {
        self.inner.space.capacity()
    }

    /// Above it nothing is begun, and nothing goes on being written.
    pub fn limit(&self) -> u64 {
        self.inner.space.limit()
    }

    /// Changes the limit, at most to the capacity. Nothing is removed for it: whoever knows what is
    /// worth least does that.
    pub fn set_limit(&self, limit: u64) {
        self.inner.space.set_limit(limit);
    }

    /// Gives the memory of what is free back to the machine ([`Medium::release`]): says how many
    /// bytes. On a medium that outlives a power cut nothing is done.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn release(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        if self.inner.medium.class().is_persistent() {
            return Ok(bytes);
        }
        while let Some(index) = self.inner.space.take_unreleased() {
            let (begin, end) = self.inner.space.bounds(index);
            let released = self.inner.medium.release(begin, end - begin);
            self.inner.space.released(index);
            released?;
            bytes += end - begin;
        }
        Ok(bytes)
    }

    /// Where byte `offset` of a value lies in the medium, and how many from there on lie in one
    /// run; `None` beyond its end. Who asks may give these bytes to the kernel, by `sendfile`,
    /// which reads them for as long as the client has not: they stay as they are, whatever becomes
    /// of the value.
    pub fn lend(&self, entry: &Entry, offset: u64) -> Option<(u64, u64)> {
        let run = entry.run(offset)?;
        self.inner.space.lend(run.0);
        Some(run)
    }

    /// What the log lies on.
    pub fn medium(&self) -> &M {
        &self.inner.medium
    }

    /// The meta of a value, checked.
    fn entry(&self, stored: Arc<Stored>) -> Result<Entry, Error> {
        let tail = entry::tail(
            &self.inner.medium,
            stored.tail_at,
            stored.tail_len,
            stored.tail_sum,
        );
        let tail = tail.inspect_err(|error| self.avoid(error))?;
        let from = stored.key.len();
        let meta = tail.get(from..from + stored.meta_len);
        let meta = meta
            .ok_or(Error::Damaged {
                offset: stored.tail_at,
            })?
            .to_vec();
        Ok(Entry::new(stored, meta))
    }

    /// Makes a value visible whose bytes are all durable, and its predecessor gone;
    /// [`turn`](Self::turn) is held.
    fn publish(&self, stored: &Arc<Stored>) -> Result<(), Error> {
        let medium = &self.inner.medium;
        let at = stored.record + COMMIT;
        let commit = || {
            medium.store(at, stored.word)?;
            medium.flush(at, 8)?;
            medium.fence()
        };
        if let Err(error) = commit() {
            // It may have become durable, so it must become undone or be left alone.
            if self.bury(stored).is_err() {
                self.limbo().push(Arc::clone(stored));
            }
            return Err(error);
        }
        self.inner.space.settle_in(stored);
        let old = self
            .index_mut()
            .insert(stored.key.clone(), Arc::clone(stored));
        let Some(old) = old else { return Ok(()) };
        self.bury(&old).inspect_err(|_| self.limbo().push(old))
    }

    /// Takes a commit word back, for good. Until then not one byte of the value may be written
    /// over: a cut would leave a committed record with another's content.
    fn bury(&self, stored: &Stored) -> Result<(), Error> {
        let at = stored.record + COMMIT;
        self.inner.medium.store(at, 0)?;
        self.inner.medium.flush(at, 8)?;
        self.inner.medium.fence()
    }

    /// Where the medium failed nobody shall meet it again.
    fn avoid(&self, error: &Error) {
        if let Error::Medium { offset, .. } = error {
            self.inner.space.retire(*offset);
        }
    }

    /// Removes the value that lies under its key and can never be had again; [`turn`](Self::turn)
    /// is held.
    fn forget(&self, stored: &Stored) -> Result<(), Error> {
        self.bury(stored)?;
        self.index_mut().remove(&stored.key);
        Ok(())
    }

    /// A segment to append to. Compacts when there is none: the writer who needs the space pays for
    /// it.
    fn lease(&self, stream: Stream, need: u64) -> Result<Lease, Error> {
        for _ in 0..ROUNDS {
            if let Some(lease) = self.inner.space.lease(stream, need) {
                return self.renewed(lease, stream);
            }
            if stream == Stream::Moved || !self.compact()? {
                break;
            }
        }
        Err(Error::NoRoom)
    }

    /// Sees to it that what is written there is seen by nobody who has what was.
    fn renewed(&self, lease: Lease, stream: Stream) -> Result<Lease, Error> {
        let space = &self.inner.space;
        if lease.stale {
            let (begin, end) = space.bounds(lease.segment);
            if let Err(error) = self.inner.medium.renew(begin, end - begin) {
                let leave = match error {
                    Error::NoRoom => Leave::Full,
                    _ => Leave::Retired,
                };
                space.give_back(lease.segment, stream, leave);
                return Err(error);
            }
            space.renewed(lease.segment);
        }
        Ok(lease)
    }

    fn turn(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let hash = self.inner.hasher.hash_one(key);
        let turn = &self.inner.turns[usize::from(hash.to_le_bytes()[0]) % self.inner.turns.len()];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_serial(&self) -> u64 {
        self.inner.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn index(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Box<[u8]>, Arc<Stored>>> {
        self.inner
            .index
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Box<[u8]>, Arc<Stored>>> {
        self.inner
            .index
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn limbo(&self) -> MutexGuard<'_, Vec<Arc<Stored>>> {
        self.inner
            .limbo
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
