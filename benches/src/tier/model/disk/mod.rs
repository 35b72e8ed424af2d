//! Models a slow disk: a tier whose operations take the time of a device model. Written bytes stay
//! in memory until a sync, and recently read or written bytes are read from memory. The size of
//! this page cache is a part of the model.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pierhead_cache::tier::{Blob, ReadAt, Staged, Tier, TierEntry, Trailer};
use pierhead_oci::Digest;

use super::{Clock, DeviceModel, DevicePacer, Monotonic};

/// Size of a block of the page cache and of read-ahead in bytes.
const BLOCK: u64 = 256 << 10;
/// Number of bytes that a sync writes before other accesses are served.
const SYNC_CHUNK: u64 = 1 << 20;
/// Each blob has an address range of 2^40 bytes, selected by its digest.
const ADDRESS_BITS: u32 = 40;

/// The modelled disk. The model stores bytes as durably as the tier that it wraps, and is never
/// faster than this tier.
pub(in crate::tier) struct ModelledDisk<C = Monotonic> {
    tier: Arc<dyn Tier>,
    device: Arc<Device<C>>,
}

struct Device<C> {
    pacer: DevicePacer<C>,
    resident: Mutex<Resident>,
}

/// The most recently used blocks, which are in memory.
struct Resident {
    most: usize,
    ticks: u64,
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl ModelledDisk {
    /// Slows `tier` down to `model`, with a page cache of `memory` bytes.
    pub(in crate::tier) fn new(tier: Arc<dyn Tier>, model: DeviceModel, memory: u64) -> Self {
        Self::with_clock(tier, model, memory, Monotonic::default())
    }
}

impl<C: Clock> ModelledDisk<C> {
    /// As [`new`](Self::new), with another clock.
    pub(in crate::tier) fn with_clock(
        tier: Arc<dyn Tier>,
        model: DeviceModel,
        memory: u64,
        clock: C,
    ) -> Self {
        let resident = Resident {
            most: usize::try_from(memory / BLOCK).unwrap_or(usize::MAX),
            ticks: 0,
            used: HashMap::new(),
            order: BTreeMap::new(),
        };
        let device = Device {
            pacer: DevicePacer::new(model, clock),
            resident: Mutex::new(resident),
        };
        Self {
            tier,
            device: Arc::new(device),
        }
    }

    /// Empties the page cache, as after a reboot.
    pub(in crate::tier) fn forget(&self) {
        let mut resident = lock(&self.device.resident);
        resident.used.clear();
        resident.order.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The modelled address of a blob. A collision of two blobs only omits a seek.
fn address(digest: &Digest) -> u64 {
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(digest.as_bytes()) {
        *to = *from;
    }
    u64::from_le_bytes(head) >> ADDRESS_BITS << ADDRESS_BITS
}

/// The block numbers of a byte range.
fn blocks(range: Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

impl Resident {
    /// Whether a block is in memory. Marks it as used.
    fn touch(&mut self, block: u64) -> bool {
        let is_there = self.used.contains_key(&block);
        if is_there {
            self.keep(block);
        }
        is_there
    }

    fn keep(&mut self, block: u64) {
        self.ticks += 1;
        if let Some(before) = self.used.insert(block, self.ticks) {
            self.order.remove(&before);
        }
        self.order.insert(self.ticks, block);
        while self.used.len() > self.most
            && let Some((_, block)) = self.order.pop_first()
        {
            self.used.remove(&block);
        }
    }
}

impl<C: Clock> Device<C> {
    /// Reads the blocks that are not in memory, of a blob that ends at `end`.
    fn read(&self, range: Range<u64>, end: u64) {
        for block in blocks(range) {
            if !lock(&self.resident).touch(block) {
                let start = block * BLOCK;
                self.pacer.read(start, BLOCK.min(end.saturating_sub(start)));
                lock(&self.resident).keep(block);
            }
        }
    }

    fn is_resident(&self, range: Range<u64>) -> bool {
        let mut resident = lock(&self.resident);
        blocks(range).all(|block| resident.touch(block))
    }

    fn written(&self, range: Range<u64>) {
        let mut resident = lock(&self.resident);
        blocks(range).for_each(|block| resident.keep(block));
    }

    /// Waits until earlier writes are on disk.
    fn fence(&self) {
        self.pacer.flush();
        self.pacer.fence();
    }
}

/// A reader that takes the time of the model.
struct Slow<C, R: ?Sized> {
    device: Arc<Device<C>>,
    address: u64,
    /// Number of known bytes.
    len: u64,
    dirty: Option<Arc<Dirty>>,
    inner: Arc<R>,
}

/// Progress of a fill in bytes: written, and handed to the disk.
#[derive(Default)]
struct Dirty {
    written: AtomicU64,
    synced: AtomicU64,
}

impl Dirty {
    /// Writes the rest to the disk. The fence waits for writes of other threads.
    fn sync<C: Clock>(&self, device: &Device<C>, address: u64) {
        let written = self.written.load(Ordering::Relaxed);
        let next = |synced: u64| (synced < written).then(|| written.min(synced + SYNC_CHUNK));
        while let Ok(from) = self
            .synced
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        {
            device
                .pacer
                .write(address + from, written.min(from + SYNC_CHUNK) - from);
        }
        device.fence();
    }
}

impl<C: Clock, R: ReadAt + ?Sized> Slow<C, R> {
    /// The part of `len` bytes from `offset` that may be only on disk.
    fn range(&self, offset: u64, len: usize) -> Range<u64> {
        let end = offset.saturating_add(len as u64);
        // Bytes that are not yet on disk are in memory, whatever the size of the page cache.
        let synced = self
            .dirty
            .as_ref()
            .map_or(u64::MAX, |dirty| dirty.synced.load(Ordering::Relaxed));
        let end = end.min(synced).max(offset);
        self.address + offset..self.address + end
    }
}

impl<C: Clock, R: ReadAt + ?Sized> ReadAt for Slow<C, R> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)?;
        let range = self.range(offset, buf.len());
        self.device
            .read(range, self.address.saturating_add(self.len));
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.device.is_resident(self.range(offset, buf.len())) {
            self.inner.try_read_at(offset, buf)
        } else {
            Ok(0)
        }
    }
}

impl<C: Clock> Blob for Slow<C, dyn Blob> {
    fn trailer(&self) -> &Trailer {
        self.inner.trailer()
    }
    // Returns no extent, because `sendfile` would bypass the model.
}

struct SlowFill<C> {
    device: Arc<Device<C>>,
    address: u64,
    dirty: Arc<Dirty>,
    inner: Box<dyn Staged>,
}

impl<C> SlowFill<C>
where
    C: Clock + 'static,
{
    /// Records the bytes that `write` wrote.
    fn put(&mut self, write: impl FnOnce(&mut dyn Staged) -> io::Result<()>) -> io::Result<()> {
        let before = self.inner.size();
        let done = write(&mut *self.inner);
        let now = self.inner.size();
        self.dirty.written.store(now, Ordering::Relaxed);
        self.device
            .written(self.address + before..self.address + now);
        done
    }
}

impl<C: Clock + 'static> Staged for SlowFill<C> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        self.put(|inner| inner.write(pieces))
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let (device, dirty, address) = (self.device.clone(), self.dirty.clone(), self.address);
        let inner = self.inner.early_sync();
        Some(Box::new(move || {
            if let Some(inner) = inner {
                inner();
            }
            dirty.sync(&device, address);
        }))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.inner.clear()?;
        self.dirty.written.store(0, Ordering::Relaxed);
        self.dirty.synced.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        Arc::new(Slow {
            device: self.device.clone(),
            address: self.address,
            len: u64::MAX >> 1,
            dirty: Some(self.dirty.clone()),
            inner: self.inner.reader(),
        })
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        let blob = self.inner.commit(trailer)?;
        self.dirty.sync(&self.device, self.address);
        // The rename must be on disk after the contents.
        self.device.fence();
        Ok(Arc::new(Slow {
            device: self.device,
            address: self.address,
            len: blob.trailer().size(),
            dirty: None,
            inner: blob,
        }))
    }
}

impl<C: Clock + 'static> Tier for ModelledDisk<C> {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let inner = self.tier.stage(digest)?;
        let len = inner.size();
        Ok(Box::new(SlowFill {
            device: self.device.clone(),
            address: address(digest),
            dirty: Arc::new(Dirty {
                written: AtomicU64::new(len),
                synced: AtomicU64::new(len),
            }),
            inner,
        }))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.tier.discard(digest)
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let opened = self.tier.open(digest)?;
        Ok(opened.map(|inner| {
            let blob: Arc<dyn Blob> = Arc::new(Slow {
                device: self.device.clone(),
                address: address(digest),
                len: inner.trailer().size(),
                dirty: None,
                inner,
            });
            blob
        }))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.tier.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.tier.scan(visit)
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.tier.scan_staged(visit)
    }

    fn free(&self) -> io::Result<u64> {
        self.tier.free()
    }
}

#[cfg(test)]
mod tests;
