//! Files that are either there and complete, or not there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// The end of the name of a file that is being written; whoever owns a folder removes such files at the start.
pub(crate) const PARTIAL: &str = ".partial";

/// Writes beside, fsyncs, renames, fsyncs the folder. What was there under that name is replaced. A failure
/// leaves nothing behind.
pub(crate) fn write(
    path: &Path,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), Error> {
    let doing = || format!("write {}", path.display());
    let folder = path
        .parent()
        .ok_or_else(|| Error::io(doing(), io::ErrorKind::InvalidInput.into()))?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(PARTIAL);
    let partial = PathBuf::from(partial);
    let written = File::create(&partial)
        .and_then(|mut file| {
            fill(&mut file)?;
            file.sync_data()
        })
        .and_then(|()| fs::rename(&partial, path));
    if let Err(error) = written {
        // A full disk: leave no more on it.
        let _ = fs::remove_file(&partial);
        return Err(Error::io(doing(), error));
    }
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| Error::io(doing(), error))
}
