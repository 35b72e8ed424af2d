//! The persistent-memory tier: stores each blob as one value of a log. A value is the content of
//! the blob, followed by a trailer (checksums and media type). The files of the disk tier have the
//! same form.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest};
use pierhead_pmem::{Class, Entry, Error, Log, Medium, UncommittedReader, Writer};

use super::switch_reader::SwitchReader;
use super::{Blob, CHUNK, Extent, FastMedium, ReadAt, Staged, Tier, TierEntry, Trailer};
use crate::clock::now;
use crate::page_cache::resident;

/// Number of bytes per copy step when a partial fill is resumed.
const COPY_STEP: usize = 1 << 20;

/// The persistent-memory tier. Staged bytes are lost at a restart of pierhead: after a restart, the
/// tier has committed blobs only.
pub struct PmemTier<M: Medium + 'static>(Arc<Inner<M>>);

struct Inner<M: Medium> {
    log: Log<M>,
    /// A file that contains the bytes of the medium at the same offsets. `sendfile` sends blobs
    /// from this file.
    file: Option<File>,
    partials: Mutex<HashMap<Digest, PartialFill<M>>>,
    numbers: Mutex<Numbers>,
}

/// A fill that was interrupted and can be resumed.
struct PartialFill<M: Medium> {
    writer: Writer<M>,
    len: u64,
    modified: u64,
}

/// Gives each committed value a number. The number distinguishes values that were committed under
/// one digest at different times, possibly at the same offset.
#[derive(Default)]
struct Numbers {
    last: u64,
    /// For each digest, the offset of the content and the number of the value.
    known: HashMap<Digest, (u64, u64)>,
}

impl<M: Medium + 'static> PmemTier<M> {
    /// Creates the tier. `file` contains the bytes of the medium at the same offsets; `sendfile`
    /// sends blobs from this file.
    pub fn new(log: Log<M>, file: Option<File>) -> Self {
        Self(Arc::new(Inner {
            log,
            file,
            partials: Mutex::default(),
            numbers: Mutex::default(),
        }))
    }

    /// Returns the durability class of the medium.
    pub fn class(&self) -> Class {
        self.0.log.medium().class()
    }

    /// Returns the maximum number of bytes that all records and their bookkeeping may take.
    pub fn capacity(&self) -> u64 {
        self.0.log.capacity()
    }
}

/// Maximum length in bytes of a key in the log: one byte for the algorithm and 64 bytes for a
/// SHA-512.
const MAX_KEY_LEN: usize = 65;
const META_LEN: usize = 8;

/// Returns the key of a value in the log: one byte for the algorithm, then the hash.
fn key(digest: &Digest) -> Vec<u8> {
    let tag = match digest.algorithm() {
        Algorithm::Sha256 => 1,
        Algorithm::Sha512 => 2,
    };
    let mut key = vec![tag];
    key.extend_from_slice(digest.as_bytes());
    key
}

fn digest(key: &[u8]) -> Option<Digest> {
    let (tag, hash) = key.split_first()?;
    let algorithm = match tag {
        1 => Algorithm::Sha256,
        2 => Algorithm::Sha512,
        _ => return None,
    };
    Digest::from_bytes(algorithm, hash)
}

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
    /// Returns the number of the value that is stored under `digest`. If the value is new, or at
    /// another offset than before, it gets a new number.
    fn number(&self, digest: &Digest, entry: &Entry, is_new: bool) -> u64 {
        let at = entry.extents().first().map_or(0, |extent| extent.offset);
        let numbers = &mut *self.numbers.lock();
        match numbers.known.get(digest) {
            Some((known, number)) if *known == at && !is_new => *number,
            _ => {
                numbers.last += 1;
                numbers.known.insert(*digest, (at, numbers.last));
                numbers.last
            }
        }
    }

    fn blob(
        self: &Arc<Self>,
        digest: &Digest,
        entry: Entry,
        trailer: Trailer,
        is_new: bool,
    ) -> Arc<dyn Blob> {
        Arc::new(PmemBlob {
            number: self.number(digest, &entry, is_new),
            inner: self.clone(),
            entry,
            trailer,
        })
    }

    fn staged(self: &Arc<Self>, digest: &Digest) -> io::Result<PmemStaged<M>> {
        let writer = self.log.begin(&key(digest)).map_err(io_error)?;
        Ok(PmemStaged {
            inner: self.clone(),
            digest: *digest,
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
        let mut staged = self.0.staged(digest)?;
        let Some(partial) = self.0.partials.lock().remove(digest) else {
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
        let partial = self.0.partials.lock().remove(digest);
        drop(partial);
        Ok(())
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let Some(entry) = self.0.log.get(&key(digest)).map_err(io_error)? else {
            return Ok(None);
        };
        let trailer = Trailer::decode(digest, entry.len(), |offset, buf| {
            self.0.log.read_at(&entry, offset, buf).map_err(io_error)
        })?;
        Ok(Some(self.0.blob(digest, entry, trailer, false)))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.0.numbers.lock().known.remove(digest);
        self.0
            .log
            .remove(&key(digest))
            .map_err(io_error)
            .map(|_| ())
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.0.log.entries(&mut |found| {
            // Keys of other lengths are skipped. pierhead never writes such keys.
            let Some(digest) = digest(found.key) else {
                return;
            };
            let entry = self.0.log.get(found.key).ok().flatten();
            let meta = entry.and_then(|entry| entry.meta().try_into().ok());
            visit(TierEntry {
                digest,
                bytes: found.len,
                modified: meta.map_or(0, u64::from_le_bytes),
            });
        });
        Ok(())
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        for (digest, partial) in &*self.0.partials.lock() {
            visit(TierEntry {
                digest: *digest,
                bytes: partial.len,
                modified: partial.modified,
            });
        }
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        let log = &self.0.log;
        // A read of 0 bytes fails if the medium has failed.
        log.medium().inspect(0, &mut []).map_err(io_error)?;
        Ok(log.limit().saturating_sub(log.used()))
    }
}

impl<M: Medium + 'static> FastMedium for PmemTier<M> {
    fn footprint(&self, bytes: u64) -> u64 {
        self.0.log.footprint(bytes, MAX_KEY_LEN, META_LEN)
    }

    fn release(&self) -> io::Result<u64> {
        self.0.log.release().map_err(io_error)
    }
}

struct PmemStaged<M: Medium + 'static> {
    inner: Arc<Inner<M>>,
    digest: Digest,
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
        let writer = self.inner.log.begin(&key(&self.digest)).map_err(io_error)?;
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
            .write(&trailer.encode(&self.digest))
            .map_err(io_error)?;
        let entry = writer.commit(&now().to_le_bytes()).map_err(io_error)?;
        Ok(self.inner.blob(&self.digest, entry, trailer, true))
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
            self.inner.partials.lock().insert(self.digest, partial);
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
