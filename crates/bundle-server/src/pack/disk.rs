//! The changes that packs make to the disk, one by one: the seam where tests cut and fail them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A change that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskChange<'a> {
    /// A file is made, empty.
    Create(&'a Path),
    /// Bytes are written at an offset.
    Write(&'a Path, u64, &'a [u8]),
    /// A file is cut to a length.
    Cut(&'a Path, u64),
    /// A file's content is made durable.
    Sync(&'a Path),
    /// A file gets its final name.
    Rename(&'a Path, &'a Path),
    /// Names in this folder are made durable.
    SyncFolder(&'a Path),
    /// A file is deleted.
    Remove(&'a Path),
}

/// Called before each [`DiskChange`]; an error is taken as the system's answer to it.
pub(super) type Watch = Arc<dyn Fn(DiskChange<'_>) -> io::Result<()> + Send + Sync>;

/// See the head of this module.
#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) watch: Option<Watch>,
    /// Bytes that were written.
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

    /// Deleting what is not there is no error.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(DiskChange::Remove(path))?;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// A small file, whole or as it was before.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let beside = path.with_extension("partial");
        let file = self.create(&beside)?;
        self.write(&beside, &file, 0, bytes)?;
        self.sync(&beside, &file)?;
        self.step(DiskChange::Rename(&beside, path))?;
        fs::rename(&beside, path)?;
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        self.step(DiskChange::SyncFolder(folder))?;
        File::open(folder)?.sync_all()
    }
}
