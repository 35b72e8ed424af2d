//! Creates, locks and deletes the temporary files beside a target. Each temporary file belongs to
//! one writer, which keeps it locked.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::SUFFIX;

/// Maximum number of simultaneous writers of one target.
const MAX_WRITERS: u32 = 64;
/// Maximum number of attempts to create a temporary file of one name, before the next name is
/// tried. An attempt fails only when another writer acts at the same moment.
const MAX_ATTEMPTS: u32 = 4;

/// Creates an empty file beside `target`, with at most the permission bits of `mode`. The file
/// stays locked while it is open, so that no other writer treats it as the leftover of a killed
/// process. An exclusive file has the first name only.
pub(super) fn create(
    target: &Path,
    mode: u32,
    is_exclusive: bool,
    before: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<(File, PathBuf)> {
    let writers = if is_exclusive { 1 } else { MAX_WRITERS };
    for number in 0..writers {
        let path = name(target, number);
        before(&path)?;
        for _ in 0..MAX_ATTEMPTS {
            match create_new(&path, mode) {
                Ok(file) if lock(&file, &path)? => return Ok((file, path)),
                // Another writer deleted the file between its creation and the lock.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !delete_abandoned(&path)? {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Deletes the temporary files of `target` that killed writers left.
pub(super) fn delete_all_abandoned(target: &Path) -> io::Result<()> {
    // The writer of an earlier name may have renamed its file, so a gap does not end the search.
    for number in 0..MAX_WRITERS {
        delete_abandoned(&name(target, number))?;
    }
    Ok(())
}

fn name(target: &Path, number: u32) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name.push(SUFFIX);
    name.into()
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
}

/// Deletes the file that a killed process left at `path`. Returns whether the name is free; the
/// file of a live writer stays.
fn delete_abandoned(path: &Path) -> io::Result<bool> {
    // These flags make the open fail on a symbolic link, and not wait for the other end of a pipe.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).unwrap_or_default();
    let opened = File::options().read(true).custom_flags(flags).open(path);
    match opened {
        Ok(file) if !lock(&file, path)? => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        // The path is a link or an unreadable file, so it belongs to no writer.
        Ok(_) | Err(_) => {}
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        removed => removed.map(|()| true),
    }
}

/// Locks `file`. Returns whether the lock succeeded and `path` still names this file.
fn lock(file: &File, path: &Path) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => is_at(file, path),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let here = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        here => here?,
    };
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()) == (here.dev(), here.ino()))
}
