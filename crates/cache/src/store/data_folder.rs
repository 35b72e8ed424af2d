//! The data folder of the cache: creates it, locks it, and checks its layout version.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use pierhead_atomic_file::{open_regular, open_regular_with};
use rustix::fs::{Access, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::error::Error;

/// The layout version that this build reads and writes.
const VERSION: u32 = 1;

/// Names of files that may exist in a folder that is not a data folder yet.
const NAMES_IN_UNUSED_FOLDER: [&str; 4] = ["lock", "version", "version.partial", "lost+found"];

/// The folders that the data folder contains.
const FOLDERS: [&str; 7] = [
    "blobs",
    "blobs/sha256",
    "blobs/sha512",
    "staging",
    "origins",
    "names",
    "pins",
];

/// Maximum number of bytes that are read from a version file or lock file.
const MAX_LINE_LEN: u64 = 64;

/// The lock on the data folder. Dropping this value releases the lock. If the process dies, the
/// kernel releases the lock.
pub(crate) struct DataFolder {
    _lock: File,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Ignore,
    Write,
}

impl DataFolder {
    /// Creates the folder if it is missing, locks it, and checks its version. If the folder has
    /// other contents, returns an error and writes nothing.
    pub(crate) fn open(data: &Path) -> Result<Self, Error> {
        create(data).map_err(|error| Error::io("make the folder", data, error))?;
        check_access(data)?;
        Self::check_version(data, IfMissing::Ignore)?;
        let lock = Self::lock(data)?;
        Self::check_version(data, IfMissing::Write)?;
        for name in FOLDERS {
            check_access(&data.join(name))?;
        }
        Ok(Self { _lock: lock })
    }

    fn lock(data: &Path) -> Result<File, Error> {
        let path = data.join("lock");
        let failed = |error| Error::io("lock", &path, error);
        let mut options = OpenOptions::new();
        (options.read(true).write(true))
            .create(true)
            .truncate(false);
        let file = open_regular_with(&mut options, OFlags::empty(), &path);
        let mut file = file.map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The process ID in the lock file is only used in the error message, so a failed
                // read is ignored.
                let _ = file.take(MAX_LINE_LEN).read_to_string(&mut text);
                return Err(Error::InUse {
                    path: data.to_owned(),
                    pid: text.trim().parse().unwrap_or(0),
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(failed)?;
        Ok(file)
    }

    fn check_version(data: &Path, if_missing: IfMissing) -> Result<(), Error> {
        let path = data.join("version");
        let mut text = String::new();
        let read = match open_regular(&path) {
            Ok(file) => file.take(MAX_LINE_LEN).read_to_string(&mut text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            // The error may be of the kind that stands for a text below.
            Err(error) => return Err(Error::io("open", &path, error)),
        };
        match read {
            Ok(_) if text.trim() == VERSION.to_string() => return Ok(()),
            Ok(_) if !text.trim().is_empty() => return Err(Self::unknown(data, text.trim())),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Self::unknown(data, "(not a text)"));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("read", &path, error));
            }
            // The version file is missing or empty, so this folder is new.
            _ => {}
        }
        let is_ours = ["blobs", "staging"]
            .iter()
            .all(|name| data.join(name).is_dir());
        if !is_ours && let Some(entry) = Self::foreign_entry(data)? {
            return Err(Error::Foreign {
                path: data.to_owned(),
                entry,
            });
        }
        if if_missing == IfMissing::Ignore {
            return Ok(());
        }
        if is_ours {
            tracing::warn!(file = %path.display(), "missing or empty: rewritten");
        }
        pierhead_atomic_file::write(&path, format!("{VERSION}\n").as_bytes())
            .map_err(|error| Error::io("write", &path, error))
    }

    /// Returns the first foreign file in a folder that is not a data folder yet. Files that an
    /// interrupted start of pierhead or the file system itself created are not foreign.
    fn foreign_entry(data: &Path) -> Result<Option<OsString>, Error> {
        let failed = |error| Error::io("look into", data, error);
        for entry in fs::read_dir(data).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if !NAMES_IN_UNUSED_FOLDER.iter().any(|known| name == *known) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn unknown(data: &Path, found: &str) -> Error {
        Error::Version {
            path: data.to_owned(),
            found: found.to_owned(),
            known: VERSION,
        }
    }
}

/// Checks that this process can read, write and enter a folder, if the folder exists. Without this
/// check, the error would come later and name a file inside the folder.
fn check_access(folder: &Path) -> Result<(), Error> {
    let needed = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    // Any other error is reported later, when pierhead uses the folder.
    if let Err(errno @ (Errno::ACCESS | Errno::PERM)) = rustix::fs::access(folder, needed)
        && folder.is_dir()
    {
        return Err(Error::io("read, write and enter", folder, errno.into()));
    }
    match fs::read_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("list", folder, error))
        }
        _ => Ok(()),
    }
}

/// Creates the folder with mode 0700, because the folder may contain private images. An existing
/// folder keeps its mode.
fn create(data: &Path) -> io::Result<()> {
    if data.is_dir() {
        return Ok(());
    }
    if let Some(parent) = data.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(data) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_new_data_folder_is_private_and_an_existing_one_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let rights = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let new = folder.path().join("a/b");
        drop(DataFolder::open(&new).unwrap());
        assert_eq!(rights(&new), 0o700);
        fs::set_permissions(&new, fs::Permissions::from_mode(0o750)).unwrap();
        drop(DataFolder::open(&new).unwrap());
        assert_eq!(rights(&new), 0o750);
    }

    /// Opening a pipe would wait for a writer, so the start would hang without a log line.
    #[test]
    fn a_pipe_in_place_of_a_file_is_an_error_that_names_it() {
        for name in ["version", "lock"] {
            let folder = tempfile::tempdir().unwrap();
            drop(DataFolder::open(folder.path()).unwrap());
            let path = folder.path().join(name);
            fs::remove_file(&path).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
            let error = DataFolder::open(folder.path()).map(drop).unwrap_err();
            let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert!(text.contains("a pipe, not a regular file"), "{text}");
        }
    }
}
