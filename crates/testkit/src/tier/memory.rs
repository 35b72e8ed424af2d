//! A storage tier in memory, for tests. A test keeps the value of the tier to simulate a restart.

use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pierhead_cache::tier::{Blob, CHUNK, FastMedium, ReadAt, Staged, Tier, TierEntry, Trailer};
use pierhead_oci::Digest;

/// A storage tier whose blobs are in memory. All clones share the blobs.
#[derive(Clone, Default)]
pub struct MemoryTier {
    blobs: Arc<Blobs>,
    /// The copies of hot chunks.
    hot: Arc<Blobs>,
    /// A counter of accesses that replaces the time of day.
    clock: Arc<AtomicU64>,
}

#[derive(Default)]
struct Blobs {
    committed: Mutex<HashMap<Digest, (Arc<MemoryBlob>, u64)>>,
    staged: Mutex<HashMap<Digest, (Arc<Bytes>, u64)>>,
}

#[derive(Default)]
struct Bytes(RwLock<Vec<u8>>);

struct MemoryBlob {
    bytes: Arc<Bytes>,
    trailer: Trailer,
    /// Length in bytes of the encoded trailer of a blob.
    extra: u64,
}

struct MemoryStaged {
    tier: MemoryTier,
    digest: Digest,
    bytes: Arc<Bytes>,
}

impl MemoryTier {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }
}

impl Tier for MemoryTier {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let tick = self.tick();
        let mut staged = self.blobs.staged.lock();
        let bytes = staged
            .entry(*digest)
            .or_insert_with(|| (Arc::default(), tick))
            .0
            .clone();
        let mut content = bytes.0.write();
        let staged_len = content.len().saturating_sub(1) / CHUNK * CHUNK;
        content.truncate(staged_len);
        drop(content);
        Ok(Box::new(MemoryStaged {
            tier: self.clone(),
            digest: *digest,
            bytes,
        }))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.blobs.staged.lock().remove(digest);
        Ok(())
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let blobs = self.blobs.committed.lock();
        Ok(blobs
            .get(digest)
            .map(|(blob, _)| blob.clone() as Arc<dyn Blob>))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.blobs.committed.lock().remove(digest);
        Ok(())
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        for (digest, (blob, modified)) in &*self.blobs.committed.lock() {
            visit(TierEntry {
                digest: *digest,
                bytes: blob.trailer.size() + blob.extra,
                modified: *modified,
            });
        }
        Ok(())
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        for (digest, (bytes, modified)) in &*self.blobs.staged.lock() {
            let len = bytes.0.read().len();
            visit(TierEntry {
                digest: *digest,
                bytes: len as u64,
                modified: *modified,
            });
        }
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl FastMedium for MemoryTier {
    fn hot_copies(&self) -> io::Result<Arc<dyn Tier>> {
        Ok(Arc::new(Self {
            blobs: self.hot.clone(),
            hot: Arc::default(),
            clock: self.clock.clone(),
        }))
    }
}

impl ReadAt for Bytes {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.read();
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let found = bytes.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.read();
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let len = buf.len().min(bytes.len() - start);
        buf[..len].copy_from_slice(&bytes[start..start + len]);
        Ok(len)
    }
}

impl ReadAt for MemoryBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.bytes.read_at(offset, buf)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.bytes.try_read_at(offset, buf)
    }
}

impl Blob for MemoryBlob {
    fn trailer(&self) -> &Trailer {
        &self.trailer
    }
}

impl Staged for MemoryStaged {
    fn size(&self) -> u64 {
        self.bytes.0.read().len() as u64
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let mut content = self.bytes.0.write();
        pieces
            .iter()
            .for_each(|piece| content.extend_from_slice(piece));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.bytes.0.write().clear();
        Ok(())
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.bytes.clone()
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        if trailer.size() != self.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let extra = trailer.encode(&self.digest).len() as u64;
        let blob = Arc::new(MemoryBlob {
            bytes: self.bytes.clone(),
            trailer,
            extra,
        });
        self.tier.blobs.staged.lock().remove(&self.digest);
        let entry = (blob.clone(), self.tier.tick());
        self.tier.blobs.committed.lock().insert(self.digest, entry);
        Ok(blob)
    }
}
