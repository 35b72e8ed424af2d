//! The file of a trace: appended to, locked, and given up for a new one at its bound.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pierhead_eviction::request_log;
use pierhead_remote::open_file_with;
use rustix::fs::OFlags;

const FIX: &str = "move it away or name another request_log.file";

pub(super) struct Output {
    path: PathBuf,
    /// Where the lines before those of `path` are.
    older: PathBuf,
    /// Bytes of one file.
    max: u64,
    open: Option<Open>,
}

/// A file that is ours while it is open.
struct Open {
    file: File,
    /// Its length as far as we know.
    len: u64,
}

impl Output {
    /// A trace in `path` and `path.1`, of `max` bytes each.
    pub(super) fn new(path: &Path, max: u64) -> Self {
        let mut older = path.as_os_str().to_owned();
        older.push(".1");
        Self {
            path: path.to_owned(),
            older: older.into(),
            max,
            open: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Sees that there can be a trace.
    ///
    /// # Errors
    /// Why there cannot, and what mends it.
    pub(super) fn start(&mut self) -> io::Result<()> {
        if fs::symlink_metadata(&self.older).is_ok_and(|it| it.is_dir()) {
            let older = self.older.display();
            return Err(io::Error::other(format!("{older} is a folder: {FIX}")));
        }
        self.open = Some(Open::new(&self.path)?);
        Ok(())
    }

    /// Writes whole lines, all of them or none that a reader will see.
    pub(super) fn append(&mut self, text: &str) -> io::Result<()> {
        let len = text.len() as u64;
        // Its lock must be gone before the file is opened anew.
        let kept = match self.open.take() {
            Some(open) if open.is_at(&self.path)? => Some(open),
            _ => None,
        };
        let mut open = match kept {
            Some(open) => open,
            // Moved away, emptied, or a line of it failed half way.
            None => Open::new(&self.path)?,
        };
        if open.len.saturating_add(len) > self.max {
            match fs::rename(&self.path, &self.older) {
                // Somebody moved it away just now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                renamed => renamed?,
            }
            open = Open::new(&self.path)?;
        }
        open.file.write_all(text.as_bytes())?;
        open.len += len;
        self.open = Some(open);
        Ok(())
    }
}

impl Open {
    /// Opens the file for more, behind its last whole line.
    fn new(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = open_file_with(&mut options, OFlags::empty(), path).map_err(|error| {
            let foreign = error.raw_os_error().is_none() || error.kind() == ErrorKind::IsADirectory;
            if foreign {
                io::Error::other(format!("{error}: {FIX}"))
            } else {
                error
            }
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another process records in it: name another request_log.file",
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
            // New, or its header was cut by a crash.
            0
        } else {
            return Err(io::Error::other(format!(
                "it holds something that is no trace of this version: {FIX}"
            )));
        };
        if len < found {
            let cut = found - len;
            tracing::info!(file = %path.display(), cut, "the last line of the trace was not whole");
            file.set_len(len)?;
        }
        let mut open = Self { file, len };
        if len == 0 {
            open.file.write_all(request_log::HEADER.as_bytes())?;
            open.len = request_log::HEADER.len() as u64;
        }
        // Whoever had the lock before us may have moved it to its second name in between.
        if open.is_at(path)? {
            Ok(open)
        } else {
            Err(io::Error::other("it was moved away while it was opened"))
        }
    }

    /// Whether this is what lies at `path`, as we left it.
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        let there = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            there => there?,
        };
        let ours = self.file.metadata()?;
        let same = (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        Ok(same && there.len() == self.len)
    }
}

/// Bytes of a file of `len` up to the end of its last whole line.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    const STEP: u64 = 4096;
    let (mut end, mut part) = (len, Vec::new());
    while end > 0 {
        let from = end.saturating_sub(STEP);
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
