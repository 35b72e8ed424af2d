//! Files that are either there and complete, or not there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::Error;

/// The end of the name of a file that is being written; whoever owns a folder removes such files at the start.
pub const PARTIAL: &str = ".partial";

/// Writes beside, fsyncs, renames, fsyncs the folder. What was there under that name is replaced. A failure
/// leaves nothing behind.
pub fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
    replace(path, |file| fill(file).and_then(|()| file.sync_data()))?;
    let failed = |error| Error::io(format!("write {}", path.display()), error);
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput);
    folder
        .map_err(io::Error::from)
        .and_then(File::open)
        .and_then(|folder| folder.sync_all())
        .map_err(failed)
}

/// Writes beside and renames, without a sync: whoever is killed leaves all or nothing, but a crash of the system may leave
/// anything under that name. Only for what its reader checks, and can do without.
pub fn replace(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
    let doing = || format!("write {}", path.display());
    let (mut file, partial) = beside(path).map_err(|error| Error::io(doing(), error))?;
    let written = fill(&mut file).and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        // A full disk: leave no more on it.
        let _ = fs::remove_file(&partial);
        Error::io(doing(), error)
    })
}

/// Writers of one path at once that find a file beside it.
const MAX_WRITERS: u32 = 64;

/// A file beside `path`, empty, to be filled and renamed: whoever else writes `path` meanwhile has another one. What a
/// kill left is used again. It is one's own for as long as it is open: rename or delete it before.
pub fn beside(path: &Path) -> io::Result<(File, PathBuf)> {
    for nth in 0..MAX_WRITERS {
        let mut name = path.as_os_str().to_owned();
        if nth > 0 {
            name.push(format!(".{nth}"));
        }
        name.push(PARTIAL);
        let name = PathBuf::from(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Its writer may have renamed it since it was opened: then it is whole, and no longer to be written.
            Ok(()) if is_at(&file, &name)? => {
                file.set_len(0)?;
                return Ok((file, name));
            }
            Ok(()) | Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let here = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        here => here?,
    };
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()) == (here.dev(), here.ino()))
}
