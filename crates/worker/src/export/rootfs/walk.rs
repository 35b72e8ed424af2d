//! The walk over the TOC during an export: one thread creates each file name, and passes files to
//! the threads that write contents.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags};

use crate::Error;
use pierhead_toc::FileDigest;
use pierhead_toc::ImageToc;
use pierhead_toc::image_toc::{Node, Row};

use super::attributes::{self, Inode};
use super::counts::{Counters, add};
use super::folder::{Folders, clear};
use super::link::{self, ChangeTime, Link};
use super::too_large;
use super::{ContentSource, FileJob, Options, ReuseMode};

pub(super) enum WalkError {
    Io(Vec<u8>, io::Error),
    Other(Error),
}

/// The result of an attempt to link a name to a file of the store.
enum StoreLink {
    /// The name is linked to a file that no other tree shares. The file still needs the attributes
    /// of the entry. The second field is the ctime of the file.
    Exclusive(File, ChangeTime),
    /// The name is linked to a file that already has all attributes.
    Shared,
    /// The name is not linked, so the walk creates a new file.
    None,
}

/// The path of each entry to which hard links of the image point, by the number of the entry. The
/// path is `None` if the entry is not written yet, or could not be created.
pub(super) type LinkTargets = HashMap<u32, Option<Vec<u8>>>;

pub(super) fn link_targets(toc: &ImageToc) -> Result<LinkTargets, Error> {
    let mut linked = LinkTargets::new();
    let mut rows = toc.rows();
    while let Some(row) = rows.next()? {
        if let Node::HardLink(to) = row.node {
            linked.insert(to, None);
        }
    }
    Ok(linked)
}

pub(super) struct Walk<'a> {
    pub(super) toc: &'a ImageToc,
    pub(super) contents: ContentSource<'a>,
    pub(super) options: &'a Options,
    pub(super) counts: &'a Counters,
    pub(super) stopped: &'a AtomicBool,
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
    pub(super) linked: LinkTargets,
    /// File contents whose inode in the store is already linked into the tree.
    pub(super) taken: HashSet<u32>,
    pub(super) folders: Folders<'a>,
}

impl<'a> Walk<'a> {
    pub(super) fn run(
        mut self,
        mut send: impl FnMut(FileJob<'a>) -> bool,
    ) -> Result<(), WalkError> {
        let mut rows = self.toc.rows();
        while let Some(row) = rows
            .next()
            .map_err(|error| WalkError::Other(error.into()))?
        {
            let done = self.entry(&row, &mut send);
            if !done.map_err(|error| WalkError::Io(row.path.to_vec(), error))? {
                return Ok(());
            }
        }
        self.folders
            .leave_all(self.counts)
            .map_err(|error| WalkError::Io(Vec::new(), error))
    }

    /// Writes one entry of the tree. Returns `false` after an error of another thread.
    fn entry(
        &mut self,
        row: &Row<'_, 'a>,
        send: &mut impl FnMut(FileJob<'a>) -> bool,
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
        let parent = self.folders.current()?;
        let mut is_created = true;
        match row.node {
            Node::Directory => {
                self.folders
                    .enter(name, over, row.attributes, row.modified)?;
            }
            Node::File(number) => {
                if !self.file(name, row, number, send)? {
                    return Ok(false);
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
                    is_created = false;
                }
            },
            Node::Symlink(_) | Node::CharDevice(..) | Node::BlockDevice(..) | Node::Fifo => {
                if over {
                    clear(parent, name)?;
                }
                is_created = make(parent, name, &row.node)?;
                if is_created {
                    let at = Inode::Name(parent, name, matches!(row.node, Node::Symlink(_)));
                    attributes::apply(&at, row.attributes, row.modified, self.counts)?;
                } else {
                    add(&self.counts.devices, 1);
                }
            }
        }
        add(&self.counts.entries, u64::from(is_created));
        if is_created && let Some(path) = self.linked.get_mut(&row.ordinal) {
            *path = Some(row.path.to_vec());
        }
        Ok(true)
    }

    /// Writes one regular file. Returns `false` after an error of another thread.
    fn file(
        &mut self,
        name: &[u8],
        row: &Row<'_, 'a>,
        number: u32,
        send: &mut impl FnMut(FileJob<'a>) -> bool,
    ) -> io::Result<bool> {
        let all = self.toc.contents();
        let content = all.content(number).zip(all.size(number));
        let (content, size) = content.ok_or(io::ErrorKind::InvalidData)?;
        if self.options.over {
            clear(self.folders.current()?, name)?;
        }
        let (file, store_inode) = match self.link_from_store(name, row, number, &content, size)? {
            StoreLink::Shared => return Ok(true),
            StoreLink::Exclusive(file, changed) => (file, Some(changed)),
            StoreLink::None => {
                let file = create(self.folders.current()?, name, row.attributes.mode)?;
                (file.into(), None)
            }
        };
        Ok(send(FileJob {
            file,
            store_inode,
            path: row.path.to_vec(),
            content,
            size,
            attributes: row.attributes,
            modified: row.modified,
        }))
    }

    /// Links a name in the tree to an inode of the store, if the rules of [`link`] allow it.
    fn link_from_store(
        &mut self,
        name: &[u8],
        row: &Row<'_, 'a>,
        number: u32,
        content: &FileDigest,
        size: u64,
    ) -> io::Result<StoreLink> {
        let (ReuseMode::HardLink, Some(files)) = (self.options.reuse, self.contents.files) else {
            return Ok(StoreLink::None);
        };
        // An empty file is not linked: it has no blocks to share, and an inode can have only a
        // limited number of names.
        if size == 0 || self.taken.contains(&number) {
            return Ok(StoreLink::None);
        }
        let Some(file) = files.file(content)? else {
            return Ok(StoreLink::None);
        };
        let meta = file.metadata()?;
        if meta.len() != size {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // With `over`, a file of an older export in the folder may already be the same inode.
        let may_share = !self.options.over;
        let parent = self.folders.current()?;
        let is_stored = || files.is_current(content, &file);
        let seen = link::changed(&meta);
        let linked = link::link(&file, parent, name, row, seen, may_share, is_stored)?;
        if linked != Link::None {
            self.taken.insert(number);
        }
        Ok(match linked {
            Link::None => StoreLink::None,
            Link::Exclusive(changed) => StoreLink::Exclusive(file, changed),
            Link::Shared => {
                files.record_link(content, &file, row.modified)?;
                add(&self.counts.shared, 1);
                add(&self.counts.bytes, size);
                (self.progress)(size);
                StoreLink::Shared
            }
        })
    }
}

/// Creates a file with its mode, reduced by the umask.
fn create(parent: &OwnedFd, name: &[u8], mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(sys::openat(
        parent,
        name,
        flags,
        Mode::from_raw_mode(mode & 0o777),
    )?)
}

/// Creates a symbolic link, pipe or device. Returns `false` for a device that this process may not
/// create.
fn make(parent: &OwnedFd, name: &[u8], node: &Node<'_>) -> io::Result<bool> {
    let (kind, device) = match *node {
        Node::Symlink(target) => {
            let made = sys::symlinkat(target, parent, name);
            made.map_err(|error| too_large::target(target, error))?;
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
