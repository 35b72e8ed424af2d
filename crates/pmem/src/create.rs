//! The file of a region: made whole or not at all, and owned by one opening of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, RenameFlags};
use rustix::io::Errno;

use crate::Error;

/// Opens the file at `path`, or makes one of `size` bytes, all of them allocated, and locks it
/// until it is closed.
///
/// Errors: [`Error::Busy`], [`Error::Foreign`] for what is no file or is shorter, [`Error::Io`].
pub(crate) fn open(path: &Path, size: u64) -> Result<File, Error> {
    loop {
        match existing(path, size) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        // Its name is taken, and yet there is nothing to open.
        if path.is_symlink() {
            return Err(Error::Foreign {
                path: path.to_owned(),
                why: "a symbolic link to nothing: make what it leads to, or remove it".into(),
            });
        }
        // Somebody else may have put one there meanwhile: then that one is looked at.
        if let Some(file) = new(path, size)? {
            return Ok(file);
        }
    }
}

fn existing(path: &Path, size: u64) -> Result<File, Error> {
    let doing = |what: &str| failed(format!("{what} {}", path.display()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        // A pipe would wait for its other end.
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
            "a device, and a region is a file: make a file system on it, mount it with -o dax, and name a file in there".into(),
        ));
    }
    if !kind.is_file() {
        return Err(foreign("not a regular file".into()));
    }
    lock(&file, path)?;
    let len = file.metadata().map_err(doing("look at"))?.len();
    if len < size {
        return Err(foreign(format!(
            "{len} bytes long, and the region is to have {size}: it was cut short or made for another size; remove it to have a new one made",
        )));
    }
    Ok(file)
}

/// Makes the file beside its place and renames it, so that no power cut leaves half of one. `None`
/// when there is one by now.
fn new(path: &Path, size: u64) -> Result<Option<File>, Error> {
    let beside = beside(path);
    let doing = |what: &str| failed(format!("{what} {} of {size} bytes", beside.display()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&beside)
        .map_err(doing("make"))?;
    lock(&file, path)?;
    // It may have been renamed before it was locked, and is somebody's region then.
    let same = fs::metadata(&beside).is_ok_and(|now| {
        file.metadata()
            .is_ok_and(|this| (this.dev(), this.ino()) == (now.dev(), now.ino()))
    });
    if !same {
        return Ok(None);
    }
    let made = file
        .set_len(0)
        .and_then(|()| allocate(&file, size))
        .and_then(|()| file.sync_all());
    if let Err(why) = made {
        let _ = fs::remove_file(&beside);
        return Err(doing("allocate")(why));
    }
    match rustix::fs::renameat_with(
        rustix::fs::CWD,
        &beside,
        rustix::fs::CWD,
        path,
        RenameFlags::NOREPLACE,
    ) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            let _ = fs::remove_file(&beside);
            return Ok(None);
        }
        // A file system that cannot promise it; the lock keeps out all but strangers.
        Err(Errno::INVAL) if !path.exists() => {
            fs::rename(&beside, path).map_err(doing("rename"))?;
        }
        Err(why) => return Err(doing("rename")(why.into())),
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))
        .and_then(|folder| folder.sync_all())
        .map_err(doing("make durable the name of"))?;
    Ok(Some(file))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Every byte gets its place now: a page that has none raises SIGBUS when it is first written and
/// the disk is full.
///
/// Asked for first, since some file systems fill the disk up before they say that there is no room.
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

/// Locks until the file is closed, and so when this process ends, in whichever way.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::Busy(path.to_owned())),
        Err(why) => Err(failed(format!("lock {}", path.display()))(why.into())),
    }
}

/// What the system said no to.
fn failed(doing: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}
