//! Content-addressed store of file contents: one file for each content. The mtime of a verified
//! file is derived from its digest.
//!
//! The derived mtime is called the seal of the file. The store sets the seal after it has written
//! the file, so a file that a crash truncated has no seal. A later write to the file breaks the
//! seal. So the store needs no database of verified files. A file that an exported tree shares has
//! the mtime of the entry in the tree, and so no seal. The store recognizes such a file by a stamp
//! (see `stamps`), or else reads and hashes the file again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::stamps::StampLog;
use crate::Error;
use pierhead_toc::{FileDigest, Source, Time};

/// Start of the mtimes that seals use, in seconds since 1970: seals are mtimes in the eight years
/// from 2000 on.
const SEAL_EPOCH: i64 = 946_684_800;
const SEAL_MASK: u32 = (1 << 28) - 1;
/// Number of bytes that one read transfers.
const READ_SIZE: usize = 128 << 10;

/// A folder of file contents.
#[derive(Debug)]
pub(super) struct ContentDir {
    folder: OwnedFd,
    path: PathBuf,
    /// Makes the names of temporary files unique in this process. The names also contain the
    /// process ID.
    next_temporary: AtomicU64,
    stamps: StampLog,
}

impl ContentDir {
    /// Opens a folder of contents. With `create`, first creates this folder and the 256 folders in
    /// it.
    pub(super) fn open(path: &Path, create: bool) -> Result<Self, Error> {
        let failed = |error: Errno| Error::io(format!("open {}", path.display()), error.into());
        if create {
            let exists = |result: rustix::io::Result<()>| match result {
                Err(Errno::EXIST) => Ok(()),
                other => other.map_err(failed),
            };
            // Only the owner may enter: a file that an exported tree shares may be readable for
            // other users.
            exists(rustix::fs::mkdir(path, Mode::RWXU))?;
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        if create && rustix::fs::statat(&folder, "ff", AtFlags::empty()).is_err() {
            for part in 0..=0xff_u8 {
                create_prefix(&folder, &format!("{part:02x}")).map_err(failed)?;
            }
        }
        Ok(Self {
            folder,
            path: path.to_owned(),
            next_temporary: AtomicU64::new(0),
            stamps: StampLog::new(path.with_file_name("stamps"), create),
        })
    }

    /// Whether a content is stored with a valid seal or stamp, and has the size `size`, if one is
    /// given. For a sealed file, this takes one system call.
    pub(super) fn has(&self, content: &FileDigest, size: Option<u64>) -> bool {
        self.stored_size(content, size).is_some()
    }

    /// Stores bytes whose digest was verified. Keeps an existing file with a valid seal.
    #[expect(
        clippy::disallowed_methods,
        reason = "renames in an open folder, which atomic-file cannot"
    )]
    pub(super) fn put(&self, content: &FileDigest, bytes: &[u8]) -> Result<(), Error> {
        let name = name(content);
        match self.create(&name) {
            Ok(file) => self.fill(&name, &file, content, bytes),
            Err(Errno::EXIST) if self.has(content, Some(as_u64(bytes.len()))) => Ok(()),
            Err(Errno::EXIST) => {
                // The existing file is damaged, or another process is writing it. So write a
                // temporary file, and rename it.
                let (temporary, file) = self
                    .create_temporary(&name)
                    .map_err(|error| self.failed(&name, error.into()))?;
                self.fill(&temporary, &file, content, bytes)?;
                self.replacing(&name, || {
                    rustix::fs::renameat(&self.folder, &temporary, &self.folder, &name)
                })
                .map_err(|error| self.failed(&name, error.into()))
            }
            Err(error) => Err(self.failed(&name, error.into())),
        }
    }

    /// Moves a file into the store, which must be on the same file system. The caller has verified
    /// the digest of the file.
    #[expect(
        clippy::disallowed_methods,
        reason = "renames in an open folder, which atomic-file cannot"
    )]
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
            self.in_prefix(&name, || self.replacing(&name, rename))?;
            Ok(())
        };
        doing().map_err(|error| self.failed(&name, error))
    }

    /// Links a content of another store into this store, or copies it where a link is not possible.
    pub(super) fn copy_from(
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
            self.in_prefix(&name, || {
                rustix::fs::linkat(&other.folder, &name, &self.folder, &name, AtFlags::empty())
            })
        };
        let mut linked = link();
        if linked == Err(Errno::EXIST) && !self.has(content, Some(size)) {
            self.remove(content);
            // A folder may have this name, so remove it. If the removal fails, the second attempt
            // reports the error.
            let _ = std::fs::remove_dir_all(self.path.join(&name));
            linked = link();
        }
        match linked {
            Ok(()) => return Ok(true),
            // Another process has stored the content meanwhile.
            Err(Errno::EXIST) if self.has(content, Some(size)) => return Ok(true),
            Err(_) => {}
        }
        let file = match other.file(content) {
            Ok(file) => file,
            Err(_) => return Ok(false),
        };
        let (temporary, out) = self
            .create_temporary(&name)
            .map_err(|error| self.failed(&name, error.into()))?;
        let path = self.path.join(&temporary);
        let mut hash = Hashing::default();
        let copied =
            io::copy(&mut file.take(size), &mut Tee(&mut hash, &out)).map(|_| (out, hash.finish()));
        match copied {
            Ok((out, found)) if found == *content => {
                self.adopt(content, &out, &path).map(|()| true)
            }
            other => {
                let _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
                match other {
                    Ok(_) => Ok(false),
                    Err(error) => Err(self.failed(&name, error)),
                }
            }
        }
    }

    /// Reads and hashes a content. If its digest does not match, removes the content and returns
    /// `false`.
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

    /// Calls `each` for every file in the store: contents, and temporary files of killed writers.
    pub(super) fn for_each(&self, mut each: impl FnMut(ContentEntry)) -> Result<(), Error> {
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
                        Some(content) => ContentEntry::Content(content),
                        None => ContentEntry::Temporary(path),
                    },
                );
            }
        }
        Ok(())
    }

    /// Syncs the whole file system with one call, instead of one call per file.
    pub(super) fn sync(&self) -> Result<(), Error> {
        rustix::fs::syncfs(&self.folder)
            .map_err(|error| Error::io(format!("sync {}", self.path.display()), error.into()))
    }

    /// Opens the file of a content. The file must have a valid seal or stamp, or the right bytes.
    pub(super) fn file(&self, content: &FileDigest) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.folder, name(content), flags, Mode::empty())?;
        let file = File::from(file);
        let stat = rustix::fs::fstat(&file)?;
        if self.is_valid(content, &stat, &file)? {
            return Ok(file);
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a stored file was altered",
        ))
    }

    /// Whether the name of the content in the store still belongs to this file.
    pub(super) fn is_current(&self, content: &FileDigest, file: &File) -> io::Result<bool> {
        let named = rustix::fs::statat(&self.folder, name(content), AtFlags::SYMLINK_NOFOLLOW);
        let stat = rustix::fs::fstat(file)?;
        match named {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a stamp for a file that now has the attributes of an entry in an exported tree, and
    /// the mtime `modified`.
    pub(super) fn record_link(
        &self,
        content: &FileDigest,
        file: &File,
        modified: Time,
    ) -> io::Result<()> {
        let stat = rustix::fs::fstat(file)?;
        // If the mtime differs, a later write has changed the file.
        if (stat.st_mtime, i128::from(stat.st_mtime_nsec))
            == (modified.seconds, i128::from(modified.nanos))
        {
            self.stamps.insert(content, &stat);
        }
        Ok(())
    }

    /// Returns the size of a stored content. Returns `None` if the content is not stored, or if its
    /// size is not `size`.
    fn stored_size(&self, content: &FileDigest, size: Option<u64>) -> Option<u64> {
        let name = name(content);
        let stat = rustix::fs::statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let found = u64::try_from(stat.st_size).ok()?;
        if size.is_some_and(|size| size != found) {
            return None;
        }
        let sealed = is_sealed(&stat, content) || self.file(content).is_ok();
        sealed.then_some(found)
    }

    /// Whether a stamp proves that the file is unchanged.
    #[cfg(test)]
    pub(super) fn has_stamp(&self, content: &FileDigest) -> bool {
        let stat = rustix::fs::statat(&self.folder, name(content), AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| self.stamps.contains(content, &stat))
    }

    /// Whether a file contains the bytes of the content. Reads and hashes the file only if it has
    /// neither seal nor stamp.
    fn is_valid(&self, content: &FileDigest, stat: &Stat, mut file: &File) -> io::Result<bool> {
        if is_sealed(stat, content) {
            return Ok(true);
        }
        if !is_regular(stat) {
            return Ok(false);
        }
        if self.stamps.contains(content, stat) {
            return Ok(true);
        }
        let found = digest(file)?;
        io::Seek::rewind(&mut file)?;
        let is_valid = found == *content;
        let after = rustix::fs::fstat(file)?;
        if is_valid && (after.st_ctime, after.st_ctime_nsec) == (stat.st_ctime, stat.st_ctime_nsec)
        {
            self.stamps.insert(content, stat);
        }
        Ok(is_valid)
    }

    fn create(&self, name: &str) -> rustix::io::Result<File> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(&self.folder, name, flags, Mode::from_raw_mode(0o444));
        self.in_prefix(name, create).map(File::from)
    }

    /// Runs an operation that creates a name in one of the 256 folders. If the folder was deleted,
    /// creates it first.
    fn in_prefix<T>(
        &self,
        name: &str,
        mut doing: impl FnMut() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match (doing(), name.split_once('/')) {
            (Err(Errno::NOENT), Some((prefix, _))) => {
                create_prefix(&self.folder, prefix)?;
                doing()
            }
            (done, _) => done,
        }
    }

    /// Runs `rename`, which renames a file to `name`. If a folder has that name, deletes the folder
    /// with its contents, and runs `rename` again.
    fn replacing(
        &self,
        name: &str,
        rename: impl Fn() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match rename() {
            Err(Errno::ISDIR) => {
                // If this removal fails, the second attempt reports the error.
                let _ = std::fs::remove_dir_all(self.path.join(name));
                rename()
            }
            renamed => renamed,
        }
    }

    /// Creates a temporary file beside `name`. The name contains the process ID, which may repeat
    /// in containers, so another process may use the same name.
    fn create_temporary(&self, name: &str) -> rustix::io::Result<(String, File)> {
        loop {
            let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
            let temporary = format!("{name}.{}-{number}", std::process::id());
            match self.create(&temporary) {
                Err(Errno::EXIST) => {}
                created => return created.map(|file| (temporary, file)),
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

/// A file in the folder of contents: a content, or a temporary file.
pub(super) enum ContentEntry {
    Content(FileDigest),
    Temporary(PathBuf),
}

impl Source for ContentDir {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        Ok(self.stored_size(content, None))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file(content)?.read_exact_at(buf, offset)
    }
}

/// Hashes a file from the current position of the descriptor.
pub(super) fn digest(mut file: &File) -> io::Result<FileDigest> {
    let mut hash = Hashing::default();
    let mut buffer = vec![0; READ_SIZE];
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

/// Whether an error means that the content is missing or damaged.
pub(super) fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | InvalidData | UnexpectedEof)
        || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

fn name(content: &FileDigest) -> String {
    let hex = content.hex();
    format!("{}/{hex}", &hex[..2])
}

/// Creates one of the 256 folders, unless the folder exists.
fn create_prefix(folder: &OwnedFd, part: &str) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(folder, part, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn seal_time(content: &FileDigest) -> i64 {
    let [a, b, c, d, ..] = *content.as_bytes();
    SEAL_EPOCH + i64::from(u32::from_le_bytes([a, b, c, d]) & SEAL_MASK)
}

fn seal(file: &File, content: &FileDigest) -> io::Result<()> {
    let time = Timespec {
        tv_sec: seal_time(content),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

fn is_sealed(stat: &Stat, content: &FileDigest) -> bool {
    is_regular(stat) && stat.st_mtime == seal_time(content) && stat.st_mtime_nsec == 0
}

fn is_regular(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
}

fn as_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
