//! The tree of an image in a folder.
//!
//! One thread walks the table and makes the names; others write what is in the files. Every step goes from the descriptor of a folder that
//! was opened without following links, so that whatever a table says, and whatever lies in the target, nothing is written outside.

mod attributes;
mod data;
mod folder;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags};

use crate::table::{Attributes, Node, Row, Table};
use crate::{Content, Error, Source, Time};
use attributes::At;
use data::Writer;
use folder::{Folders, clear};

/// Files that go to a thread together, unless they have [`BATCH_BYTES`] before: handing over each alone costs more than
/// writing a small one.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 1 << 20;

/// Batches that wait for a thread; each file in them is an open descriptor.
const WAITING: usize = 4;

/// Contents that lie in files of their own: a worker's store.
pub trait Files: Sync {
    /// The file of exactly this content; `None` when there is none.
    ///
    /// # Errors
    /// Those of the medium.
    fn file(&self, content: &Content) -> io::Result<Option<File>>;
}

/// What becomes of a file that a [`Files`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Blocks are shared where the file system can (btrfs, XFS), else copied within the kernel.
    #[default]
    Clone,
    /// The same inode, when it bears the entry's owner and mode or nobody else has linked it yet (then it gets them); else
    /// as [`Reuse::Clone`]. It keeps the store's time, by which a store tells that somebody wrote to it: who writes to such
    /// a file writes to the store.
    HardLink,
}

/// How a tree is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Into a folder that is not empty: what is in the way goes, everything else stays.
    pub over: bool,
    /// What to do with a store's files.
    pub reuse: Reuse,
    /// That write contents, besides the one that walks.
    pub threads: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            over: false,
            reuse: Reuse::default(),
            threads: NonZeroUsize::MIN,
        }
    }
}

/// What was written, and what could not be for want of privilege or of a capable file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries that are there, the root among them.
    pub entries: u64,
    /// Bytes of regular files, each counted once however many names it has.
    pub bytes: u64,
    /// Regular files whose blocks or inode are a store's.
    pub shared: u64,
    /// Entries that do not have their owner.
    pub owners: u64,
    /// Files that are not setuid or setgid: their owner could not be set.
    pub modes: u64,
    /// Devices that are not there, under any of their names.
    pub devices: u64,
    /// Extended attributes that are not there.
    pub xattrs: u64,
    /// Files that have a store's time, being a store's inode.
    pub times: u64,
}

impl Summary {
    /// Whether nothing was left out.
    pub const fn complete(&self) -> bool {
        let left = [
            self.owners,
            self.modes,
            self.devices,
            self.xattrs,
            self.times,
        ];
        matches!(left, [0, 0, 0, 0, 0])
    }
}

/// What several threads count.
#[derive(Default)]
struct Counts {
    entries: AtomicU64,
    bytes: AtomicU64,
    shared: AtomicU64,
    owners: AtomicU64,
    modes: AtomicU64,
    devices: AtomicU64,
    xattrs: AtomicU64,
    times: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Counts {
    fn summary(&self) -> Summary {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Summary {
            entries: get(&self.entries),
            bytes: get(&self.bytes),
            shared: get(&self.shared),
            owners: get(&self.owners),
            modes: get(&self.modes),
            devices: get(&self.devices),
            xattrs: get(&self.xattrs),
            times: get(&self.times),
        }
    }
}

/// A file that has its name, and waits for its content and attributes.
struct Job<'t> {
    file: File,
    path: Vec<u8>,
    content: Content,
    size: u64,
    attributes: Attributes<'t>,
    modified: Time,
}

/// Where contents come from.
#[derive(Clone, Copy)]
pub struct Contents<'a> {
    /// Has all of them.
    pub source: &'a (dyn Source + Sync),
    /// Has some as files.
    pub files: Option<&'a dyn Files>,
}

/// Writes the tree of `table` into the folder `into`, which is made if it is not there. Not synced to the disk. `told` hears of bytes of content as
/// they are written, from any thread.
///
/// # Errors
/// `Io`, also when the folder is not empty; `Missing` when the source lacks a content; `Malformed`. What was written goes
/// again, unless the folder is written over.
pub fn rootfs(
    table: &Table,
    contents: Contents<'_>,
    into: &Path,
    options: &Options,
    told: &(dyn Fn(u64) + Sync),
) -> Result<Summary, Error> {
    let failed = |error| Error::io(format!("export into {}", into.display()), error);
    let made = !into.exists();
    let root = folder::target(into, options.over).map_err(failed)?;
    // Locked like the first one, for as long as it is open.
    let begun = root.try_clone().map_err(failed)?;
    let counts = Counts::default();
    let stopped = AtomicBool::new(false);
    let linked = linked(table)?;
    let (sender, receiver) = sync_channel(WAITING);
    let receiver = Mutex::new(receiver);
    let written = thread::scope(|scope| {
        let writing: Vec<_> = (0..options.threads.get())
            .map(|_| scope.spawn(|| write(&receiver, &stopped, contents, &counts, told)))
            .collect();
        let walk = Walk {
            table,
            contents,
            options,
            counts: &counts,
            stopped: &stopped,
            told,
            linked,
            folders: Folders::new(root),
        };
        // Owned here, so that the writers end even if this panics.
        let sender = sender;
        let (mut batch, mut bytes): (Vec<Job<'_>>, u64) = (Vec::new(), 0);
        let mut send = |job: Option<_>| {
            let last = job.is_none();
            bytes += job.as_ref().map_or(0, |job: &Job<'_>| job.size);
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
                Failure::Io(path, error) => {
                    let path = path.escape_ascii();
                    Error::io(format!("export {path} into {}", into.display()), error)
                }
                Failure::Other(error) => error,
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
    jobs: &Mutex<Receiver<Vec<Job<'t>>>>,
    stopped: &AtomicBool,
    contents: Contents<'_>,
    counts: &Counts,
    told: &(dyn Fn(u64) + Sync),
) -> Result<(), Error> {
    let mut writer = Writer::new(contents);
    loop {
        let batch = match jobs.lock() {
            Ok(jobs) => jobs.recv(),
            // Another writer panicked, which will be told.
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
            told(job.size);
        }
    }
}

impl Job<'_> {
    fn write(&self, writer: &mut Writer<'_>, counts: &Counts) -> io::Result<()> {
        let shared = writer.write(&self.file, &self.content, self.size)?;
        add(&counts.shared, u64::from(shared));
        attributes::apply(
            &At::Open(&self.file),
            self.attributes,
            self.modified,
            counts,
        )?;
        add(&counts.bytes, self.size);
        Ok(())
    }
}

enum Failure {
    Io(Vec<u8>, io::Error),
    Other(Error),
}

/// The ordinals that hard links name, and later their paths; `None` for what could not be made.
type Linked = HashMap<u32, Option<Vec<u8>>>;

fn linked(table: &Table) -> Result<Linked, Error> {
    let mut linked = Linked::new();
    let mut rows = table.rows();
    while let Some(row) = rows.next()? {
        if let Node::HardLink(to) = row.node {
            linked.insert(to, None);
        }
    }
    Ok(linked)
}

struct Walk<'a> {
    table: &'a Table,
    contents: Contents<'a>,
    options: &'a Options,
    counts: &'a Counts,
    stopped: &'a AtomicBool,
    told: &'a (dyn Fn(u64) + Sync),
    linked: Linked,
    folders: Folders<'a>,
}

impl<'a> Walk<'a> {
    fn run(mut self, mut send: impl FnMut(Job<'a>) -> bool) -> Result<(), Failure> {
        let mut rows = self.table.rows();
        while let Some(row) = rows.next().map_err(Failure::Other)? {
            let done = self.entry(&row, &mut send);
            if !done.map_err(|error| Failure::Io(row.path.to_vec(), error))? {
                return Ok(());
            }
        }
        self.folders
            .leave_all(self.counts)
            .map_err(|error| Failure::Io(Vec::new(), error))
    }

    /// `false` when somebody else failed.
    fn entry(
        &mut self,
        row: &Row<'_, 'a>,
        send: &mut impl FnMut(Job<'a>) -> bool,
    ) -> io::Result<bool> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if row.path.is_empty() {
            self.folders.root(row.attributes, row.modified);
            add(&self.counts.entries, 1);
            return Ok(true);
        }
        let (name, over) = (
            self.folders.go_to_parent(row.path, self.counts)?,
            self.options.over,
        );
        let parent = self.folders.here()?;
        let mut made = true;
        match row.node {
            Node::Directory => {
                self.folders
                    .enter(name, over, row.attributes, row.modified)?;
            }
            Node::File(number) => {
                let all = self.table.contents();
                let content = all.content(number).zip(all.size(number));
                let (content, size) = content.ok_or(io::ErrorKind::InvalidData)?;
                if over {
                    clear(parent, name)?;
                }
                if !self.link_from_store(parent, name, row, &content, size)? {
                    let job = Job {
                        file: create(parent, name)?.into(),
                        path: row.path.to_vec(),
                        content,
                        size,
                        attributes: row.attributes,
                        modified: row.modified,
                    };
                    if !send(job) {
                        return Ok(false);
                    }
                }
            }
            Node::HardLink(to) => match self.linked.get(&to) {
                Some(Some(target)) => {
                    let (folder, old) = self.folders.open(target)?;
                    if over {
                        clear(parent, name)?;
                    }
                    sys::linkat(folder, old, parent, name, AtFlags::empty())?;
                }
                _ => {
                    add(&self.counts.devices, 1);
                    made = false;
                }
            },
            Node::Symlink(_) | Node::CharDevice(..) | Node::BlockDevice(..) | Node::Fifo => {
                if over {
                    clear(parent, name)?;
                }
                made = make(parent, name, &row.node)?;
                if made {
                    let at = At::Named(parent, name, matches!(row.node, Node::Symlink(_)));
                    attributes::apply(&at, row.attributes, row.modified, self.counts)?;
                } else {
                    add(&self.counts.devices, 1);
                }
            }
        }
        add(&self.counts.entries, u64::from(made));
        if made && let Some(path) = self.linked.get_mut(&row.ordinal) {
            *path = Some(row.path.to_vec());
        }
        Ok(true)
    }

    /// Whether the name is now one more of a store's inode.
    fn link_from_store(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        row: &Row<'_, 'a>,
        content: &Content,
        size: u64,
    ) -> io::Result<bool> {
        let (Reuse::HardLink, Some(files)) = (self.options.reuse, self.contents.files) else {
            return Ok(false);
        };
        // There is nothing to share, and a file system allows an inode so many names only.
        if size == 0 {
            return Ok(false);
        }
        let Some(file) = files.file(content)? else {
            return Ok(false);
        };
        let linked = data::link(&file, parent, name, row.attributes, size)?;
        if linked {
            add(&self.counts.shared, 1);
            add(&self.counts.times, 1);
            add(&self.counts.bytes, size);
            (self.told)(size);
        }
        Ok(linked)
    }
}

fn create(parent: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(sys::openat(
        parent,
        name,
        flags,
        Mode::from_raw_mode(0o600),
    )?)
}

/// `false` for a device that this process may not make.
fn make(parent: &OwnedFd, name: &[u8], node: &Node<'_>) -> io::Result<bool> {
    let (kind, device) = match *node {
        Node::Symlink(target) => {
            sys::symlinkat(target, parent, name)?;
            return Ok(true);
        }
        Node::CharDevice(major, minor) => (FileType::CharacterDevice, sys::makedev(major, minor)),
        Node::BlockDevice(major, minor) => (FileType::BlockDevice, sys::makedev(major, minor)),
        _ => (FileType::Fifo, 0),
    };
    match sys::mknodat(parent, name, kind, Mode::from_raw_mode(0o600), device) {
        Err(rustix::io::Errno::PERM) if kind != FileType::Fifo => Ok(false),
        made => made.map(|()| true).map_err(Into::into),
    }
}
