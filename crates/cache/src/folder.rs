//! The data folder: whose it is, and which layout it has.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::{Error, record};

/// The layout that this build reads and writes.
const VERSION: u32 = 1;

/// Bytes of a version file that are looked at.
const LONGEST: u64 = 64;

/// The lock on the data folder; given back when dropped, and by the kernel when the process dies.
pub(crate) struct Folder {
    _lock: File,
}

impl Folder {
    /// Makes the folder when it is missing, locks it, checks its version.
    pub(crate) fn open(data: &Path) -> Result<Self, Error> {
        fs::create_dir_all(data).map_err(|error| Error::io("make the folder", data, error))?;
        let lock = Self::lock(data)?;
        Self::check_version(data)?;
        Ok(Self { _lock: lock })
    }

    fn lock(data: &Path) -> Result<File, Error> {
        let path = data.join("lock");
        let failed = |error| Error::io("lock", &path, error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Who holds it is told for people only.
                let _ = file.take(LONGEST).read_to_string(&mut text);
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

    fn check_version(data: &Path) -> Result<(), Error> {
        let path = data.join("version");
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text)) {
            Ok(_) if text.trim() == VERSION.to_string() => Ok(()),
            Ok(_) => Err(Self::unknown(data, text.trim())),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Self::unknown(data, "(not a text)"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A folder with blobs but no version is not one that we made.
                if data.join("blobs").exists() {
                    return Err(Self::unknown(data, "(none)"));
                }
                record::write_file(&path, format!("{VERSION}\n").as_bytes())
                    .map_err(|error| Error::io("write", &path, error))
            }
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }

    fn unknown(data: &Path, found: &str) -> Error {
        Error::Version {
            path: data.to_owned(),
            found: found.to_owned(),
            known: VERSION,
        }
    }
}
