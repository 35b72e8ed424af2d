//! A region: a file that is mapped into memory and used as a [`Medium`] (bytes at fixed offsets
//! that may survive a power cut). Written bytes are flushed by the fastest method that makes them
//! durable on this machine.

use parking_lot::Mutex;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::medium::{check_range, check_word};
use crate::sys::{CacheLines, Failed, Map};
use crate::{Class, Error, Medium, backing, create};

/// The settings of a region: path and size of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The path of the region's file. If the file is missing, it is created. The folder must exist.
    pub path: PathBuf,
    /// Size of the region in bytes. The file has at least this size.
    pub size: u64,
}

/// The properties of an open region, for logs, `pierhead doctor` and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The durability that a fence guarantees.
    pub class: Class,
    /// The name of the flush method: `clwb`, `clflushopt`, `clflush`, `dc cvap`, `msync` or `none`.
    pub flush: &'static str,
    /// The reason for the class, and what the machine would need for a better class.
    pub why: String,
    /// The path of the region's file.
    pub path: PathBuf,
    /// The size of the region in bytes.
    pub len: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            class,
            flush,
            why,
            path,
            len,
        } = self;
        write!(
            f,
            "{}: {len} bytes, {class}, flush: {flush} ({why})",
            path.display()
        )
    }
}

/// The method by which written bytes become durable.
#[derive(Clone, Copy, Debug)]
enum Flush {
    /// Each flush writes cache lines back by CPU instructions.
    Lines(CacheLines),
    /// Each fence calls `msync`. Large writes use `pwrite`, because a store to a page that `msync`
    /// has cleaned causes a page fault. With stores to the map, only half as many bytes are written
    /// per CPU-second (2.0 instead of 4.1 GB on ext4).
    Sync,
    /// Bytes never become durable, because the medium is volatile.
    Nothing,
}

/// Minimum length in bytes of a write that uses `pwrite`. A shorter write stores its bytes to the
/// map.
const MIN_PWRITE: usize = 4096;

/// A region: a mapped file that has one owner. The file stays mapped and locked until this value is
/// dropped.
///
/// A fault in the map fails the region: the current call and all later calls return
/// [`Error::Medium`]. Reads fail, too, because the map may not contain the bytes that were written.
#[derive(Debug)]
pub struct Region {
    map: Map,
    flush: Flush,
    report: Report,
    /// The flushed bytes that wait for a fence, as one range. One range is enough, because an
    /// `msync` costs one flush of the disk, and clean pages in the range cost nothing.
    pending: Mutex<Option<Range<usize>>>,
    /// The lock is held during an `msync`. If another thread already syncs the bytes of a fence,
    /// the fence waits for this thread. Fences that begin during an `msync` share the next `msync`.
    syncing: Mutex<()>,
    /// Whether [`Medium::renew`] can replace the pages of the file.
    can_renew: bool,
    file: File,
}

/// The page size for which [`Medium::renew`] is safe. With larger pages, the kernel may cache more
/// than one segment as one unit, a folio (128 MiB with 64 KiB pages). The kernel zeroes a hole
/// within a folio in place, so readers that still use these bytes would see zeros.
const PAGE: usize = 4096;

impl Region {
    /// Opens or creates the region, and determines its class.
    ///
    /// Errors: [`Error::Busy`], [`Error::Foreign`] or [`Error::Io`].
    pub fn open(config: &Config) -> Result<Self, Error> {
        let Config { path, size } = config;
        let len = usize::try_from(*size).ok().filter(|len| *len > 0);
        let len = len.ok_or_else(|| Error::Foreign {
            path: path.clone(),
            why: format!("cannot have a size of {size} bytes"),
        })?;
        let doing = |what: &str| {
            let doing = format!("{what} {}", path.display());
            move |source| Error::Io { doing, source }
        };
        let file = create::open(path, *size)?;
        let volatile = backing::volatile(&file).map_err(doing("find out what is below"))?;
        let (map, synchronous) = Map::of(&file, len).map_err(doing("map"))?;
        let (class, flush, why) = classify(synchronous, volatile, CacheLines::detect());
        let report = Report {
            class,
            flush: match flush {
                Flush::Lines(lines) => lines.name(),
                Flush::Sync => "msync",
                Flush::Nothing => "none",
            },
            why,
            path: path.clone(),
            len: *size,
        };
        let can_renew =
            class != Class::Pmem && rustix::param::page_size() == PAGE && supports_holes(&file);
        Ok(Self {
            map,
            flush,
            report,
            pending: Mutex::new(None),
            syncing: Mutex::new(()),
            can_renew,
            file,
        })
    }

    /// Returns the file of the region, for `sendfile` and `pread`. The file has the same bytes at
    /// the same offsets as the region.
    ///
    /// Writing or truncating this file changes the region.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file, if bytes that `sendfile` has passed to a socket stay unchanged. For
    /// persistent memory, the kernel copies the bytes; for other files, [`Medium::renew`] replaces
    /// the pages. `None`: the caller must read and copy the bytes.
    pub fn sendable(&self) -> Option<&File> {
        (self.report.class == Class::Pmem || self.can_renew).then_some(&self.file)
    }

    /// Returns the path of the region's file.
    pub fn path(&self) -> &Path {
        &self.report.path
    }

    /// Returns the properties of the region.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Returns an error once the region has failed. After an error, the caller must discard bytes
    /// that it read from [`Self::file`] before this call.
    ///
    /// Errors: [`Error::Medium`] if the region has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.map
            .failed()
            .map_or(Ok(()), |failed| Err(self.failed(failed)))
    }

    fn failed(&self, Failed(offset): Failed) -> Error {
        Error::Medium {
            path: self.report.path.clone(),
            offset,
        }
    }

    /// Writes to the file instead of the map. File and map share the same page cache.
    fn write_file(&self, at: usize, bytes: &[u8]) -> Result<(), Failed> {
        // A write to a truncated file would make the file longer, and would hide the truncation.
        self.check_length(at)?;
        if self.file.write_all_at(bytes, at as u64).is_err() {
            self.map.fail(at);
        }
        self.map.failed().map_or(Ok(()), Err)
    }

    /// Checks that the file still has its full length, because `msync` does not check this. If the
    /// file is shorter, marks the region as failed.
    fn check_length(&self, at: usize) -> Result<(), Failed> {
        let len = self.file.metadata().map_or(0, |metadata| metadata.len());
        if len < self.report.len {
            self.map.fail(usize::try_from(len).unwrap_or(at));
        }
        self.map.failed().map_or(Ok(()), Err)
    }

    /// Checks the range of a call, and returns its position in the map.
    fn position(&self, offset: u64, len: usize) -> Result<usize, Error> {
        check_range(offset, len as u64, self.report.len)?;
        self.check()?;
        usize::try_from(offset).map_err(|_| Error::Range {
            offset,
            len: len as u64,
            of: self.report.len,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Closing the file is not enough to unlock it: a child process between `fork` and `exec`
        // has a copy of the descriptor. Right after the unlock, the map is unmapped, and no thread
        // can use the map any more.
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

impl Medium for Region {
    fn len(&self) -> u64 {
        self.report.len
    }

    fn class(&self) -> Class {
        self.report.class
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let at = self.position(offset, buf.len())?;
        self.map.load(at, buf).map_err(|failed| self.failed(failed))
    }

    /// Uses `pread`, which returns EIO for an unreadable page. A load from the map would raise
    /// SIGBUS and fail the region.
    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let at = self.position(offset, buf.len())?;
        match self.file.read_exact_at(buf, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let cut = self.check_length(at);
                Err(self.failed(cut.err().unwrap_or(Failed(offset))))
            }
            Err(_) => Err(self.failed(Failed(offset))),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = self.position(offset, bytes.len())?;
        let done = match self.flush {
            Flush::Sync if bytes.len() >= MIN_PWRITE => self.write_file(at, bytes),
            _ => self.map.save(at, bytes),
        };
        done.map_err(|failed| self.failed(failed))
    }

    fn store(&self, offset: u64, word: u64) -> Result<(), Error> {
        check_word(offset, self.report.len)?;
        let at = self.position(offset, 8)?;
        self.map
            .store(at, word)
            .map_err(|failed| self.failed(failed))
    }

    fn flush(&self, offset: u64, len: u64) -> Result<(), Error> {
        let bytes = usize::try_from(len).map_err(|_| Error::Range {
            offset,
            len,
            of: self.report.len,
        })?;
        let at = self.position(offset, bytes)?;
        let done = match self.flush {
            Flush::Lines(lines) => self.map.flush(lines, at, bytes),
            Flush::Nothing => self.map.touch(at, bytes),
            Flush::Sync => self.check_length(at).inspect(|()| {
                if bytes > 0 {
                    let mut pending = self.pending.lock();
                    *pending = Some(match pending.take() {
                        Some(old) => old.start.min(at)..old.end.max(at + bytes),
                        None => at..at + bytes,
                    });
                }
            }),
        };
        done.map_err(|failed| self.failed(failed))
    }

    /// Replaces the pages by new pages, and allocates them in this call. If the file system is
    /// full, this call returns an error. Without the allocation, a later store would raise SIGBUS.
    fn renew(&self, offset: u64, len: u64) -> Result<(), Error> {
        let at =
            check_range(offset, len, self.report.len).and_then(|()| self.position(offset, 0))?;
        if !self.can_renew || len == 0 {
            return Ok(());
        }
        let keep = FallocateFlags::KEEP_SIZE;
        let change =
            |flags| rustix::io::retry_on_intr(|| fallocate(&self.file, flags, offset, len));
        // On a disk, ZERO_RANGE keeps the blocks allocated. tmpfs supports only holes.
        let done = match change(keep | FallocateFlags::ZERO_RANGE) {
            Err(Errno::OPNOTSUPP) => {
                change(keep | FallocateFlags::PUNCH_HOLE).and_then(|()| change(keep))
            }
            done => done,
        };
        match done {
            Ok(()) => Ok(()),
            Err(Errno::IO) => {
                self.map.fail(at);
                self.check()
            }
            Err(_) => Err(Error::NoRoom),
        }
    }

    /// Punches a hole into the file, if the file is in memory. If the file system does not support
    /// holes, the memory is kept.
    fn release(&self, offset: u64, len: u64) -> Result<(), Error> {
        check_range(offset, len, self.report.len)?;
        self.check()?;
        if self.report.class == Class::Volatile && len > 0 {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.file, hole, offset, len);
        }
        Ok(())
    }

    fn fence(&self) -> Result<(), Error> {
        let done = match self.flush {
            Flush::Lines(lines) => self.map.fence(lines),
            Flush::Nothing => Ok(()),
            Flush::Sync => {
                let _syncing = self.syncing.lock();
                let pending = self.pending.lock().take();
                pending.map_or(Ok(()), |range| self.map.sync(range.start, range.len()))
            }
        };
        done.map_err(|failed| self.failed(failed))?;
        self.check()
    }
}

/// Whether the file system supports holes. The function tries to punch a hole beyond the end of the
/// file, where there is no data.
fn supports_holes(file: &File) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let end = file.metadata().map(|metadata| metadata.len());
    end.is_ok_and(|end| {
        fallocate(file, hole, end.next_multiple_of(PAGE as u64), PAGE as u64).is_ok()
    })
}

/// Determines the durability class and the flush method, with the reason for both.
fn classify(
    synchronous: Result<(), Errno>,
    volatile: Option<String>,
    lines: Result<CacheLines, &'static str>,
) -> (Class, Flush, String) {
    match (volatile, synchronous, lines) {
        // The file is volatile, even if the kernel maps it with MAP_SYNC: memory that the kernel
        // command line sets aside accepts MAP_SYNC, too.
        (Some(why), ..) => (
            Class::Volatile,
            Flush::Nothing,
            format!("{why}: a power cut takes it away"),
        ),
        (None, Ok(()), Ok(lines)) => (
            Class::Pmem,
            Flush::Lines(lines),
            "mapped with MAP_SYNC".to_owned(),
        ),
        (None, Ok(()), Err(why)) => (
            Class::EmulatedFile,
            Flush::Sync,
            format!("MAP_SYNC would be possible, but {why}"),
        ),
        (None, Err(errno), lines) => {
            // The text tells operators whether persistent memory, if they bought it, would help on
            // this machine.
            let fix = lines
                .err()
                .unwrap_or("it needs persistent memory, mounted with -o dax");
            let errno = std::io::Error::from(errno);
            (
                Class::EmulatedFile,
                Flush::Sync,
                format!("the file system refuses MAP_SYNC: {errno}; {fix}"),
            )
        }
    }
}

#[cfg(test)]
mod tests;
