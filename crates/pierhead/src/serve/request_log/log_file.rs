//! The file of the request log. pierhead locks the file, only appends to it, and rotates it at its
//! maximum size.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pierhead_atomic_file::open_regular_with;
use pierhead_eviction::request_log;
use rustix::fs::OFlags;

const FIX: &str = "move it away, or set request_log.file to another file";

pub(super) struct LogFile {
    path: PathBuf,
    /// Path of the rotated file: `PATH.1`.
    rotated: PathBuf,
    /// Maximum size in bytes of one of the two files.
    max_bytes: u64,
    locked: Option<LockedFile>,
}

/// An open file of the request log. The process holds a lock on this file until it closes the file.
struct LockedFile {
    file: File,
    /// Length in bytes of the file after the last write of this process.
    len: u64,
}

impl LogFile {
    /// Creates a request log in the files `path` and `path.1`, of at most `max_bytes` each, without
    /// opening a file.
    pub(super) fn new(path: &Path, max_bytes: u64) -> Self {
        let mut rotated = path.as_os_str().to_owned();
        rotated.push(".1");
        Self {
            path: path.to_owned(),
            rotated: rotated.into(),
            max_bytes,
            locked: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens and locks the file of the request log.
    ///
    /// # Errors
    /// The error has the cause and its fix.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if fs::symlink_metadata(&self.rotated).is_ok_and(|it| it.is_dir()) {
            let rotated = self.rotated.display();
            return Err(io::Error::other(format!("{rotated} is a folder: {FIX}")));
        }
        self.locked = Some(LockedFile::open(&self.path)?);
        Ok(())
    }

    /// Appends whole lines. If the write fails, a reader sees none of these lines.
    #[expect(
        clippy::disallowed_methods,
        reason = "rotates a log, which a power cut may lose"
    )]
    pub(super) fn append(&mut self, text: &str) -> io::Result<()> {
        let len = text.len() as u64;
        // Drops the file if it is unusable, and thereby its lock, before the path is opened again.
        let usable = match self.locked.take() {
            Some(locked) if locked.is_at(&self.path)? => Some(locked),
            _ => None,
        };
        let mut locked = match usable {
            Some(locked) => locked,
            // The file is opened again: another process renamed or truncated it, or the last write
            // was incomplete.
            None => LockedFile::open(&self.path)?,
        };
        if locked.len.saturating_add(len) > self.max_bytes {
            match fs::rename(&self.path, &self.rotated) {
                // Another process has just renamed the log file, so no file has this path.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                renamed => renamed?,
            }
            locked = LockedFile::open(&self.path)?;
        }
        locked.file.write_all(text.as_bytes())?;
        locked.len += len;
        self.locked = Some(locked);
        Ok(())
    }
}

impl LockedFile {
    /// Opens the file to append after its last whole line.
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = open_regular_with(&mut options, OFlags::empty(), path).map_err(|error| {
            let is_wrong_kind =
                error.raw_os_error().is_none() || error.kind() == ErrorKind::IsADirectory;
            if is_wrong_kind {
                io::Error::other(format!("{error}: {FIX}"))
            } else {
                error
            }
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another process writes to it: set request_log.file to another file",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let found = file.metadata()?.len();
        let mut head = Vec::new();
        Read::by_ref(&mut file)
            .take(request_log::HEADER.len() as u64)
            .read_to_end(&mut head)?;
        let len = if head == request_log::HEADER.as_bytes() {
            whole_lines(&mut file, found)?
        } else if request_log::HEADER.as_bytes().starts_with(&head) {
            // The file is new, or a crash truncated its header.
            0
        } else {
            return Err(io::Error::other(format!(
                "it is not a request log of this version: {FIX}"
            )));
        };
        if len < found {
            let cut = found - len;
            tracing::info!(file = %path.display(), cut, "truncated an incomplete last line of the request log");
            file.set_len(len)?;
        }
        let mut locked = Self { file, len };
        if len == 0 {
            locked.file.write_all(request_log::HEADER.as_bytes())?;
            locked.len = request_log::HEADER.len() as u64;
        }
        // Another process that held the lock before may have rotated the file in the meantime.
        if locked.is_at(path)? {
            Ok(locked)
        } else {
            Err(io::Error::other(
                "another process renamed it at the same time",
            ))
        }
    }

    /// Whether `path` still names this open file, with the length after the last write.
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        let own = self.file.metadata()?;
        let same = (found.dev(), found.ino()) == (own.dev(), own.ino());
        Ok(same && found.len() == self.len)
    }
}

/// Returns the number of bytes up to the end of the last whole line, in a file of `len` bytes.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    const STEP_BYTES: u64 = 4096;
    let (mut end, mut part) = (len, Vec::new());
    while end > 0 {
        let from = end.saturating_sub(STEP_BYTES);
        file.seek(SeekFrom::Start(from))?;
        part.clear();
        Read::by_ref(file).take(end - from).read_to_end(&mut part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(from + at as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}
