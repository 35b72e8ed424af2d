//! Writes the tree of an image into a folder.
//!
//! One thread walks the TOC and creates the names. Other threads write the contents of the files.
//! Every system call starts from the descriptor of a folder that was opened without following
//! links. So neither a hostile TOC nor a file in the target makes the export write outside of the
//! target.

mod attributes;
mod counts;
mod data;
mod folder;
mod link;
#[cfg(test)]
mod tests;
mod too_large;
mod walk;

use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use crate::Error;
use attributes::Inode;
pub use counts::Summary;
use counts::{Counters, add};
use data::Writer;
use folder::Folders;
use link::ChangeTime;
use pierhead_toc::ImageToc;
use pierhead_toc::image_toc::Attributes;
use pierhead_toc::{FileDigest, Source, Time};
use walk::{Walk, WalkError};

/// Number of files in one batch for a writer. Passing each file alone to a writer would take longer
/// than writing a small file.
const BATCH: usize = 32;
/// Number of bytes at which a batch is complete, even with fewer files.
const BATCH_BYTES: u64 = 1 << 20;

/// Maximum number of batches that wait for a writer. Each file in a waiting batch takes an open
/// descriptor.
const MAX_WAITING: usize = 4;

/// A store that keeps each file content in a separate file.
pub trait StoreFiles: Sync {
    /// Opens the store's file of a content. Returns `None` if the store does not have the content.
    ///
    /// # Errors
    /// Returns errors of the medium.
    fn file(&self, content: &FileDigest) -> io::Result<Option<File>>;

    /// Whether the store still uses this file for the content, so that [`Self::file`] would return
    /// it.
    ///
    /// # Errors
    /// Returns errors of the medium.
    fn is_current(&self, content: &FileDigest, file: &File) -> io::Result<bool>;

    /// Records that an exported tree now shares this file, which has the attributes of the entry in
    /// the tree and the mtime `modified`.
    ///
    /// # Errors
    /// Returns errors of the medium.
    fn record_link(&self, content: &FileDigest, file: &File, modified: Time) -> io::Result<()>;
}

/// How an export uses a file of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReuseMode {
    /// Shares disk blocks with the store where the file system has reflinks (btrfs, XFS). On other
    /// file systems, copies the file.
    #[default]
    Clone,
    /// Hard-links the inode of the store, which is for read-only trees only: a write to a linked
    /// file changes the store and other trees.
    ///
    /// 1. Of several entries with the same content, only the first is linked, so that the tree has
    ///    only the hard links of the image.
    /// 2. An inode that no other tree shares gets the attributes of the entry. An inode that other
    ///    trees share is linked only if it already has these attributes.
    /// 3. Entries that belong to other users, and entries that other users may write to, are cloned
    ///    as with [`ReuseMode::Clone`].
    HardLink,
}

/// The options of an export into a folder.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether the folder may contain files. The export replaces entries of the same name, and
    /// keeps all other entries.
    pub over: bool,
    /// How the exported tree shares files of the store.
    pub reuse: ReuseMode,
    /// Number of threads that write contents. One more thread walks the TOC.
    pub threads: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            over: false,
            reuse: ReuseMode::default(),
            threads: NonZeroUsize::MIN,
        }
    }
}

/// A file that the walk has created, and that a writer has to give its content and attributes.
struct FileJob<'t> {
    file: File,
    /// The ctime of the file, if it is a linked inode of the store and so already has its content.
    store_inode: Option<ChangeTime>,
    path: Vec<u8>,
    content: FileDigest,
    size: u64,
    attributes: Attributes<'t>,
    modified: Time,
}

/// The file contents for an export: a source, and the files of the store if there are any.
#[derive(Clone, Copy)]
pub struct ContentSource<'a> {
    /// The source from which all file contents can be read.
    pub source: &'a (dyn Source + Sync),
    /// The store, if its files can be shared with the exported tree.
    pub files: Option<&'a dyn StoreFiles>,
}

/// Writes the tree of `toc` into the folder `into`, which is created if it does not exist. Does not
/// sync the written files. `progress` gets the bytes of content that were written since its last
/// call; any thread may call it.
///
/// # Errors
/// `Io`, also for a folder with files if `over` is not set. `Missing` if the source lacks a
/// content. `Malformed` if the TOC or a content is malformed. After an error, the export deletes
/// the files that it has written, except with `over`.
pub fn rootfs(
    toc: &ImageToc,
    contents: ContentSource<'_>,
    into: &Path,
    options: &Options,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary, Error> {
    let failed = |error| Error::io(format!("export into {}", into.display()), error);
    let is_new = !into.exists();
    let root = folder::target(into, options.over).map_err(failed)?;
    // This cloned descriptor holds the lock of the target until it is closed.
    let target = root.try_clone().map_err(failed)?;
    let counts = Counters::default();
    let stopped = AtomicBool::new(false);
    let linked = walk::link_targets(toc)?;
    let (sender, receiver) = sync_channel(MAX_WAITING);
    let receiver = Mutex::new(receiver);
    let written = thread::scope(|scope| {
        let writing: Vec<_> = (0..options.threads.get())
            .map(|_| scope.spawn(|| write(&receiver, &stopped, contents, &counts, progress)))
            .collect();
        let walk = Walk {
            toc,
            contents,
            options,
            counts: &counts,
            stopped: &stopped,
            progress,
            linked,
            taken: HashSet::new(),
            folders: Folders::new(root),
        };
        // Moves the sender of the queue into this scope, so that the writers also end if the walk
        // panics.
        let sender = sender;
        let (mut batch, mut bytes): (Vec<FileJob<'_>>, u64) = (Vec::new(), 0);
        let mut send = |job: Option<_>| {
            let last = job.is_none();
            bytes += job.as_ref().map_or(0, |job: &FileJob<'_>| job.size);
            batch.extend(job);
            if !last && batch.len() < BATCH && bytes < BATCH_BYTES {
                return true;
            }
            bytes = 0;
            sender.send(std::mem::take(&mut batch)).is_ok()
        };
        let walked = walk
            .run(|job| send(Some(job)))
            .map_err(|error| match error {
                WalkError::Io(path, error) => {
                    let path = path.escape_ascii();
                    Error::io(format!("export {path} into {}", into.display()), error)
                }
                WalkError::Other(error) => error,
            });
        if walked.is_err() {
            stopped.store(true, Ordering::Relaxed);
        }
        send(None);
        drop(sender);
        // Reports the error of a writer first, since it is the reason why the walk stopped.
        for writer in writing {
            match writer.join() {
                Ok(written) => written?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        walked
    });
    if written.is_err() && !options.over {
        // Delete the written files: the disk may be full, and a retry needs an empty folder. An
        // error here is ignored, since the caller gets only the first error.
        let _ = folder::empty(&target);
        let _ = is_new.then(|| fs::remove_dir(into));
    }
    written?;
    Ok(counts.summary())
}

/// Writes files until the walk ends. After an error of another thread, drops the remaining files.
fn write<'t>(
    jobs: &Mutex<Receiver<Vec<FileJob<'t>>>>,
    stopped: &AtomicBool,
    contents: ContentSource<'_>,
    counts: &Counters,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Error> {
    let mut writer = Writer::new(contents);
    loop {
        let batch = jobs.lock().recv();
        let Ok(batch) = batch else {
            return Ok(());
        };
        for job in batch {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            if let Err(error) = job.write(&mut writer, counts) {
                stopped.store(true, Ordering::Relaxed);
                // Empties the queue, so that the walk does not wait for a free place in the queue.
                while jobs.lock().recv().is_ok() {}
                return Err(match error.kind() {
                    io::ErrorKind::NotFound => Error::Missing(job.content.to_string()),
                    _ => Error::io(format!("write {}", job.path.escape_ascii()), error),
                });
            }
            progress(job.size);
        }
    }
}

impl FileJob<'_> {
    fn write(&self, writer: &mut Writer<'_>, counts: &Counters) -> io::Result<()> {
        let shared =
            self.store_inode.is_some() || writer.write(&self.file, &self.content, self.size)?;
        add(&counts.shared, u64::from(shared));
        // Another process may have written to the file since it was verified: in this case, the
        // file gets no stamp, and the store hashes the file again later.
        let is_unchanged = match self.store_inode {
            Some(before) => link::changed(&self.file.metadata()?) == before,
            None => false,
        };
        attributes::apply(
            &Inode::File(&self.file),
            self.attributes,
            self.modified,
            counts,
        )?;
        if is_unchanged {
            writer.record_link(&self.content, &self.file, self.modified)?;
        }
        add(&counts.bytes, self.size);
        Ok(())
    }
}
