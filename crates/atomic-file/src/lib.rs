//! Atomic file writes: at any moment, a reader of the file finds all of its old contents or all of
//! its new contents. Readers open a file with [`open_regular`], which never blocks.
//!
//! A write has four steps: it fills a temporary file beside the target, syncs the temporary file,
//! renames the temporary file to the target, and syncs the folder. Invariants:
//!
//! 1. At every moment, the target holds its old contents or all of its new contents. The same
//!    is true after a crash of the process and, unless [`Options::without_sync`] is set, after a
//!    power cut.
//! 2. After `Ok`, the new contents survive a power cut (except with [`Options::without_sync`]).
//! 3. After an error, no temporary file remains. When the last step fails, the target may already
//!    hold the new contents, but the new contents may not survive a power cut.
//! 4. Two writers of one target never write to the same temporary file. The last rename wins.
//!
//! The temporary file is named `TARGET.partial`, or `TARGET.N.partial` while other writers hold a
//! lock on the earlier names. A killed process leaves its temporary file. The next write that takes
//! the same name deletes it, and so does [`delete_abandoned`]; the owner of a folder may delete all
//! files whose names end in [`SUFFIX`] before it starts writers.

#![forbid(unsafe_code)]

mod regular_file;
mod temporary;

use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, RenameFlags, Uid};
use rustix::io::Errno;

pub use regular_file::{open_regular, open_regular_with};

/// The end of the name of every temporary file.
pub const SUFFIX: &str = ".partial";

/// A change to the disk that a write is about to make. Tests that cut the power or fail a disk
/// listen to it through [`Options::on_step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Create this temporary file, which the caller then fills.
    Create(&'a Path),
    /// Sync the contents of this temporary file.
    Sync(&'a Path),
    /// Give the first path the name of the second.
    Rename(&'a Path, &'a Path),
    /// Sync the names in this folder.
    SyncFolder(&'a Path),
}

/// How to write a file. The default is durable, replaces the target, and takes the mode from the
/// umask.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    mode: Option<u32>,
    without_sync: bool,
    keep_owner: bool,
    no_replace: bool,
    exclusive: bool,
    on_step: Option<&'a StepHook<'a>>,
}

/// Called before each step of a write; an error ends the write there.
type StepHook<'a> = dyn Fn(Step<'_>) -> io::Result<()> + 'a;

impl<'a> Options<'a> {
    /// A durable write that replaces the target.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the file exactly these permission bits. The file never has more, not even while it is
    /// written.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Syncs neither the file nor its folder. After a power cut, the target may hold anything. Use
    /// this only for files that their reader verifies and can do without.
    #[must_use]
    pub fn without_sync(mut self) -> Self {
        self.without_sync = true;
        self
    }

    /// Takes owner, group and permission bits from the replaced file, if there is one. Then
    /// [`Options::mode`] has no effect.
    #[must_use]
    pub fn keep_owner(mut self) -> Self {
        self.keep_owner = true;
        self
    }

    /// Fails with [`io::ErrorKind::AlreadyExists`] if the target exists.
    #[must_use]
    pub fn no_replace(mut self) -> Self {
        self.no_replace = true;
        self
    }

    /// Fails with [`io::ErrorKind::ResourceBusy`] while another writer writes the target. Without
    /// this option, each writer has a temporary file of its own.
    #[must_use]
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Calls `on_step` before each step. When it returns an error, the write ends with this error.
    #[must_use]
    pub fn on_step<'b>(self, on_step: &'b StepHook<'b>) -> Options<'b>
    where
        'a: 'b,
    {
        Options {
            on_step: Some(on_step),
            ..self
        }
    }

    /// Writes `bytes` to `target`. Blocks.
    ///
    /// # Errors
    /// Any error of the system, or of [`Options::on_step`]; invariant 3 of the crate holds.
    pub fn write(self, target: &Path, bytes: &[u8]) -> io::Result<()> {
        self.write_with(target, |file| file.write_all(bytes))
    }

    /// Calls `fill` with the temporary file; `fill` writes the new contents of `target` to it.
    /// Blocks.
    ///
    /// # Errors
    /// The errors of [`Options::write`], and any error of `fill`. After an error of `fill`, the
    /// target is unchanged.
    pub fn write_with<E: From<io::Error>>(
        self,
        target: &Path,
        fill: impl FnOnce(&mut File) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut file = self.create(target)?;
        fill(&mut file.file)?;
        file.commit()?;
        Ok(())
    }

    /// Creates an empty temporary file for `target`, for callers that write it over time. Dropping
    /// the result deletes the file. Blocks.
    ///
    /// # Errors
    /// Any error of the system; [`io::ErrorKind::ResourceBusy`] while 64 other writers write
    /// `target`, or one other writer with [`Options::exclusive`].
    pub fn create(self, target: &Path) -> io::Result<AtomicFile<'a>> {
        let initial_mode = match (self.mode, self.keep_owner) {
            // Only this user may read the temporary file until it has the owner of the replaced
            // file.
            (_, true) => 0o600,
            (mode, false) => mode.unwrap_or(0o666),
        };
        let (file, path) = temporary::create(target, initial_mode, self.exclusive, |path| {
            self.step(Step::Create(path))
        })?;
        let file = AtomicFile {
            file,
            path: Some(path),
            target: target.to_owned(),
            options: self,
        };
        file.apply_metadata()?;
        Ok(file)
    }

    /// Commits a file that the caller has written at `from` and keeps open: syncs the file, renames
    /// it to `target`, and syncs the target's folder. `from` and `target` must be on one file
    /// system. Blocks.
    ///
    /// Any error of the system. If the error occurs before the rename, `from` still exists, and the
    /// caller deletes it.
    pub fn publish(self, file: &File, from: &Path, target: &Path) -> io::Result<()> {
        self.publish_name(file, from, target)?;
        self.sync_folder_of(target)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this crate makes the rename atomic and durable"
    )]
    fn publish_name(self, file: &File, from: &Path, target: &Path) -> io::Result<()> {
        if !self.without_sync {
            self.step(Step::Sync(from))?;
            // `sync_data` may omit a changed mode or owner, because these are metadata.
            match self.mode.is_some() || self.keep_owner {
                true => file.sync_all()?,
                false => file.sync_data()?,
            }
        }
        self.step(Step::Rename(from, target))?;
        match self.no_replace {
            true => rename_no_replace(from, target),
            false => fs::rename(from, target),
        }
    }

    fn sync_folder_of(self, target: &Path) -> io::Result<()> {
        if self.without_sync {
            return Ok(());
        }
        let folder = folder_of(target);
        self.step(Step::SyncFolder(folder))?;
        sync_folder(folder)
    }

    fn step(self, step: Step<'_>) -> io::Result<()> {
        self.on_step.map_or(Ok(()), |on_step| on_step(step))
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("mode", &self.mode)
            .field("without_sync", &self.without_sync)
            .field("keep_owner", &self.keep_owner)
            .field("no_replace", &self.no_replace)
            .field("exclusive", &self.exclusive)
            .finish_non_exhaustive()
    }
}

/// Writes `bytes` to `target` with the default options: durable, and replaces an existing file.
/// Blocks.
///
/// # Errors
/// The errors of [`Options::write`].
pub fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
    Options::new().write(target, bytes)
}

/// Makes the names in `folder` durable. Blocks.
///
/// # Errors
/// Any error of the system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Deletes the temporary files of `target` that killed writers left. Never deletes the file of a
/// live writer. Blocks.
///
/// # Errors
/// Any error of the system. A missing file is no error.
pub fn delete_abandoned(target: &Path) -> io::Result<()> {
    temporary::delete_all_abandoned(target)
}

/// A temporary file. [`AtomicFile::commit`] renames it to its target; dropping this value without a
/// commit deletes the file.
#[derive(Debug)]
pub struct AtomicFile<'a> {
    file: File,
    /// Path of the temporary file; `None` once the file is renamed to the target.
    path: Option<PathBuf>,
    target: PathBuf,
    options: Options<'a>,
}

impl AtomicFile<'_> {
    /// The temporary file, open for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Path of the temporary file.
    pub fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(&self.target)
    }

    /// Renames the file to its target, durably. Returns the file, still open and locked. Blocks.
    ///
    /// # Errors
    /// Any error of the system, or of [`Options::on_step`]; invariant 3 of the crate holds.
    pub fn commit(self) -> io::Result<File> {
        let (options, target) = (self.options, self.target.clone());
        let file = self.commit_name()?;
        options.sync_folder_of(&target)?;
        Ok(file)
    }

    /// As [`Self::commit`], without the sync of the folder: for callers that commit several files
    /// of one folder. The files are durable only after the caller has called [`sync_folder`] once.
    ///
    /// # Errors
    /// Any error of the system, or of [`Options::on_step`]; the target is unchanged.
    pub fn commit_name(mut self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        if let Some(path) = &self.path {
            self.options.publish_name(&self.file, path, &self.target)?;
        }
        self.path = None;
        Ok(file)
    }

    fn apply_metadata(&self) -> io::Result<()> {
        let mut mode = self.options.mode;
        if self.options.keep_owner {
            match fs::metadata(&self.target) {
                Ok(old) => {
                    let new = self.file.metadata()?;
                    if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                        let owner = Some(Uid::from_raw(old.uid()));
                        rustix::fs::fchown(&self.file, owner, Some(Gid::from_raw(old.gid())))?;
                    }
                    mode = Some(old.permissions().mode() & 0o7777);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    mode = Some(mode.unwrap_or(0o644));
                }
                Err(error) => return Err(error),
            }
        }
        match mode {
            // Sets the mode, because the umask may have removed bits when the file was created.
            Some(mode) => self.file.set_permissions(Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

impl Drop for AtomicFile<'_> {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

impl Write for AtomicFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for AtomicFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this crate makes the rename atomic and durable"
)]
fn rename_no_replace(from: &Path, target: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, target, RenameFlags::NOREPLACE) {
        // The file system does not support RENAME_NOREPLACE: between this check and the rename,
        // another process can create the target.
        Err(Errno::INVAL) if !target.exists() => fs::rename(from, target),
        Err(Errno::INVAL) => Err(Errno::EXIST.into()),
        renamed => Ok(renamed?),
    }
}

/// The folder of `path`; `path` may be a file name without a folder.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests;
