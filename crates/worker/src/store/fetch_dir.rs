//! The folder of a fetch: the files with which a worker resumes a fetch after its process was
//! killed.
//!
//! ```text
//! lock         flock: exclusive for the process that fetches
//! fetch.json   the request and the ETag
//! header       prelude and body of the bundle, unchanged
//! table        the table of contents of the wanted image
//! log          ordinals of the applied frames, four bytes each, little endian
//! parts/HEX    contents of which only some ranges have arrived
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::Error;
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::MAX_FRAMES;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The folder of a fetch, locked for this process.
#[derive(Debug)]
pub(super) struct FetchDir {
    pub(super) path: PathBuf,
    pub(super) query: BundleQuery,
    pub(super) etag: String,
    pub(super) digest: [u8; 32],
    /// Whether this process made the TOC from the layers: as in `NewFetch::is_toc_verified`.
    pub(super) is_toc_verified: bool,
    log: File,
    _lock: File,
}

impl FetchDir {
    pub(super) fn open(
        path: PathBuf,
        lock: File,
        query: BundleQuery,
        etag: String,
        digest: [u8; 32],
        is_toc_verified: bool,
    ) -> Result<Self, Error> {
        let failed = |error| Error::io(format!("open {}", path.display()), error);
        fs::create_dir_all(path.join("parts")).map_err(failed)?;
        let log = File::options()
            .append(true)
            .create(true)
            .open(path.join("log"))
            .map_err(failed)?;
        Ok(Self {
            log,
            query,
            etag,
            digest,
            is_toc_verified,
            path,
            _lock: lock,
        })
    }

    /// Removes the folder of the fetch: first renames the folder, then deletes it. The rename comes
    /// first, so that a waiting process never finds a folder with only some of the files.
    #[expect(
        clippy::disallowed_methods,
        reason = "renames a folder, which atomic-file cannot"
    )]
    pub(super) fn remove(&self) {
        let renamed = self.path.with_extension("partial");
        let _ = fs::remove_dir_all(&renamed);
        let removed = match fs::rename(&self.path, &renamed) {
            Ok(()) => &renamed,
            Err(_) => &self.path,
        };
        let _ = fs::remove_dir_all(removed);
    }

    pub(super) fn parts(&self) -> PathBuf {
        self.path.join("parts")
    }

    /// Appends the number of an applied frame to the log, with one write.
    pub(super) fn log_frame(&self, frame: u32) -> Result<(), Error> {
        (&self.log)
            .write_all(&frame.to_le_bytes())
            .map_err(|error| Error::io("write the log of a fetch", error))
    }
}

/// Creates the folder of a fetch if needed, and locks it for this process.
pub(super) fn lock(path: &Path) -> Result<File, Error> {
    let failed = |error| Error::io(format!("fetch into {}", path.display()), error);
    let lock = path.join("lock");
    loop {
        fs::create_dir_all(path).map_err(failed)?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = match options.open(&lock) {
            // Another process has just removed the folder, so create it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.map_err(failed)?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Busy(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        }
        let inode = file.metadata().map_err(failed)?.ino();
        if fs::metadata(&lock).is_ok_and(|named| named.ino() == inode) {
            return Ok(file);
        }
    }
}

/// Reads the numbers of the applied frames in the log. Ignores an incomplete number at the end,
/// which a killed process may leave.
pub(super) fn read_log(path: &Path) -> Result<Vec<u32>, Error> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => {
            let limit = u64::try_from(4 * MAX_FRAMES).unwrap_or(u64::MAX);
            opened
                .and_then(|file| file.take(limit).read_to_end(&mut bytes))
                .map_err(|error| Error::io("read the log of a fetch", error))?;
        }
    }
    let (ordinals, _incomplete) = bytes.as_chunks::<4>();
    Ok(ordinals
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect())
}
