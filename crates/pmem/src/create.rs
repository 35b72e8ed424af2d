//! Opens the file of a region (a file that is mapped into memory), or creates it atomically. Locks
//! the file for one owner.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use pierhead_atomic_file::Options;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::Error;

/// Opens the file at `path`. If there is none, creates a file of `size` bytes with all blocks
/// allocated. Locks the file until it is closed.
///
/// Errors: [`Error::Busy`] when the file is locked; [`Error::Foreign`] when the file is not a
/// regular file or is too short; [`Error::Io`] for an error of the system.
pub(crate) fn open(path: &Path, size: u64) -> Result<File, Error> {
    loop {
        match open_existing(path, size) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        // A symbolic link to a missing file occupies the name, but cannot be opened.
        if path.is_symlink() {
            return Err(Error::Foreign {
                path: path.to_owned(),
                why: "a symbolic link to a missing file: create its target, or remove the link"
                    .into(),
            });
        }
        // If another process has created the file since the open, the next attempt opens that file.
        if let Some(file) = create(path, size)? {
            return Ok(file);
        }
    }
}

fn open_existing(path: &Path, size: u64) -> Result<File, Error> {
    let doing = |what: &str| io_error(format!("{what} {}", path.display()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        // Without O_NONBLOCK, opening a pipe would wait until another process opens its other end.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(doing("open"))?;
    let metadata = file.metadata().map_err(doing("look at"))?;
    let foreign = |why: String| Error::Foreign {
        path: path.to_owned(),
        why,
    };
    let kind = metadata.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        return Err(foreign(
"a device, but a region is a file: create a file system on it, mount it with -o dax, and choose a file there".into(),
        ));
    }
    if !kind.is_file() {
        return Err(foreign("not a regular file".into()));
    }
    lock(&file, path)?;
    let len = file.metadata().map_err(doing("look at"))?.len();
    if len < size {
        return Err(foreign(format!(
            "{len} bytes long, but the region needs {size}: it was truncated or created for another size; remove it, and a new one is created",
        )));
    }
    Ok(file)
}

/// Creates the file atomically, so that no power cut leaves an incomplete region. The file is
/// locked from its creation on. `None` when another process has created the file in the meantime.
///
/// Only one process at a time allocates a region, in the temporary file that it has locked. With
/// two allocations at once, both could fail on a disk with space for one region.
fn create(path: &Path, size: u64) -> Result<Option<File>, Error> {
    let doing = |what: &str| io_error(format!("{what} {} of {size} bytes", path.display()));
    let options = Options::new().mode(0o600).no_replace().exclusive();
    let file = match options.create(path) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(Error::Busy(path.to_owned()));
        }
        file => file.map_err(doing("make"))?,
    };
    // Another process that created the region has released the temporary name by its rename.
    if path.symlink_metadata().is_ok() {
        return Ok(None);
    }
    allocate(file.file(), size).map_err(doing("allocate"))?;
    match file.commit() {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(doing("make durable")(error)),
    }
}

/// Allocates all blocks of the file when the region is created: on a full disk, a write to an
/// unallocated page would raise SIGBUS.
///
/// Before the allocation, checks the free space, because some file systems fill the disk before
/// they report that the disk is full.
fn allocate(mut file: &File, size: u64) -> io::Result<()> {
    let room = rustix::fs::fstatvfs(file)?;
    if size > room.f_bavail.saturating_mul(room.f_frsize) {
        return Err(Errno::NOSPC.into());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; 1 << 20];
            let mut left = size;
            while left > 0 {
                let part = usize::try_from(left)
                    .unwrap_or(zeros.len())
                    .min(zeros.len());
                file.write_all(&zeros[..part])?;
                left -= part as u64;
            }
            Ok(())
        }
        Err(why) => Err(why.into()),
    }
}

/// Locks the file until it is closed. When the process ends, the kernel closes the file, too.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::Busy(path.to_owned())),
        Err(why) => Err(io_error(format!("lock {}", path.display()))(why.into())),
    }
}

/// Creates an [`Error::Io`] for a failed operation.
fn io_error(doing: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_space_is_needed_when_another_process_has_created_the_region() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tier");
        std::fs::write(&path, b"the region of the other process").expect("written");
        // This size is larger than any disk.
        let created = create(&path, 1 << 62);
        assert!(matches!(created, Ok(None)), "{created:?}");
        let files = std::fs::read_dir(folder.path()).expect("readable");
        assert_eq!(files.count(), 1);
    }
}
