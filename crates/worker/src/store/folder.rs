//! Recognizes, creates and locks the folder of a store, and lists its entries.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use rustix::fs::FlockOperation;

use super::image;

/// The contents of the `version` file in a store's folder. In contrast, the `version` file in the
/// daemon's data folder contains only a number.
pub(super) const VERSION: &[u8] = b"store 1\n";

/// The kind of data in a folder, according to its version file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderKind {
    /// A store of the version that this program reads and writes.
    Store,
    /// A store of another version of the format.
    Later,
    /// A folder with another version file, such as the data folder of `pierhead serve`.
    Foreign,
    /// A folder without a version file.
    None,
}

/// Reads the version file of a folder.
///
/// # Errors
/// Errors of the file system.
pub fn kind(path: &Path) -> Result<FolderKind, Error> {
    match image::read(&path.join("version"), 64) {
        Ok(found) if found == VERSION => Ok(FolderKind::Store),
        // After a power cut, a new version file can be empty.
        Ok(found) if found.is_empty() => Ok(FolderKind::None),
        Ok(found) if found.starts_with(b"store ") => Ok(FolderKind::Later),
        Ok(_) => Ok(FolderKind::Foreign),
        Err(Error::Missing(_)) => Ok(FolderKind::None),
        Err(error) => Err(error),
    }
}

/// Whether a folder is a store of this version. Returns `false` for a folder without a version
/// file.
///
/// # Errors
/// `Foreign` for a store of another version and for a folder with any other data.
pub(super) fn is_store(path: &Path) -> Result<bool, Error> {
    let shown = path.display();
    match kind(path)? {
        FolderKind::Store => Ok(true),
        FolderKind::None => Ok(false),
        FolderKind::Later => Err(Error::Foreign(format!(
            "a later version of pierhead wrote the store {shown}: run that version, or name another folder"
        ))),
        FolderKind::Foreign => Err(Error::Foreign(format!(
            "{shown} is no store of `pierhead pull`; it looks like the data folder of `pierhead serve`: name another folder"
        ))),
    }
}

/// Files that a folder may hold before it becomes a store.
const FRESH: [&str; 4] = ["lost+found", "lock", "version", "version.partial"];
/// Names of the folders that every store has.
pub(super) const FOLDERS: [&str; 3] = ["images", "fetches", "contents"];
/// Names of further files that a store may contain.
const ADDED: [&str; 5] = [
    "stamps",
    "unsynced",
    "pulled.json",
    "pulled.json.lock",
    "pulled.json.partial",
];

/// Makes an empty folder a store, unless the folder already is a store. A store that lost its
/// version file gets a new one. The caller holds [`lock_folder`].
pub(super) fn initialize(path: &Path) -> Result<(), Error> {
    if is_store(path)? {
        return Ok(());
    }
    let entries = fs::read_dir(path);
    let mut entries =
        entries.map_err(|error| Error::io(format!("open the store {}", path.display()), error))?;
    // A folder that contains all three subfolders is a store that lost its version file.
    let is_store = FOLDERS.iter().all(|name| path.join(name).is_dir());
    let is_of_store = |name: &std::ffi::OsStr| {
        let name = name.to_str().unwrap_or_default();
        FRESH.contains(&name) || is_store && (FOLDERS.contains(&name) || ADDED.contains(&name))
    };
    let foreign = entries.find_map(|entry| {
        let name = entry.ok().map(|entry| entry.file_name());
        name.filter(|name| !is_of_store(name))
    });
    if let Some(foreign) = foreign {
        return Err(Error::Foreign(format!(
            "{} is no store of `pierhead pull`: it holds {}; name a new or empty folder",
            path.display(),
            foreign.to_string_lossy()
        )));
    }
    let version = path.join("version");
    pierhead_atomic_file::write(&version, VERSION)
        .map_err(|error| Error::io(format!("write {}", version.display()), error))
}

/// Locks a folder until the result is dropped. The lock is on the folder itself, without a lock
/// file. Where the file system cannot lock folders (NFS), returns `None`. On such a file system,
/// concurrent processes can disturb each other.
pub(super) fn lock_folder(path: &Path) -> Option<File> {
    let folder = File::open(path).ok()?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&folder, FlockOperation::LockExclusive)).ok()?;
    Some(folder)
}

/// Returns the paths of the entries of a folder, without temporary files.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::io(format!("list {}", folder.display()), error);
    let mut paths = Vec::new();
    let read = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(paths),
        read => read.map_err(failed)?,
    };
    for entry in read {
        let path = entry.map_err(failed)?.path();
        let is_temporary = path
            .to_str()
            .is_some_and(|path| path.ends_with(pierhead_atomic_file::SUFFIX));
        if !is_temporary {
            paths.push(path);
        }
    }
    Ok(paths)
}
