//! A file mapped for reading and writing. If an access to the map causes a fault (SIGBUS), the
//! access returns an error, and the process does not end.

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

use super::copy;
use super::flush::CacheLines;
use super::sigbus::MonitoredRange;

/// The mapped bytes of a file. The map shares its memory with the page cache, or is the persistent
/// memory itself.
///
/// All offsets are checked. An offset out of range panics, in the same way as for a slice.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
    page: usize,
    /// For each piece of [`POPULATE_LEN`] bytes, whether its pages were populated (allocated and
    /// mapped) for writing.
    ready: Box<[AtomicBool]>,
    /// The range of addresses that the SIGBUS handler monitors for this map. `None` only during the
    /// drop of the map.
    range: Option<MonitoredRange>,
}

/// Number of bytes that one system call populates for writing, before their first write. Single
/// page faults would cost twice as much CPU time (1.9 instead of 3.5 GB per CPU-second on tmpfs).
const POPULATE_LEN: usize = 2 << 20;

/// Minimum length in bytes of a write that populates pages. A shorter write causes page faults
/// instead.
const MIN_POPULATED_WRITE: usize = 4096;

// SAFETY: the mapping belongs to this value alone and is valid in any thread. All accesses to the
// mapping are atomic, in Rust or in equivalent assembly, so concurrent accesses are allowed.
unsafe impl Send for Map {}
// SAFETY: concurrent accesses are allowed for the same reason as for `Send`.
unsafe impl Sync for Map {}

/// The error of a map that has failed. The number is the offset of the first failure. The caller
/// must discard bytes that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed(pub(crate) u64);

impl Map {
    /// Maps the first `len` bytes of `file`, with MAP_SYNC if possible. The second result tells why
    /// MAP_SYNC was not possible.
    pub(crate) fn of(file: &File, len: usize) -> io::Result<(Self, Result<(), Errno>)> {
        let with = |flags| {
            // SAFETY: a new mapping at an address that the kernel chooses affects no existing
            // memory.
            unsafe {
                mmap(
                    ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                    file,
                    0,
                )
            }
        };
        let (base, synchronous) = match with(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            Ok(base) => (base, Ok(())),
            Err(why) => (with(MapFlags::SHARED)?, Err(why)),
        };
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(io::Error::other("a mapping at address 0"));
        };
        let mut map = Self {
            base,
            len,
            page: rustix::param::page_size(),
            ready: (0..len.div_ceil(POPULATE_LEN))
                .map(|_| AtomicBool::new(false))
                .collect(),
            range: None,
        };
        map.range = Some(MonitoredRange::new(base.addr().get(), len, map.page)?);
        Ok((map, synchronous))
    }

    /// Fills `buf` with the bytes from `offset` on.
    pub(crate) fn load(&self, offset: usize, buf: &mut [u8]) -> Result<(), Failed> {
        let from = self.at(offset, buf.len());
        // SAFETY: the bytes are in the map. The map consists of whole pages, so the words that
        // contain these bytes are in the map, too.
        unsafe { copy::load(from, buf) };
        self.check()
    }

    /// Writes `bytes` to the map at `offset`.
    pub(crate) fn save(&self, offset: usize, bytes: &[u8]) -> Result<(), Failed> {
        let to = self.at(offset, bytes.len());
        if bytes.len() >= MIN_POPULATED_WRITE {
            self.prepare(offset, bytes.len());
        }
        // SAFETY: the words that contain these bytes are in the map, as in `load`.
        unsafe { copy::save(to, bytes) };
        self.check()
    }

    /// Populates the pages of all pieces that contain bytes of the range, unless they were
    /// populated before.
    fn prepare(&self, offset: usize, len: usize) {
        for step in offset / POPULATE_LEN..(offset + len).div_ceil(POPULATE_LEN) {
            // If two threads populate the same piece, that is harmless.
            if self.ready[step].swap(true, Ordering::Relaxed) {
                continue;
            }
            let start = step * POPULATE_LEN;
            let len = POPULATE_LEN.min(self.len - start);
            // SAFETY: the pages are mapped, and their contents do not change. Kernels before 5.14
            // refuse the call; a page that cannot be populated fails the write that follows.
            let _ = unsafe {
                madvise(
                    self.base.as_ptr().wrapping_add(start).cast(),
                    len,
                    Advice::LinuxPopulateWrite,
                )
            };
        }
    }

    /// Writes an aligned word atomically.
    pub(crate) fn store(&self, offset: usize, word: u64) -> Result<(), Failed> {
        assert!(offset.is_multiple_of(8), "an unaligned word");
        let to = self.at(offset, 8);
        // SAFETY: the word is in the map, as in `load`. The map begins at a page boundary, so the
        // word is aligned.
        unsafe { copy::store(to, word) };
        self.check()
    }

    /// Checks that each page of the range still exists, by one load per page: `msync` would not
    /// report a missing page.
    pub(crate) fn touch(&self, offset: usize, len: usize) -> Result<(), Failed> {
        let first = self.at(offset, len).cast_const();
        let mut done = 0;
        while done < len {
            let at = first.wrapping_add(done);
            // SAFETY: the word at `at` is in the map, as in `load`.
            unsafe { copy::touch(at) };
            done += self.page - (at.addr() & (self.page - 1));
        }
        self.check()
    }

    /// Starts to write back the lines of the range.
    pub(crate) fn flush(&self, lines: CacheLines, offset: usize, len: usize) -> Result<(), Failed> {
        let start = self.at(offset, len).cast_const();
        // SAFETY: the range is mapped.
        unsafe { lines.flush(start, len) };
        // A flush instruction faults in the same way as a load. Emulators may ignore the
        // instruction, so the pages are also loaded.
        self.touch(offset, len)
    }

    /// Waits for the flushes of this thread.
    pub(crate) fn fence(&self, lines: CacheLines) -> Result<(), Failed> {
        lines.fence();
        self.check_after_stores()
    }

    /// Writes the pages of the range to their file and waits for the disk. A failure is final: the
    /// kernel forgets which pages it could not write.
    pub(crate) fn sync(&self, offset: usize, len: usize) -> Result<(), Failed> {
        let start = self.at(offset, len);
        let inside = start.addr() & (self.page - 1);
        let first = start.wrapping_sub(inside).cast();
        // SAFETY: the pages are mapped, because the map consists of whole pages. The call changes
        // no bytes.
        if unsafe { msync(first, inside + len, MsyncFlags::SYNC) }.is_err() {
            self.fail(offset);
        }
        self.check_after_stores()
    }

    /// Returns the first failure of the map, if there is one.
    pub(crate) fn failed(&self) -> Option<Failed> {
        self.range.as_ref()?.failed().map(Failed)
    }

    /// Marks the map as failed at `offset`. Used for a failure that caused no fault.
    pub(crate) fn fail(&self, offset: usize) {
        if let Some(range) = &self.range {
            range.fail(u64::try_from(offset).unwrap_or(0));
        }
    }

    /// Checks at the end of an access whether the map has failed. The fence keeps the check after
    /// the loads, which may have read zeros that a fault in another thread mapped.
    fn check(&self) -> Result<(), Failed> {
        fence(Ordering::Acquire);
        self.failed().map_or(Ok(()), Err)
    }

    /// Checks like [`Self::check`], at the end of a flush or sync. The fence in this function keeps
    /// the check after the stores, too.
    fn check_after_stores(&self) -> Result<(), Failed> {
        fence(Ordering::SeqCst);
        self.failed().map_or(Ok(()), Err)
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} of a map of {}", self.len);
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // The monitoring ends before the kernel can reuse the addresses.
        self.range = None;
        // SAFETY: the mapping belongs to this value, and no other pointer into it exists. The
        // mapping includes the pages of zeros that the SIGBUS handler mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests;
