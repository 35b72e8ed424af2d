//! Content-addressed file store. A verified file gets an mtime derived from its digest.
//!
//! The mtime is the seal, and the store sets it last. A file that a crash cut short therefore has no seal, and a later
//! write to the file breaks it. The store needs no database. A file that an unpacked tree shares has the mtime of that
//! tree: it has a stamp (see `lent`), or the store reads and hashes it again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::lent::Lent;
use pierhead_toc::{Error, FileDigest, Source, Time};

/// Seals lie in the eight years from 2000 on.
const EPOCH: i64 = 946_684_800;
const SPREAD: u32 = (1 << 28) - 1;
const BUFFER: usize = 128 << 10;

/// A folder of contents.
#[derive(Debug)]
pub(super) struct Contents {
    folder: OwnedFd,
    path: PathBuf,
    /// Tells names of files beside each other; the process id tells those of processes.
    beside: AtomicU64,
    lent: Lent,
}

impl Contents {
    /// Opens a folder; makes it, and the 256 in it, when told to.
    pub(super) fn open(path: &Path, make: bool) -> Result<Self, Error> {
        let failed = |error: Errno| Error::io(format!("open {}", path.display()), error.into());
        if make {
            let exists = |result: rustix::io::Result<()>| match result {
                Err(Errno::EXIST) => Ok(()),
                other => other.map_err(failed),
            };
            // What is lent has the attributes of a tree's entry: there others reach it as far as the tree lets them, and not here.
            exists(rustix::fs::mkdir(path, Mode::RWXU))?;
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        if make && rustix::fs::statat(&folder, "ff", AtFlags::empty()).is_err() {
            for part in 0..=0xff_u8 {
                make_part(&folder, &format!("{part:02x}")).map_err(failed)?;
            }
        }
        Ok(Self {
            folder,
            path: path.to_owned(),
            beside: AtomicU64::new(0),
            lent: Lent::new(path.with_file_name("lent"), make),
        })
    }

    /// Whether it is here: sealed, and of its size if that is known. One system call, unless it was lent.
    pub(super) fn has(&self, content: &FileDigest, size: Option<u64>) -> bool {
        self.found(content, size).is_some()
    }

    /// Puts bytes whose digest was checked under it. What is there already stays, if its seal is whole.
    pub(super) fn put(&self, content: &FileDigest, bytes: &[u8]) -> Result<(), Error> {
        let name = name(content);
        match self.create(&name) {
            Ok(file) => self.fill(&name, &file, content, bytes),
            Err(Errno::EXIST) if self.has(content, Some(as_u64(bytes.len()))) => Ok(()),
            Err(Errno::EXIST) => {
                // Damaged, or another process is writing it: beside it, and then over it.
                let (beside, file) = self
                    .create_beside(&name)
                    .map_err(|error| self.failed(&name, error.into()))?;
                self.fill(&beside, &file, content, bytes)?;
                self.over(&name, || {
                    rustix::fs::renameat(&self.folder, &beside, &self.folder, &name)
                })
                .map_err(|error| self.failed(&name, error.into()))
            }
            Err(error) => Err(self.failed(&name, error.into())),
        }
    }

    /// Takes over a file that was written elsewhere on this file system, once its digest was checked.
    pub(super) fn adopt(
        &self,
        content: &FileDigest,
        file: &File,
        path: &Path,
    ) -> Result<(), Error> {
        let name = name(content);
        let doing = || -> io::Result<()> {
            seal(file, content)?;
            let rename = || rustix::fs::renameat(rustix::fs::CWD, path, &self.folder, &name);
            self.in_part(&name, || self.over(&name, rename))?;
            Ok(())
        };
        doing().map_err(|error| self.failed(&name, error))
    }

    /// Makes a content of another store one of this: by a link, or where that cannot be, by a copy.
    pub(super) fn take(
        &self,
        other: &Self,
        content: &FileDigest,
        size: u64,
    ) -> Result<bool, Error> {
        if !other.has(content, Some(size)) {
            return Ok(false);
        }
        let name = name(content);
        let link = || {
            self.in_part(&name, || {
                rustix::fs::linkat(&other.folder, &name, &self.folder, &name, AtFlags::empty())
            })
        };
        let mut linked = link();
        if linked == Err(Errno::EXIST) && !self.has(content, Some(size)) {
            self.remove(content);
            // Does nothing to a file: a folder may be in its place. The second attempt shows the error.
            let _ = std::fs::remove_dir_all(self.path.join(&name));
            linked = link();
        }
        match linked {
            Ok(()) => return Ok(true),
            // Another process was faster.
            Err(Errno::EXIST) if self.has(content, Some(size)) => return Ok(true),
            Err(_) => {}
        }
        let file = match other.file(content) {
            Ok(file) => file,
            Err(_) => return Ok(false),
        };
        let (beside, out) = self
            .create_beside(&name)
            .map_err(|error| self.failed(&name, error.into()))?;
        let path = self.path.join(&beside);
        let mut hash = Hashing::default();
        let copied =
            io::copy(&mut file.take(size), &mut Tee(&mut hash, &out)).map(|_| (out, hash.finish()));
        match copied {
            Ok((out, found)) if found == *content => {
                self.adopt(content, &out, &path).map(|()| true)
            }
            other => {
                let _ = rustix::fs::unlinkat(&self.folder, &beside, AtFlags::empty());
                match other {
                    Ok(_) => Ok(false),
                    Err(error) => Err(self.failed(&name, error)),
                }
            }
        }
    }

    /// Whether the bytes are those of the digest. Reads all of them; what is wrong is removed.
    pub(super) fn verify(&self, content: &FileDigest) -> Result<bool, Error> {
        let verified = self.file(content).and_then(|file| digest(&file));
        match verified {
            Ok(found) if found == *content => Ok(true),
            Ok(_) => {
                self.remove(content);
                Ok(false)
            }
            Err(error) if is_absence(&error) => {
                self.remove(content);
                Ok(false)
            }
            Err(error) => Err(self.failed(&name(content), error)),
        }
    }

    pub(super) fn remove(&self, content: &FileDigest) {
        let _ = rustix::fs::unlinkat(&self.folder, name(content), AtFlags::empty());
    }

    /// Every name in the folder: contents, and leftovers of writers that were cut short.
    pub(super) fn names(&self, mut each: impl FnMut(Named)) -> Result<(), Error> {
        for part in 0..=0xff_u8 {
            let folder = self.path.join(format!("{part:02x}"));
            let failed = |error| Error::io(format!("list {}", folder.display()), error);
            let entries = match std::fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(failed)?,
            };
            for entry in entries {
                let path = entry.map_err(failed)?.path();
                let text = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or_default();
                let content = format!("sha256:{text}")
                    .parse::<pierhead_oci::Digest>()
                    .ok();
                each(
                    match content.and_then(|digest| FileDigest::try_from(&digest).ok()) {
                        Some(content) => Named::FileDigest(content),
                        None => Named::Leftover(path),
                    },
                );
            }
        }
        Ok(())
    }

    /// Waits until all that was written is on the disk: one call, not one a file.
    pub(super) fn sync(&self) -> Result<(), Error> {
        rustix::fs::syncfs(&self.folder)
            .map_err(|error| Error::io(format!("sync {}", self.path.display()), error.into()))
    }

    /// Of a file whose seal is whole, or that is what it should be nevertheless.
    pub(super) fn file(&self, content: &FileDigest) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.folder, name(content), flags, Mode::empty())?;
        let file = File::from(file);
        let stat = rustix::fs::fstat(&file)?;
        if self.is_whole(content, &stat, &file)? {
            return Ok(file);
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a stored file was altered",
        ))
    }

    /// Whether its name is that file's.
    pub(super) fn is_still(&self, content: &FileDigest, file: &File) -> io::Result<bool> {
        let named = rustix::fs::statat(&self.folder, name(content), AtFlags::SYMLINK_NOFOLLOW);
        let stat = rustix::fs::fstat(file)?;
        match named {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A file of it has the attributes of a tree's entry from now on, which was modified at that time.
    pub(super) fn lent(&self, content: &FileDigest, file: &File, modified: Time) -> io::Result<()> {
        let stat = rustix::fs::fstat(file)?;
        // Else somebody has written to it already.
        if (stat.st_mtime, i128::from(stat.st_mtime_nsec))
            == (modified.seconds, i128::from(modified.nanos))
        {
            self.lent.note(content, &stat);
        }
        Ok(())
    }

    /// Its size; of another size than `size` it is not looked into.
    fn found(&self, content: &FileDigest, size: Option<u64>) -> Option<u64> {
        let name = name(content);
        let stat = rustix::fs::statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let found = u64::try_from(stat.st_size).ok()?;
        if size.is_some_and(|size| size != found) {
            return None;
        }
        let sealed = is_sealed(&stat, content) || self.file(content).is_ok();
        sealed.then_some(found)
    }

    /// Whether it is told by a stamp that nobody has written to it.
    #[cfg(test)]
    pub(super) fn is_known(&self, content: &FileDigest) -> bool {
        let stat = rustix::fs::statat(&self.folder, name(content), AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| self.lent.knows(content, &stat))
    }

    /// Reads it where nothing tells.
    fn is_whole(&self, content: &FileDigest, stat: &Stat, mut file: &File) -> io::Result<bool> {
        if is_sealed(stat, content) {
            return Ok(true);
        }
        if !is_regular(stat) {
            return Ok(false);
        }
        if self.lent.knows(content, stat) {
            return Ok(true);
        }
        let found = digest(file)?;
        io::Seek::rewind(&mut file)?;
        let whole = found == *content;
        let after = rustix::fs::fstat(file)?;
        if whole && (after.st_ctime, after.st_ctime_nsec) == (stat.st_ctime, stat.st_ctime_nsec) {
            self.lent.note(content, stat);
        }
        Ok(whole)
    }

    fn create(&self, name: &str) -> rustix::io::Result<File> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(&self.folder, name, flags, Mode::from_raw_mode(0o444));
        self.in_part(name, create).map(File::from)
    }

    /// Runs an operation that creates a name in one of the 256 folders. Creates the folder if it was deleted.
    fn in_part<T>(
        &self,
        name: &str,
        mut doing: impl FnMut() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match (doing(), name.split_once('/')) {
            (Err(Errno::NOENT), Some((part, _))) => {
                make_part(&self.folder, part)?;
                doing()
            }
            (done, _) => done,
        }
    }

    /// Does `rename` to `name`, once more when a folder was in its place: it goes with all that is in it.
    fn over(
        &self,
        name: &str,
        rename: impl Fn() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match rename() {
            Err(Errno::ISDIR) => {
                // The second attempt shows the error.
                let _ = std::fs::remove_dir_all(self.path.join(name));
                rename()
            }
            renamed => renamed,
        }
    }

    /// A file that nobody else has, for what is put over `name` when it is written. In containers, process ids repeat.
    fn create_beside(&self, name: &str) -> rustix::io::Result<(String, File)> {
        loop {
            let number = self.beside.fetch_add(1, Ordering::Relaxed);
            let beside = format!("{name}.{}-{number}", std::process::id());
            match self.create(&beside) {
                Err(Errno::EXIST) => {}
                created => return created.map(|file| (beside, file)),
            }
        }
    }

    fn fill(
        &self,
        name: &str,
        mut file: &File,
        content: &FileDigest,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let written = file.write_all(bytes).and_then(|()| seal(file, content));
        written.map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
            self.failed(name, error)
        })
    }

    fn failed(&self, name: &str, error: io::Error) -> Error {
        Error::io(format!("store {}", self.path.join(name).display()), error)
    }
}

/// What lies in a folder of contents.
pub(super) enum Named {
    FileDigest(FileDigest),
    Leftover(PathBuf),
}

impl Source for Contents {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        Ok(self.found(content, None))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file(content)?.read_exact_at(buf, offset)
    }
}

/// The name of all bytes of a file.
pub(super) fn digest(mut file: &File) -> io::Result<FileDigest> {
    let mut hash = Hashing::default();
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finish()),
            len => hash.0.update(&buffer[..len]),
        }
    }
}

#[derive(Default)]
struct Hashing(Sha256);

impl Hashing {
    fn finish(self) -> FileDigest {
        FileDigest::from_bytes(self.0.finalize().into())
    }
}

struct Tee<'a>(&'a mut Hashing, &'a File);

impl Write for Tee<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.1.write(bytes)?;
        self.0.0.update(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// There is nothing, or nothing that anybody may rely on.
pub(super) fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | InvalidData | UnexpectedEof)
        || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

fn name(content: &FileDigest) -> String {
    let hex = content.hex();
    format!("{}/{hex}", &hex[..2])
}

/// One of the 256 folders, unless it is there.
fn make_part(folder: &OwnedFd, part: &str) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(folder, part, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn time(content: &FileDigest) -> i64 {
    let [a, b, c, d, ..] = *content.as_bytes();
    EPOCH + i64::from(u32::from_le_bytes([a, b, c, d]) & SPREAD)
}

fn seal(file: &File, content: &FileDigest) -> io::Result<()> {
    let time = Timespec {
        tv_sec: time(content),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

fn is_sealed(stat: &Stat, content: &FileDigest) -> bool {
    is_regular(stat) && stat.st_mtime == time(content) && stat.st_mtime_nsec == 0
}

fn is_regular(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
