//! The disk tier: stores each blob as one file, and commits it with `fsync` and `rename`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use pierhead_atomic_file::{self as atomic_file, open_regular_with};
use pierhead_oci::{Algorithm, Digest};
use rustix::fs::{OFlags, statfs};
use rustix::io::{Errno, ReadWriteFlags};

use crate::page_cache::is_in_memory;

use super::{Blob, CHUNK, Extent, FastMedium, ReadAt, Staged, Tier, TierEntry, Trailer};

/// Maximum number of pieces in one write. Linux accepts up to 1024 pieces (`IOV_MAX`).
const MAX_SLICES: usize = 512;

/// A change on the disk that is about to happen. [`DiskTier::watched`] reports each change before
/// it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step<'a> {
    /// Bytes are appended to this file.
    Write(&'a Path),
    /// The content of this file is made durable.
    Sync(&'a Path),
    /// The first path is renamed to the second path.
    Rename(&'a Path, &'a Path),
    /// The names of files in this folder are made durable.
    SyncFolder(&'a Path),
    /// This file will be deleted.
    Remove(&'a Path),
}

impl<'a> From<atomic_file::Step<'a>> for Step<'a> {
    fn from(step: atomic_file::Step<'a>) -> Self {
        match step {
            atomic_file::Step::Create(path) => Self::Write(path),
            atomic_file::Step::Sync(path) => Self::Sync(path),
            atomic_file::Step::Rename(from, to) => Self::Rename(from, to),
            atomic_file::Step::SyncFolder(path) => Self::SyncFolder(path),
        }
    }
}

/// A hook for tests that is called before each [`Step`]. If the hook returns an error, the step
/// fails with this error.
type Watch = Arc<dyn Fn(Step<'_>) -> io::Result<()> + Send + Sync>;

/// The disk tier, with the folders `blobs/` and `staging/` below one root folder.
#[derive(Clone)]
pub struct DiskTier {
    root: PathBuf,
    /// Flags for a read that must not wait for the disk. The function `at_once` chooses the flags.
    at_once: ReadWriteFlags,
    watch: Option<Watch>,
}

impl DiskTier {
    /// Opens the disk tier in the folder `root`. Creates missing folders.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(root: &Path) -> io::Result<Self> {
        for folder in ["blobs", "staging"] {
            fs::create_dir_all(root.join(folder))?;
        }
        Ok(Self {
            root: root.to_owned(),
            at_once: at_once(root)?,
            watch: None,
        })
    }

    /// Opens the same tier, which then calls `watch` before every change on the disk. Tests use
    /// `watch` to inject faults and crashes.
    #[must_use]
    pub fn watched(
        mut self,
        watch: impl Fn(Step<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.watch = Some(Arc::new(watch));
        self
    }

    fn step(&self, step: Step<'_>) -> io::Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch(step))
    }

    fn staged_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("staging").join(digest.file_name())
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.root
            .join("blobs")
            .join(digest.algorithm().as_str())
            .join(&hex[..2])
            .join(hex)
    }

    /// Creates the folder of a blob, and makes the name of the folder durable.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().ok_or(io::ErrorKind::InvalidInput)?;
        if parent != self.root {
            self.make_folder(parent)?;
        }
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.sync_folder(parent)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.step(Step::SyncFolder(folder))?;
        atomic_file::sync_folder(folder)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step(Step::Remove(path))?;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // A folder with the name of a blob was not made by pierhead. A folder with the name of
            // a blob is removed only if it is empty.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => match fs::remove_dir(path)
            {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => set_aside(path),
                removed => removed,
            },
            other => other,
        }
    }
}

/// Renames a folder that has the name of a blob and contains files. pierhead made neither, so it
/// deletes neither.
#[expect(
    clippy::disallowed_methods,
    reason = "if a power cut undoes the rename, the next start renames the folder again"
)]
fn set_aside(folder: &Path) -> io::Result<()> {
    let mut to = folder.as_os_str().to_owned();
    to.push(".damaged");
    fs::rename(folder, &to).map_err(|error| {
        let text = format!("cannot rename the folder {}: {error}", folder.display());
        io::Error::new(error.kind(), format!("{text}; remove this folder"))
    })?;
    let to = to.display();
    tracing::error!(folder = %folder.display(), %to, "a folder has the name of a blob: renamed; remove it if you do not need its files");
    Ok(())
}

impl Tier for DiskTier {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        let path = self.staged_path(digest);
        let mut options = OpenOptions::new();
        (options.read(true).write(true))
            .create(true)
            .truncate(false);
        let file = open_regular_with(&mut options, OFlags::empty(), &path)?;
        let found = file.metadata()?.len();
        // A crash during the commit leaves a staging file with content and trailer. A new fill of
        // this blob reuses only the content.
        let content =
            match Trailer::decode(digest, found, |offset, buf| file.read_exact_at(buf, offset)) {
                Ok(trailer) => trailer.size(),
                Err(_) => found,
            };
        let kept = content.saturating_sub(1) / CHUNK as u64 * CHUNK as u64;
        if kept != found {
            file.set_len(kept)?;
        }
        let file = Arc::new(PlainFile(file, self.at_once));
        Ok(Box::new(StagedFile {
            tier: self.clone(),
            digest: *digest,
            path,
            file,
            len: kept,
        }))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.remove_file(&self.staged_path(digest))
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let file = match pierhead_atomic_file::open_regular(&self.blob_path(digest)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = file.metadata()?.len();
        let file = PlainFile(file, self.at_once);
        let trailer = Trailer::decode(digest, len, |offset, buf| file.read_at(offset, buf))?;
        Ok(Some(Arc::new(BlobFile {
            file: Arc::new(file),
            trailer,
        })))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.remove_file(&self.blob_path(digest))
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let folder = self.root.join("blobs").join(algorithm.as_str());
            for shard in entries(&folder)? {
                let shard = shard?;
                // A file in the place of a folder of blobs is skipped.
                if !shard.file_type()?.is_dir() {
                    continue;
                }
                let folder = shard.path();
                let files = match files(&folder) {
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        tracing::error!(
                            folder = %folder.display(),
                            %error,
                        "cannot read the blobs of this folder, retrying later; make it readable and writable for \
                             pierhead"
                        );
                        continue;
                    }
                    files => files?,
                };
                for (name, path) in files {
                    if let Ok(digest) = Digest::from_hex(algorithm, &name) {
                        visit(found(digest, &path));
                    }
                }
            }
        }
        Ok(())
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        for (name, path) in files(&self.root.join("staging"))? {
            if let Ok(digest) = Digest::from_file_name(&name) {
                visit(found(digest, &path));
            }
        }
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn staged_file(&self, digest: &Digest) -> Option<PathBuf> {
        Some(self.staged_path(digest))
    }

    fn blob_file(&self, digest: &Digest) -> Option<PathBuf> {
        Some(self.blob_path(digest))
    }
}

impl FastMedium for DiskTier {
    /// The hot chunks are in the folder `hot/`, which has the same folders as the root folder.
    fn hot_copies(&self) -> io::Result<Arc<dyn Tier>> {
        let hot = Self::new(&self.root.join("hot"))?;
        let watch = self.watch.clone();
        Ok(Arc::new(Self { watch, ..hot }))
    }
}

/// Returns the flags for a read that must not wait for the disk. tmpfs does not support
/// `RWF_NOWAIT`, but its reads never wait, so no flag is needed there. With the flag, each read on
/// tmpfs would move to a blocking thread, at three times the cost (`cargo run --release -p
/// pierhead-cache --example throughput /dev/shm`, figures for warm reads).
fn at_once(root: &Path) -> io::Result<ReadWriteFlags> {
    Ok(if is_in_memory(&statfs(root)?) {
        ReadWriteFlags::empty()
    } else {
        ReadWriteFlags::NOWAIT
    })
}

/// Returns the entries of a folder, or no entries when the folder is missing.
fn entries(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

fn files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for entry in entries(folder)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string() {
            all.push((name, entry.path()));
        }
    }
    Ok(all)
}

/// Creates the scan entry of a file from the file's metadata, without opening the file. If the
/// metadata is unreadable, the values in the entry are zero; a later open of the file returns the
/// error.
fn found(digest: Digest, path: &Path) -> TierEntry {
    let about = fs::metadata(path).or_else(|_| fs::symlink_metadata(path));
    let modified = about.as_ref().ok().and_then(|it| it.modified().ok());
    let modified = modified.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    TierEntry {
        digest,
        bytes: about.map_or(0, |it| it.len()),
        modified: modified.map_or(0, |since| since.as_secs()),
    }
}

/// A file of a blob, and the flags for reads that must not wait for the disk.
struct PlainFile(File, ReadWriteFlags);

impl ReadAt for PlainFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = rustix::io::preadv2(&self.0, &mut [IoSliceMut::new(buf)], offset, self.1);
        match read {
            // The bytes are not in the page cache, or the file system cannot tell: the caller must
            // read on a blocking thread.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR | Errno::NOSYS | Errno::INVAL) => {
                Ok(0)
            }
            other => Ok(other?),
        }
    }
}

struct StagedFile {
    tier: DiskTier,
    digest: Digest,
    path: PathBuf,
    file: Arc<PlainFile>,
    len: u64,
}

impl Staged for StagedFile {
    fn size(&self) -> u64 {
        self.len
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        self.tier.step(Step::Write(&self.path))?;
        for pieces in pieces.chunks(MAX_SLICES) {
            let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut rest = &mut slices[..];
            while rest.iter().any(|slice| !slice.is_empty()) {
                match rustix::io::pwritev(&self.file.0, rest, self.len) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        self.len += written as u64;
                        IoSlice::advance_slices(&mut rest, written);
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        // The file is opened once more, because Linux reports a failed write of dirty pages once
        // per open file description. Without a second description, the early sync could consume the
        // error that the commit needs.
        let file = File::open(&self.path).ok()?;
        Some(Box::new(move || {
            let _ = file.sync_data();
        }))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.tier.step(Step::Write(&self.path))?;
        self.file.0.set_len(0)?;
        self.len = 0;
        Ok(())
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.file.clone()
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        if trailer.size() != self.len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "trailer of another content",
            ));
        }
        self.tier.step(Step::Write(&self.path))?;
        self.file
            .0
            .write_all_at(&trailer.encode(&self.digest), self.len)?;
        let target = self.tier.blob_path(&self.digest);
        let folder = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
        self.tier.make_folder(folder)?;
        let on_step = |step: atomic_file::Step<'_>| self.tier.step(step.into());
        atomic_file::Options::new()
            .on_step(&on_step)
            .publish(&self.file.0, &self.path, &target)?;
        Ok(Arc::new(BlobFile {
            file: self.file,
            trailer,
        }))
    }
}

struct BlobFile {
    file: Arc<PlainFile>,
    trailer: Trailer,
}

impl ReadAt for BlobFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.try_read_at(offset, buf)
    }
}

impl Blob for BlobFile {
    fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        let len = self.trailer.size().checked_sub(offset)?;
        Some(Extent {
            file: &self.file.0,
            at: offset,
            len,
            record: None,
        })
    }
}
