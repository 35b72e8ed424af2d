//! The file system operations of packs (files of compressed file contents). Crash tests observe
//! each operation and can make it fail.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pierhead_atomic_file::{Options, Step};

/// A file system operation that is about to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskChange<'a> {
    /// Creates an empty file in the folder of packs.
    Create(&'a Path),
    /// Writes bytes to a file at an offset.
    Write(&'a Path, u64, &'a [u8]),
    /// Cuts a file to a length.
    Cut(&'a Path, u64),
    /// Makes the contents of a file durable.
    Sync(&'a Path),
    /// Renames a file to its final name.
    Rename(&'a Path, &'a Path),
    /// Makes the names in a folder durable.
    SyncFolder(&'a Path),
    /// Deletes a file of a pack.
    Remove(&'a Path),
}

impl<'a> From<Step<'a>> for DiskChange<'a> {
    fn from(step: Step<'a>) -> Self {
        match step {
            Step::Create(path) => Self::Create(path),
            Step::Sync(path) => Self::Sync(path),
            Step::Rename(from, to) => Self::Rename(from, to),
            Step::SyncFolder(folder) => Self::SyncFolder(folder),
        }
    }
}

/// A test's function that is called before each [`DiskChange`]. When the function returns an error,
/// the operation does not run and fails with this error.
pub(super) type Watch = Arc<dyn Fn(DiskChange<'_>) -> io::Result<()> + Send + Sync>;

/// Runs the file system operations of packs, and counts the written bytes.
#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) watch: Option<Watch>,
    /// Number of bytes written since the start.
    written: Arc<AtomicU64>,
}

impl Disk {
    pub(super) fn new(watch: Option<Watch>) -> Self {
        Self {
            watch,
            written: Arc::default(),
        }
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn step(&self, step: DiskChange<'_>) -> io::Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch(step))
    }

    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        self.step(DiskChange::Create(path))?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
    }

    pub(super) fn write(&self, path: &Path, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(DiskChange::Write(path, at, bytes))?;
        file.write_all_at(bytes, at)?;
        self.written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn cut(&self, path: &Path, file: &File, len: u64) -> io::Result<()> {
        self.step(DiskChange::Cut(path, len))?;
        file.set_len(len)
    }

    pub(super) fn sync(&self, path: &Path, file: &File) -> io::Result<()> {
        self.step(DiskChange::Sync(path))?;
        file.sync_data()
    }

    /// Deletes a file. If the file does not exist, this is no error.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(DiskChange::Remove(path))?;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Replaces a small file atomically.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let on_step = |step: Step<'_>| self.step(step.into());
        let file = Options::new().on_step(&on_step).create(path)?;
        self.write(file.path(), file.file(), 0, bytes)?;
        file.commit().map(drop)
    }
}
