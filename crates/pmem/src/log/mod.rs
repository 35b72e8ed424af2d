//! A log-structured key-value store on any [`Medium`]. Each value is committed by the write of an
//! 8-byte commit word. Compaction frees segments whose bytes are mostly dead (of removed values).
//!
//! `docs/formats/pmem.md` describes the layout, and the reasons for each flush and each fence.

use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::read_only::ReadOnly;
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

pub use entry::{Entry, EntryInfo, Extent};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use forge::forge;
pub use layout::{MAX_KEY_LEN, MAX_META_LEN, SEGMENT_SIZES};
pub use writer::{UncommittedReader, Writer};

use entry::IndexEntry;
use layout::{COMMIT_OFFSET, Head};
use space::{Lease, LeaseEnd, Space, Stream};

/// Maximum number of segments that one writer compacts. After this number, the writer gets
/// [`Error::NoRoom`]. Each compaction frees at least 1/16 of a segment.
const MAX_COMPACTIONS: usize = 32;

/// The format of a new region. A region that already has a log keeps the format of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of a segment in bytes: a power of two within [`SEGMENT_SIZES`]. A value leaves at most
    /// one segment partly filled. The maximum size of a value is about `segment²/24` bytes (180 GB
    /// for the default segment size).
    pub segment: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment: 2 << 20 }
    }
}

/// The result of opening a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of values that were found.
    pub entries: u64,
    /// Bytes that all values occupy, including heads and meta.
    pub bytes: u64,
    /// Number of committed records that are too damaged to be used, and are ignored.
    pub dropped: u64,
    /// Number of damaged or unreadable places in front of intact records. At each such place, one
    /// or more records are lost.
    pub damaged: u64,
    /// Number of segments in the region.
    pub segments: u64,
    /// Whether this call formatted the region.
    pub formatted: bool,
}

/// The log. Clones share one log. All calls block, and may come from any thread.
///
/// The log needs about 300 bytes of memory per value, 24 bytes per part of a value, and 100 bytes
/// per segment. Contents are not in memory. A region has at most one `Log` at a time, which the
/// owner of the medium ensures.
pub struct Log<M> {
    inner: Arc<Inner<M>>,
}

struct Inner<M> {
    medium: M,
    head: Head,
    space: Arc<Space>,
    /// The committed value of each key.
    index: RwLock<HashMap<Box<[u8]>, Arc<IndexEntry>>>,
    /// The locks of the keys, selected by a hash of the key. A lock is held while the record of a
    /// key is replaced or removed, from its commit word until the old commit word is cleared. Thus,
    /// when a call returns, at most one record of a key has a durable commit word.
    key_locks: [Mutex<()>; 16],
    hasher: RandomState,
    serial: AtomicU64,
    compaction: Mutex<()>,
    /// Values whose commit word could not be cleared. The bytes of these values are not overwritten
    /// until the log is opened again.
    uncleared: Mutex<Vec<Arc<IndexEntry>>>,
}

impl<M> Clone for Log<M> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<M: Medium> Log<M> {
    /// Formats a region without a header, or reads the log of a region. Reads the first page of
    /// each segment, all pages with the head of a record, all keys and metas, and the unwritten
    /// ends of segments. Reads no contents. For 100 000 values, opening took 2 s on a busy machine.
    ///
    /// # Errors
    /// [`Error::Format`] for another version, another size, or two damaged headers;
    /// [`Error::Medium`] for an unreadable region. The region is not changed in either case.
    pub fn open(medium: M, options: Options) -> Result<(Self, RecoveryReport), Error> {
        recovery::open(medium, options)
    }

    /// Returns the report that [`open`](Self::open) would return, in the same time. Changes
    /// nothing.
    ///
    /// # Errors
    /// The same errors as [`open`](Self::open).
    pub fn check(medium: &M, options: Options) -> Result<RecoveryReport, Error> {
        recovery::open(ReadOnly(medium), options).map(|(_, found)| found)
    }

    /// Starts to write a value. When the new value is committed, it replaces the previous value of
    /// `key`. Written bytes go directly to the medium.
    ///
    /// Errors: [`Error::NoRoom`] at the limit; [`Error::TooLarge`] for a key of more than
    /// [`MAX_KEY_LEN`] bytes.
    pub fn begin(&self, key: &[u8]) -> Result<Writer<M>, Error> {
        self.inner.space.check_limit()?;
        Writer::new(self.clone(), key, Stream::New)
    }

    /// Returns the value of `key`, with its meta. Reads the medium once.
    ///
    /// # Errors
    /// [`Error::Damaged`] when key or meta are damaged, or an error of the medium.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        let stored = self.index().get(key).cloned();
        stored.map(|stored| self.entry(stored)).transpose()
    }

    /// Fills `buf` with the content of a value from `offset` on, even if the value was removed
    /// after it was opened. Does not verify the content, because the caller has its own checksums
    /// for it.
    ///
    /// Errors: [`Error::Range`] beyond the end of the value; [`Error::Medium`] where the value is
    /// unreadable. An unreadable place affects only this value. No more bytes are written to the
    /// segment with this place.
    pub fn read_at(&self, entry: &Entry, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let read = entry::read(&self.inner.medium, entry.extents(), offset, buf);
        read.inspect_err(|error| self.retire_failed_segment(error))
    }

    /// Removes the value of `key`. Returns `false` when there is no value. The removal is durable
    /// when the call returns. The space is free once the last [`Entry`] of the value is dropped.
    ///
    /// # Errors
    /// An error of the medium. After an error, the value still exists, but it may be gone after the
    /// next opening.
    pub fn remove(&self, key: &[u8]) -> Result<bool, Error> {
        let _key_lock = self.lock_key(key);
        let Some(stored) = self.index().get(key).cloned() else {
            return Ok(false);
        };
        self.clear_commit_word(&stored)?;
        self.index_mut().remove(key);
        Ok(true)
    }

    /// Calls `visit` for all values that exist at the time of the call, in arbitrary order. Values
    /// may be removed during the call, even by `visit`.
    pub fn entries(&self, visit: &mut dyn FnMut(EntryInfo<'_>)) {
        let all: Vec<_> = self.index().values().cloned().collect();
        for stored in all {
            visit(stored.info());
        }
    }

    /// Returns the bytes of all values, including values that are being written, and including
    /// removed values that readers still have open.
    pub fn used(&self) -> u64 {
        self.inner.space.used()
    }

    /// Returns the maximum number of bytes that a value of `len` bytes with this key and meta adds
    /// to [`used`](Self::used). Assumes the worst case: the value fills the ends of many segments
    /// and so has many parts.
    pub fn footprint(&self, len: u64, key: usize, meta: usize) -> u64 {
        self.inner.space.footprint(len, (key + meta) as u64)
    }

    /// Returns the maximum of [`used`](Self::used): the size of the region minus the heads and the
    /// reserve for compaction.
    pub fn capacity(&self) -> u64 {
        self.inner.space.capacity()
    }

    /// Returns the limit of [`used`](Self::used) in bytes. At the limit, writers fail.
    pub fn limit(&self) -> u64 {
        self.inner.space.limit()
    }

    /// Changes the limit. A limit above the capacity is set to the capacity. Removes no values,
    /// because the caller decides which values to remove.
    pub fn set_limit(&self, limit: u64) {
        self.inner.space.set_limit(limit);
    }

    /// Returns free memory to the operating system ([`Medium::release`]). The result is the number
    /// of bytes that were returned. On a persistent medium, does nothing.
    ///
    /// # Errors
    /// [`Error::Medium`] if the medium has failed.
    pub fn release(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        if self.inner.medium.class().is_persistent() {
            return Ok(bytes);
        }
        while let Some(index) = self.inner.space.take_unreleased() {
            let (begin, end) = self.inner.space.bounds(index);
            let released = self.inner.medium.release(begin, end - begin);
            self.inner.space.mark_released(index);
            released?;
            bytes += end - begin;
        }
        Ok(bytes)
    }

    /// Returns the position of byte `offset` of a value in the medium, and the number of contiguous
    /// bytes from there on. `None` beyond the end of the value. The caller may pass these bytes to
    /// the kernel by `sendfile`. The kernel may read these bytes long after the call. The bytes
    /// stay unchanged, even if the value is removed.
    pub fn sendable_run(&self, entry: &Entry, offset: u64) -> Option<(u64, u64)> {
        let run = entry.run(offset)?;
        self.inner.space.mark_sent(run.0);
        Some(run)
    }

    /// Returns the medium of the log.
    pub fn medium(&self) -> &M {
        &self.inner.medium
    }

    /// Reads and verifies the meta of a value.
    fn entry(&self, stored: Arc<IndexEntry>) -> Result<Entry, Error> {
        let tail = entry::tail(
            &self.inner.medium,
            stored.tail_at,
            stored.tail_len,
            stored.tail_sum,
        );
        let tail = tail.inspect_err(|error| self.retire_failed_segment(error))?;
        let from = stored.key.len();
        let meta = tail.get(from..from + stored.meta_len);
        let meta = meta
            .ok_or(Error::Damaged {
                offset: stored.tail_at,
            })?
            .to_vec();
        Ok(Entry::new(stored, meta))
    }

    /// Makes a value visible, and removes the previous value of its key. The bytes of the value
    /// must be durable. The caller must hold [`lock_key`](Self::lock_key).
    fn publish(&self, stored: &Arc<IndexEntry>) -> Result<(), Error> {
        let medium = &self.inner.medium;
        let at = stored.record + COMMIT_OFFSET;
        let commit = || {
            medium.store(at, stored.word)?;
            medium.flush(at, 8)?;
            medium.fence()
        };
        if let Err(error) = commit() {
            // The commit word may be durable. If the commit word cannot be cleared, the bytes of
            // the value must not be overwritten.
            if self.clear_commit_word(stored).is_err() {
                self.uncleared().push(Arc::clone(stored));
            }
            return Err(error);
        }
        self.inner.space.register_resident(stored);
        let old = self
            .index_mut()
            .insert(stored.key.clone(), Arc::clone(stored));
        let Some(old) = old else { return Ok(()) };
        self.clear_commit_word(&old)
            .inspect_err(|_| self.uncleared().push(old))
    }

    /// Clears the commit word of a value durably. Before the commit word is cleared, no byte of the
    /// value may be overwritten: otherwise a power cut could leave a committed record with other
    /// content.
    fn clear_commit_word(&self, stored: &IndexEntry) -> Result<(), Error> {
        let at = stored.record + COMMIT_OFFSET;
        self.inner.medium.store(at, 0)?;
        self.inner.medium.flush(at, 8)?;
        self.inner.medium.fence()
    }

    /// Retires the segment in which the medium failed: the segment is not written any more.
    fn retire_failed_segment(&self, error: &Error) {
        if let Error::Medium { offset, .. } = error {
            self.inner.space.retire(*offset);
        }
    }

    /// Removes a value that cannot be read. The caller must hold [`lock_key`](Self::lock_key).
    fn remove_unreadable(&self, stored: &IndexEntry) -> Result<(), Error> {
        self.clear_commit_word(stored)?;
        self.index_mut().remove(&stored.key);
        Ok(())
    }

    /// Leases a segment to append to. When no segment is free, first compacts the log on the thread
    /// of the writer that needs the space.
    fn lease(&self, stream: Stream, need: u64) -> Result<Lease, Error> {
        for _ in 0..MAX_COMPACTIONS {
            if let Some(lease) = self.inner.space.lease(stream, need) {
                return self.renew_if_stale(lease, stream);
            }
            if stream == Stream::Compacted || !self.compact()? {
                break;
            }
        }
        Err(Error::NoRoom)
    }

    /// Replaces the memory of a leased segment by new memory, if readers may still use the old
    /// bytes.
    fn renew_if_stale(&self, lease: Lease, stream: Stream) -> Result<Lease, Error> {
        let space = &self.inner.space;
        if lease.stale {
            let (begin, end) = space.bounds(lease.segment);
            if let Err(error) = self.inner.medium.renew(begin, end - begin) {
                let end_of_lease = match error {
                    Error::NoRoom => LeaseEnd::Full,
                    _ => LeaseEnd::Retired,
                };
                space.give_back(lease.segment, stream, end_of_lease);
                return Err(error);
            }
            space.mark_renewed(lease.segment);
        }
        Ok(lease)
    }

    fn lock_key(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let hash = self.inner.hasher.hash_one(key);
        let lock =
            &self.inner.key_locks[usize::from(hash.to_le_bytes()[0]) % self.inner.key_locks.len()];
        lock.lock()
    }

    fn next_serial(&self) -> u64 {
        self.inner.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn index(&self) -> parking_lot::RwLockReadGuard<'_, HashMap<Box<[u8]>, Arc<IndexEntry>>> {
        self.inner.index.read()
    }

    fn index_mut(&self) -> parking_lot::RwLockWriteGuard<'_, HashMap<Box<[u8]>, Arc<IndexEntry>>> {
        self.inner.index.write()
    }

    fn uncleared(&self) -> MutexGuard<'_, Vec<Arc<IndexEntry>>> {
        self.inner.uncleared.lock()
    }
}
