//! A file as a medium: mapped, and flushed by the best way that really reaches what lies below.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::medium::{within, word_within};
use crate::sys::{CacheLines, Failed, Map};
use crate::{Class, Error, Medium, backing, create};

/// Which file, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The region's file; made when it is missing, in a folder that must exist.
    pub path: PathBuf,
    /// Bytes, of which the file has at least as many.
    pub size: u64,
}

/// What a region turned out to be: the line for the log, `doctor` and the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What a fence promises.
    pub class: Class,
    /// How that is done: `clwb`, `clflushopt`, `clflush`, `dc cvap`, `msync` or `none`.
    pub flush: &'static str,
    /// What speaks for that class, and what would have to change for a better one.
    pub why: String,
    /// The region's file.
    pub path: PathBuf,
    /// Bytes.
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

/// How bytes get to where a power cut leaves them.
#[derive(Clone, Copy, Debug)]
enum Flush {
    /// By instructions, at once.
    Lines(CacheLines),
    /// By the page, at the fence. What is written in bulk goes by `pwrite` then: each page that
    /// `msync` has cleaned faults at its next store, so that stores reach half as many bytes a
    /// CPU-second (2.0 against 4.1 GB on ext4).
    Sync,
    /// Not at all.
    Nothing,
}

/// Writes of fewer bytes are stores.
const BULK: usize = 4096;

/// A mapped file that this opening alone owns, until it is dropped.
///
/// A fault in the map ends the region: that call and all later ones give [`Error::Medium`], reads
/// as well, since what the map shows there is not what was written.
#[derive(Debug)]
pub struct Region {
    map: Map,
    flush: Flush,
    report: Report,
    /// What was flushed and waits for a fence, as one range: an `msync` costs a flush of the disk,
    /// however much it covers, and pages within that are clean cost nothing.
    pending: Mutex<Option<Range<usize>>>,
    /// Held while pages are written, so that a fence that finds its range taken waits for who took
    /// it. Threads that come meanwhile share the next one.
    syncing: Mutex<()>,
    /// Whether its file can be given new pages.
    renews: bool,
    file: File,
}

/// Of the pages for which [`Medium::renew`] is sound: with larger ones the kernel may cache more
/// than a segment in one piece (128 MiB with 64 KiB), and what is cut out of such a piece is zeroed
/// where it lies, for whoever reads it as well.
const PAGE: usize = 4096;

impl Region {
    /// Opens or makes the region, and tries out what it is.
    ///
    /// Errors: [`Error::Busy`], [`Error::Foreign`], [`Error::Io`].
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
        let volatile = backing::volatile(&file).map_err(doing("find out what lies below"))?;
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
        let renews = class != Class::Pmem && rustix::param::page_size() == PAGE && punches(&file);
        Ok(Self {
            map,
            flush,
            report,
            pending: Mutex::new(None),
            syncing: Mutex::new(()),
            renews,
            file,
        })
    }

    /// The file, whose bytes are those of the region at the same offsets: for `sendfile` and
    /// `pread`.
    ///
    /// Whoever writes to it or cuts it short writes to the region.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// The same, where what is sent from it by `sendfile` stays as it was sent: the kernel copies
    /// out of persistent memory, and of any other file the pages can be exchanged for others
    /// ([`Medium::renew`]). `None`: it must be read and copied.
    pub fn sendable(&self) -> Option<&File> {
        (self.report.class == Class::Pmem || self.renews).then_some(&self.file)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.report.path
    }

    /// What it turned out to be.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Whether it has failed: what else was read from [`Self::file`] since is to be thrown away.
    ///
    /// Errors: [`Error::Medium`].
    pub fn sound(&self) -> Result<(), Error> {
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

    /// Writes past the map, which shows it all the same: both are the page cache.
    fn write_file(&self, at: usize, bytes: &[u8]) -> Result<(), Failed> {
        // A file that was cut would grow by the write, and hide that.
        self.whole(at)?;
        if self.file.write_all_at(bytes, at as u64).is_err() {
            self.map.fail(at);
        }
        self.map.failed().map_or(Ok(()), Err)
    }

    /// Whether the file is as long as it was, which `msync` does not tell; marked at `at` if not.
    fn whole(&self, at: usize) -> Result<(), Failed> {
        let len = self.file.metadata().map_or(0, |metadata| metadata.len());
        if len < self.report.len {
            self.map.fail(usize::try_from(len).unwrap_or(at));
        }
        self.map.failed().map_or(Ok(()), Err)
    }

    /// The check of every call, and its place in the map.
    fn place(&self, offset: u64, len: usize) -> Result<usize, Error> {
        within(offset, len as u64, self.report.len)?;
        self.sound()?;
        usize::try_from(offset).map_err(|_| Error::Range {
            offset,
            len: len as u64,
            of: self.report.len,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started holds a copy of the descriptor
        // until it executes. The map goes a moment later, but nobody can use it any more.
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
        let at = self.place(offset, buf.len())?;
        self.map.load(at, buf).map_err(|failed| self.failed(failed))
    }

    /// By `pread`: where a load raises SIGBUS, and ends the region, the kernel says EIO.
    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let at = self.place(offset, buf.len())?;
        match self.file.read_exact_at(buf, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let cut = self.whole(at);
                Err(self.failed(cut.err().unwrap_or(Failed(offset))))
            }
            Err(_) => Err(self.failed(Failed(offset))),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = self.place(offset, bytes.len())?;
        let done = match self.flush {
            Flush::Sync if bytes.len() >= BULK => self.write_file(at, bytes),
            _ => self.map.save(at, bytes),
        };
        done.map_err(|failed| self.failed(failed))
    }

    fn store(&self, offset: u64, word: u64) -> Result<(), Error> {
        word_within(offset, self.report.len)?;
        let at = self.place(offset, 8)?;
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
        let at = self.place(offset, bytes)?;
        let done = match self.flush {
            Flush::Lines(lines) => self.map.flush(lines, at, bytes),
            Flush::Nothing => self.map.touch(at, bytes),
            Flush::Sync => self.whole(at).inspect(|()| {
                if bytes > 0 {
                    let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                    *pending = Some(match pending.take() {
                        Some(old) => old.start.min(at)..old.end.max(at + bytes),
                        None => at..at + bytes,
                    });
                }
            }),
        };
        done.map_err(|failed| self.failed(failed))
    }

    /// New pages, allocated at once: a full file system is an error here, and SIGBUS at the first
    /// store.
    fn renew(&self, offset: u64, len: u64) -> Result<(), Error> {
        let at = within(offset, len, self.report.len).and_then(|()| self.place(offset, 0))?;
        if !self.renews || len == 0 {
            return Ok(());
        }
        let keep = FallocateFlags::KEEP_SIZE;
        let change =
            |flags| rustix::io::retry_on_intr(|| fallocate(&self.file, flags, offset, len));
        // Of a disk the blocks stay allocated; tmpfs has only the other way.
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
                self.sound()
            }
            Err(_) => Err(Error::NoRoom),
        }
    }

    /// A hole in the file, where that is memory. A file system that makes none keeps its memory.
    fn release(&self, offset: u64, len: u64) -> Result<(), Error> {
        within(offset, len, self.report.len)?;
        self.sound()?;
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
                let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
                let pending = self
                    .pending
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                pending.map_or(Ok(()), |range| self.map.sync(range.start, range.len()))
            }
        };
        done.map_err(|failed| self.failed(failed))?;
        self.sound()
    }
}

/// Whether holes can be made in a file: tried behind its end, where there is nothing to lose.
fn punches(file: &File) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let end = file.metadata().map(|metadata| metadata.len());
    end.is_ok_and(|end| {
        fallocate(file, hole, end.next_multiple_of(PAGE as u64), PAGE as u64).is_ok()
    })
}

/// The class, how to flush, and why.
fn classify(
    synchronous: Result<(), Errno>,
    volatile: Option<String>,
    lines: Result<CacheLines, &'static str>,
) -> (Class, Flush, String) {
    match (volatile, synchronous, lines) {
        // Whatever the mapping promises: memory set aside by the kernel's command line takes
        // MAP_SYNC as well.
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
            // Whoever thinks of buying such memory learns that it would not help here.
            let mend = lines
                .err()
                .unwrap_or("it wants persistent memory, mounted with -o dax");
            let errno = std::io::Error::from(errno);
            (
                Class::EmulatedFile,
                Flush::Sync,
                format!("the file system refuses MAP_SYNC: {errno}; {mend}"),
            )
        }
    }
}

#[cfg(test)]
mod tests;
