//! The persistent-memory tier: stores each blob as one value of a log. A value is the content of
//! the blob, followed by a trailer (checksums and media type). The files of the disk tier have the
//! same form.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;
use pierhead_pmem::{Class, Entry, Error, Log, Medium, UncommittedReader, Writer};

use super::copy_key::{CopyKey, CopyKind};
use super::switch_reader::SwitchReader;
use super::{Blob, CHUNK, Extent, FastMedium, ReadAt, Staged, Tier, TierEntry, Trailer};
use crate::clock::now;
use crate::page_cache::resident;

/// Number of bytes per copy step when a partial fill is resumed.
const COPY_STEP: usize = 1 << 20;

/// The persistent-memory tier. Each copy is a value of the log, under the key of the copy. Staged bytes are lost at a restart of pierhead: after a restart, the
/// tier has committed blobs only.
pub struct PmemTier<M: Medium + 'static> {
    inner: Arc<Inner<M>>,
    /// The copies that this tier shows: whole blobs, or hot chunks ([`FastMedium::hot_copies`]).
    kind: CopyKind,
}

struct Inner<M: Medium> {
    log: Log<M>,
    /// A file that contains the bytes of the medium at the same offsets. `sendfile` sends blobs
    /// from this file.
    file: Option<File>,
    partials: Mutex<HashMap<CopyKey, PartialFill<M>>>,
    numbers: Mutex<Numbers>,
}

/// A fill that was interrupted and can be resumed.
struct PartialFill<M: Medium> {
    writer: Writer<M>,
    len: u64,
    modified: u64,
}

/// Gives each committed value a number. The number distinguishes values that were committed under
/// one key at different times, possibly at the same offset.
#[derive(Default)]
struct Numbers {
    last: u64,
    /// For each key, the offset of the content and the number of the value.
    known: HashMap<CopyKey, (u64, u64)>,
}

impl<M: Medium + 'static> PmemTier<M> {
    /// Creates the tier. `file` contains the bytes of the medium at the same offsets; `sendfile`
    /// sends blobs from this file.
    pub fn new(log: Log<M>, file: Option<File>) -> Self {
        Self {
            inner: Arc::new(Inner {
                log,
                file,
                partials: Mutex::default(),
                numbers: Mutex::default(),
            }),
            kind: CopyKind::Whole,
        }
    }

    /// Returns the durability class of the medium.
    pub fn class(&self) -> Class {
        self.inner.log.medium().class()
    }

    /// Returns the maximum number of bytes that all records and their bookkeeping may take.
    pub fn capacity(&self) -> u64 {
        self.inner.log.capacity()
    }

    fn key(&self, digest: &Digest) -> CopyKey {
        CopyKey::new(self.kind, digest)
    }
}

const META_LEN: usize = 8;

/// Maps errors of the log to the error kinds that the cache distinguishes: damaged, full, out of
/// range.
fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::NoRoom => io::ErrorKind::StorageFull,
        Error::Damaged { .. } | Error::Medium { .. } => io::ErrorKind::InvalidData,
        Error::Range { .. } => io::ErrorKind::UnexpectedEof,
        Error::TooLarge { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl<M: Medium + 'static> Inner<M> {
    /// Returns the number of the value that is stored under `key`. If the value is new, or at
    /// another offset than before, it gets a new number.
    fn number(&self, key: &CopyKey, entry: &Entry, is_new: bool) -> u64 {
        let at = entry.extents().first().map_or(0, |extent| extent.offset);
        let numbers = &mut *self.numbers.lock();
        match numbers.known.get(key) {
            Some((known, number)) if *known == at && !is_new => *number,
            _ => {
                numbers.last += 1;
                numbers.known.insert(*key, (at, numbers.last));
                numbers.last
            }
        }
    }

    fn blob(
        self: &Arc<Self>,
        key: &CopyKey,
        entry: Entry,
        trailer: Trailer,
        is_new: bool,
    ) -> Arc<dyn Blob> {
        Arc::new(PmemBlob {
            number: self.number(key, &entry, is_new),
            inner: self.clone(),
            entry,
            trailer,
        })
    }

    fn staged(self: &Arc<Self>, key: &CopyKey) -> io::Result<PmemStaged<M>> {
        let writer = self.log.begin(&key.encode()).map_err(io_error)?;
        Ok(PmemStaged {
            inner: self.clone(),
            key: *key,
            len: 0,
            reader: SwitchReader::new(partial_reader(&writer)),
            writer: Some(writer),
        })
    }
}

fn partial_reader<M: Medium + 'static>(writer: &Writer<M>) -> Arc<dyn ReadAt> {
    Arc::new(PartialReader(writer.reader()))
}

impl<M: Medium + 'static> Tier for PmemTier<M> {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let key = self.key(digest);
        let mut staged = self.inner.staged(&key)?;
        let Some(partial) = self.inner.partials.lock().remove(&key) else {
            return Ok(Box::new(staged));
        };
        // The log cannot reopen an interrupted value, so its bytes are copied into a new value.
        let (older, kept) = (partial.writer.reader(), partial.len.saturating_sub(1));
        let kept = kept / CHUNK as u64 * CHUNK as u64;
        let mut buffer = vec![0; usize::try_from(kept).unwrap_or(COPY_STEP).min(COPY_STEP)];
        while staged.len < kept {
            let now = usize::try_from(kept - staged.len)
                .unwrap_or(COPY_STEP)
                .min(COPY_STEP);
            older
                .read_at(staged.len, &mut buffer[..now])
                .map_err(io_error)?;
            staged.write(&[&buffer[..now]])?;
        }
        Ok(Box::new(staged))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        let partial = self.inner.partials.lock().remove(&self.key(digest));
        drop(partial);
        Ok(())
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let key = self.key(digest);
        let Some(entry) = self.inner.log.get(&key.encode()).map_err(io_error)? else {
            return Ok(None);
        };
        let trailer = Trailer::decode(digest, entry.len(), |offset, buf| {
            self.inner
                .log
                .read_at(&entry, offset, buf)
                .map_err(io_error)
        })?;
        Ok(Some(self.inner.blob(&key, entry, trailer, false)))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        let key = self.key(digest);
        self.inner.numbers.lock().known.remove(&key);
        let removed = self.inner.log.remove(&key.encode());
        removed.map_err(io_error).map(drop)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.inner.log.entries(&mut |found| {
            // pierhead writes no keys that cannot be decoded.
            let Some(key) = CopyKey::decode(found.key).filter(|key| key.kind == self.kind) else {
                return;
            };
            let entry = self.inner.log.get(found.key).ok().flatten();
            let meta = entry.and_then(|entry| entry.meta().try_into().ok());
            visit(TierEntry {
                digest: key.digest,
                bytes: found.len,
                modified: meta.map_or(0, u64::from_le_bytes),
            });
        });
        Ok(())
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        let partials = self.inner.partials.lock();
        for (key, partial) in partials.iter().filter(|(key, _)| key.kind == self.kind) {
            visit(TierEntry {
                digest: key.digest,
                bytes: partial.len,
                modified: partial.modified,
            });
        }
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        let log = &self.inner.log;
        // A read of 0 bytes fails if the medium has failed.
        log.medium().inspect(0, &mut []).map_err(io_error)?;
        Ok(log.limit().saturating_sub(log.used()))
    }
}

impl<M: Medium + 'static> FastMedium for PmemTier<M> {
    fn footprint(&self, bytes: u64) -> u64 {
        self.inner.log.footprint(bytes, CopyKey::MAX_LEN, META_LEN)
    }

    fn release(&self) -> io::Result<u64> {
        self.inner.log.release().map_err(io_error)
    }

    fn hot_copies(&self) -> io::Result<Arc<dyn Tier>> {
        Ok(Arc::new(Self {
            inner: self.inner.clone(),
            kind: CopyKind::Hot,
        }))
    }
}

struct PmemStaged<M: Medium + 'static> {
    inner: Arc<Inner<M>>,
    key: CopyKey,
    len: u64,
    reader: Arc<SwitchReader>,
    /// The value that is being written. `None` after the commit, or when `clear` could not start a
    /// new value.
    writer: Option<Writer<M>>,
}

impl<M: Medium + 'static> Staged for PmemStaged<M> {
    fn size(&self) -> u64 {
        self.len
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        for piece in pieces {
            writer.write(piece).map_err(io_error)?;
            self.len += piece.len() as u64;
        }
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.writer = None;
        self.len = 0;
        let writer = self.inner.log.begin(&self.key.encode()).map_err(io_error)?;
        self.reader.set(partial_reader(&writer));
        self.writer = Some(writer);
        Ok(())
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.reader.clone()
    }

    fn commit(mut self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        let mut writer = self.writer.take().ok_or(io::ErrorKind::BrokenPipe)?;
        if trailer.size() != self.len {
            self.writer = Some(writer);
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "trailer of another content",
            ));
        }
        writer
            .write(&trailer.encode(&self.key.digest))
            .map_err(io_error)?;
        let entry = writer.commit(&now().to_le_bytes()).map_err(io_error)?;
        Ok(self.inner.blob(&self.key, entry, trailer, true))
    }
}

impl<M: Medium + 'static> Drop for PmemStaged<M> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take().filter(|_| self.len > 0) {
            let partial = PartialFill {
                writer,
                len: self.len,
                modified: now(),
            };
            self.inner.partials.lock().insert(self.key, partial);
        }
    }
}

/// Reads a value of the log that is still being written.
struct PartialReader<M>(UncommittedReader<M>);

impl<M: Medium> ReadAt for PartialReader<M> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf).map_err(io_error)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        // Bytes that were just written are in memory, for every class of the medium.
        let there = self.0.len().saturating_sub(offset);
        let len = usize::try_from(there).unwrap_or(usize::MAX).min(buf.len());
        self.read_at(offset, &mut buf[..len])?;
        Ok(len)
    }
}

struct PmemBlob<M: Medium + 'static> {
    inner: Arc<Inner<M>>,
    /// The committed value in the log. The space of the value stays allocated while this handle
    /// exists.
    entry: Entry,
    trailer: Trailer,
    number: u64,
}

impl<M: Medium + 'static> PmemBlob<M> {
    /// Returns the number of bytes from `offset` on, at most `len`, that can be read without
    /// waiting.
    fn at_once(&self, offset: u64, len: u64) -> u64 {
        let file = match self.inner.log.medium().class() {
            // Reads from media of these classes are memory accesses and never wait.
            Class::Pmem | Class::Volatile => None,
            Class::EmulatedFile => self.inner.file.as_ref(),
        };
        let Some(file) = file else { return len };
        let mut done = 0;
        while let Some((at, run)) = self.entry.run(offset + done).filter(|_| done < len) {
            let wanted = run.min(len - done);
            let there = resident(file, at..at + wanted);
            done += there;
            if there < wanted {
                break;
            }
        }
        done
    }
}

impl<M: Medium + 'static> ReadAt for PmemBlob<M> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = self.inner.log.read_at(&self.entry, offset, buf);
        read.map_err(io_error)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        let len = len.min(self.entry.len().saturating_sub(offset));
        let len = usize::try_from(self.at_once(offset, len)).unwrap_or(0);
        self.read_at(offset, &mut buf[..len])?;
        Ok(len)
    }
}

impl<M: Medium + 'static> Blob for PmemBlob<M> {
    fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        let file = self.inner.file.as_ref()?;
        let left = self.trailer.size().checked_sub(offset)?;
        // The medium is checked first: after a failure of the medium, the file may return other
        // bytes than those that were written.
        self.inner.log.medium().inspect(0, &mut []).ok()?;
        let (at, run) = self.inner.log.sendable_run(&self.entry, offset)?;
        Some(Extent {
            file,
            at,
            len: run.min(left),
            record: Some(self.number),
        })
    }
}
