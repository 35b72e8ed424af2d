//! A file mapped for reading and writing, whose faults are errors.

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

use super::copy;
use super::flush::CacheLines;
use super::sigbus::Watched;

/// `len` bytes of a file, shared with the page cache or with the medium itself.
///
/// All offsets are checked: who calls with one out of range stops the program, as with a slice.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
    page: usize,
    /// Of each [`PIECE`], whether its pages were mapped for writing.
    ready: Box<[AtomicBool]>,
    /// `None` only while it is being dropped.
    watched: Option<Watched>,
}

/// What is mapped for writing in one go before its first write: a fault for each page costs twice
/// as much as the call for all (1.9 and 3.5 GB a CPU-second on tmpfs).
const PIECE: usize = 2 << 20;

/// Writes of fewer bytes take their faults.
const BULK: usize = 4096;

// SAFETY: the mapping belongs to this value alone and is valid for any thread; it is accessed by
// atomics, or assembly that does as they do, so that threads may do so at once.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

/// A map has failed, first at this offset. What was read must be thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed(pub(crate) u64);

impl Map {
    /// Maps the first `len` bytes of `file`: with MAP_SYNC when it can be, and otherwise why not.
    pub(crate) fn of(file: &File, len: usize) -> io::Result<(Self, Result<(), Errno>)> {
        let with = |flags| {
            // SAFETY: a new mapping at an address that the kernel chooses touches nothing that
            // exists.
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
            ready: (0..len.div_ceil(PIECE))
                .map(|_| AtomicBool::new(false))
                .collect(),
            watched: None,
        };
        map.watched = Some(Watched::new(base.addr().get(), len, map.page)?);
        Ok((map, synchronous))
    }

    /// Fills `buf` from `offset`.
    pub(crate) fn load(&self, offset: usize, buf: &mut [u8]) -> Result<(), Failed> {
        let from = self.at(offset, buf.len());
        // SAFETY: the bytes are in the map, which consists of whole pages, so that their words are
        // too.
        unsafe { copy::load(from, buf) };
        self.sound()
    }

    /// Writes `bytes` at `offset`.
    pub(crate) fn save(&self, offset: usize, bytes: &[u8]) -> Result<(), Failed> {
        let to = self.at(offset, bytes.len());
        if bytes.len() >= BULK {
            self.prepare(offset, bytes.len());
        }
        // SAFETY: as for `load`.
        unsafe { copy::save(to, bytes) };
        self.sound()
    }

    /// Maps the pages of the pieces that the range lies in, once.
    fn prepare(&self, offset: usize, len: usize) {
        for piece in offset / PIECE..(offset + len).div_ceil(PIECE) {
            // Twice by two threads does no harm.
            if self.ready[piece].swap(true, Ordering::Relaxed) {
                continue;
            }
            let start = piece * PIECE;
            let len = PIECE.min(self.len - start);
            // SAFETY: the pages are mapped, and what they hold does not change by it. A kernel
            // before 5.14 refuses, and a page that cannot be had is met again by the write that
            // follows.
            let _ = unsafe {
                madvise(
                    self.base.as_ptr().wrapping_add(start).cast(),
                    len,
                    Advice::LinuxPopulateWrite,
                )
            };
        }
    }

    /// Writes an aligned word, all of it or nothing.
    pub(crate) fn store(&self, offset: usize, word: u64) -> Result<(), Failed> {
        assert!(offset.is_multiple_of(8), "an unaligned word");
        let to = self.at(offset, 8);
        // SAFETY: as for `load`; the map starts at a page, so that it is aligned.
        unsafe { copy::store(to, word) };
        self.sound()
    }

    /// Looks whether each page of the range is still there, at the cost of one load a page: neither
    /// `msync` nor doing nothing would tell.
    pub(crate) fn touch(&self, offset: usize, len: usize) -> Result<(), Failed> {
        let first = self.at(offset, len).cast_const();
        let mut done = 0;
        while done < len {
            let at = first.wrapping_add(done);
            // SAFETY: as for `load`.
            unsafe { copy::touch(at) };
            done += self.page - (at.addr() & (self.page - 1));
        }
        self.sound()
    }

    /// Starts to write back the lines of the range.
    pub(crate) fn flush(&self, lines: CacheLines, offset: usize, len: usize) -> Result<(), Failed> {
        let start = self.at(offset, len).cast_const();
        // SAFETY: the range is mapped.
        unsafe { lines.flush(start, len) };
        // The instruction faults as a load does, except where an emulator makes nothing of it.
        self.touch(offset, len)
    }

    /// Waits for what [`Self::flush`] started in this thread.
    pub(crate) fn fence(&self, lines: CacheLines) -> Result<(), Failed> {
        lines.fence();
        self.done()
    }

    /// Writes the pages of the range to their file and waits for its disk. Whatever it fails of has
    /// failed for good: the kernel forgets which pages it could not write.
    pub(crate) fn sync(&self, offset: usize, len: usize) -> Result<(), Failed> {
        let start = self.at(offset, len);
        let inside = start.addr() & (self.page - 1);
        let first = start.wrapping_sub(inside).cast();
        // SAFETY: the pages are mapped, since the map consists of whole ones; their bytes do not
        // change by it.
        if unsafe { msync(first, inside + len, MsyncFlags::SYNC) }.is_err() {
            self.fail(offset);
        }
        self.done()
    }

    /// Where the first fault was.
    pub(crate) fn failed(&self) -> Option<Failed> {
        self.watched.as_ref()?.failed().map(Failed)
    }

    /// Marks it as failed at `offset`, for what was found out in another way than by a fault.
    pub(crate) fn fail(&self, offset: usize) {
        if let Some(watched) = &self.watched {
            watched.fail(u64::try_from(offset).unwrap_or(0));
        }
    }

    /// The end of an access: whether all of it was to the file. The barrier keeps the look at the
    /// mark behind the loads, for a page of zeros that another thread's fault has brought.
    fn sound(&self) -> Result<(), Failed> {
        fence(Ordering::Acquire);
        self.failed().map_or(Ok(()), Err)
    }

    /// The same where something is promised: behind the stores as well.
    fn done(&self) -> Result<(), Failed> {
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
        // Before the addresses are somebody else's.
        self.watched = None;
        // SAFETY: the mapping is this value's, and nobody else holds a pointer into it. It covers
        // pages of zeros that the handler of SIGBUS has put there as well.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests;
