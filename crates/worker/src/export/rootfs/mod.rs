//! The tree of an image in a folder.
//!
//! One thread walks the table and makes the names; others write what is in the files. Every step goes from the descriptor of a folder that
//! was opened without following links, so that whatever a table says, and whatever lies in the target, nothing is written outside.

mod attributes;
mod counts;
mod data;
mod folder;
mod link;
#[cfg(test)]
mod tests;
mod too_large;
mod walk;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use attributes::Inode;
pub use counts::Summary;
use counts::{Counters, add};
use data::Writer;
use folder::Folders;
use link::ChangeTime;
use pierhead_toc::ImageToc;
use pierhead_toc::image_toc::Attributes;
use pierhead_toc::{Error, FileDigest, Source, Time};
use walk::{Walk, WalkError};

/// StoreFiles that go to a thread together, unless they have [`BATCH_BYTES`] before: handing over each alone costs more than
/// writing a small one.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 1 << 20;

/// Batches that wait for a thread; each file in them is an open descriptor.
const WAITING: usize = 4;

/// ContentSource that lie in files of their own: a worker's store.
pub trait StoreFiles: Sync {
    /// The file of exactly this content; `None` when there is none.
    ///
    /// # Errors
    /// Those of the medium.
    fn file(&self, content: &FileDigest) -> io::Result<Option<File>>;

    /// Whether that file, which was given as this content's, is the one that it would be made of now.
    ///
    /// # Errors
    /// Those of the medium.
    fn is_current(&self, content: &FileDigest, file: &File) -> io::Result<bool>;

    /// This file of it is a tree's from now on too, with the attributes of its entry, which was modified at that time.
    ///
    /// # Errors
    /// Those of the medium.
    fn record_link(&self, content: &FileDigest, file: &File, modified: Time) -> io::Result<()>;
}

/// What becomes of a file that a [`StoreFiles`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReuseMode {
    /// Blocks are shared where the file system can (btrfs, XFS), else copied within the kernel.
    #[default]
    Clone,
    /// The same inode: the first place of a content gets it, with the entry's own attributes while no other tree has it, and
    /// else where it has them all already. Every other place is as [`ReuseMode::Clone`], so that the names that are one file are
    /// the image's, and so is what is another user's than the exporter's, or may be written to by others. Who writes
    /// to such a file writes to the store, and to other trees: for trees that are only read.
    HardLink,
}

/// How a tree is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Into a folder that is not empty: what is in the way goes, everything else stays.
    pub over: bool,
    /// What to do with a store's files.
    pub reuse: ReuseMode,
    /// That write contents, besides the one that walks.
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

/// A file that has its name, and waits for its content and attributes.
struct FileJob<'t> {
    file: File,
    /// It is a store's, which has its content; when it was last changed.
    store_inode: Option<ChangeTime>,
    path: Vec<u8>,
    content: FileDigest,
    size: u64,
    attributes: Attributes<'t>,
    modified: Time,
}

/// Where contents come from.
#[derive(Clone, Copy)]
pub struct ContentSource<'a> {
    /// Has all of them.
    pub source: &'a (dyn Source + Sync),
    /// Has some as files.
    pub files: Option<&'a dyn StoreFiles>,
}

/// Writes the tree of `table` into the folder `into`, which is made if it is not there. Not synced to the disk. `progress` hears of bytes of content as
/// they are written, from any thread.
///
/// # Errors
/// `Io`, also when the folder is not empty; `Missing` when the source lacks a content; `Malformed`. What was written goes
/// again, unless the folder is written over.
pub fn rootfs(
    table: &ImageToc,
    contents: ContentSource<'_>,
    into: &Path,
    options: &Options,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary, Error> {
    let failed = |error| Error::io(format!("export into {}", into.display()), error);
    let made = !into.exists();
    let root = folder::target(into, options.over).map_err(failed)?;
    // Locked like the first one, for as long as it is open.
    let begun = root.try_clone().map_err(failed)?;
    let counts = Counters::default();
    let stopped = AtomicBool::new(false);
    let linked = walk::link_targets(table)?;
    let (sender, receiver) = sync_channel(WAITING);
    let receiver = Mutex::new(receiver);
    let written = thread::scope(|scope| {
        let writing: Vec<_> = (0..options.threads.get())
            .map(|_| scope.spawn(|| write(&receiver, &stopped, contents, &counts, progress)))
            .collect();
        let walk = Walk {
            table,
            contents,
            options,
            counts: &counts,
            stopped: &stopped,
            progress,
            linked,
            taken: HashSet::new(),
            folders: Folders::new(root),
        };
        // Owned here, so that the writers end even if this panics.
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
        // The first cause is a writer's: the walk ends because of it.
        for writer in writing {
            match writer.join() {
                Ok(written) => written?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        walked
    });
    if written.is_err() && !options.over {
        // The disk may be full, and a retry wants the folder empty. The first error is the one to tell.
        let _ = folder::empty(&begun);
        let _ = made.then(|| fs::remove_dir(into));
    }
    written?;
    Ok(counts.summary())
}

/// Writes files until there are no more. After a failure elsewhere the rest is dropped.
fn write<'t>(
    jobs: &Mutex<Receiver<Vec<FileJob<'t>>>>,
    stopped: &AtomicBool,
    contents: ContentSource<'_>,
    counts: &Counters,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Error> {
    let mut writer = Writer::new(contents);
    loop {
        let batch = match jobs.lock() {
            Ok(jobs) => jobs.recv(),
            // Another writer panicked, which will be progress.
            Err(_) => return Ok(()),
        };
        let Ok(batch) = batch else {
            return Ok(());
        };
        for job in batch {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            if let Err(error) = job.write(&mut writer, counts) {
                stopped.store(true, Ordering::Relaxed);
                // Taken and dropped, so that the walk does not wait for ever.
                while jobs.lock().is_ok_and(|jobs| jobs.recv().is_ok()) {}
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
        // Else somebody has written to it since it was read: setting the time would hide that.
        let untouched = match self.store_inode {
            Some(before) => link::changed(&self.file.metadata()?) == before,
            None => false,
        };
        attributes::apply(
            &Inode::File(&self.file),
            self.attributes,
            self.modified,
            counts,
        )?;
        if untouched {
            writer.record_link(&self.content, &self.file, self.modified)?;
        }
        add(&counts.bytes, self.size);
        Ok(())
    }
}
