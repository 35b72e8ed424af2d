//! The open folders on the path from the target of an export to the current entry.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self as sys, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use pierhead_toc::Time;
use pierhead_toc::image_toc::Attributes;

use super::attributes::{Inode, apply};
use super::counts::Counters;

/// Maximum number of open folders. When the walk goes deeper, it closes the folders nearest to the
/// root, and opens them again on its way back.
const MAX_OPEN: usize = 64;

/// Flags to open a folder without following a link.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens the target folder of an export, and creates a folder that does not exist. If `over` is
/// false, the target must be empty.
pub(super) fn target(into: &Path, over: bool) -> io::Result<OwnedFd> {
    fs::create_dir_all(into)?;
    // The target itself may be a symbolic link, because the caller chose the target.
    let root = sys::open(into, FOLDER - OFlags::NOFOLLOW, Mode::empty())?;
    if !over {
        // Two exports into one empty folder would delete each other's files. Without this lock, the
        // target is used anyway if its file system supports no locks.
        if let Err(Errno::WOULDBLOCK) =
            sys::flock(&root, sys::FlockOperation::NonBlockingLockExclusive)
        {
            return Err(io::Error::other("another process exports into this folder"));
        }
        if fs::read_dir(into)?.next().is_some() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
    }
    Ok(root)
}

/// A folder on the path of the walk. The folder gets its attributes when the walk leaves it: a new
/// entry changes the mtime of the folder, and the mode of the folder may forbid new entries.
struct OpenFolder<'t> {
    fd: Option<OwnedFd>,
    /// Length of the path of this folder in bytes.
    len: usize,
    attributes: Attributes<'t>,
    modified: Time,
}

/// The open folders, from the target of the export to the current folder.
pub(super) struct Folders<'t> {
    root: OwnedFd,
    root_attributes: Option<(Attributes<'t>, Time)>,
    /// The path of the current folder, relative to the target.
    path: Vec<u8>,
    entered: Vec<OpenFolder<'t>>,
}

impl<'t> Folders<'t> {
    pub(super) const fn new(root: OwnedFd) -> Self {
        Self {
            root,
            root_attributes: None,
            path: Vec::new(),
            entered: Vec::new(),
        }
    }

    /// Stores the attributes that the target folder gets at the end of the export.
    pub(super) const fn root(&mut self, attributes: Attributes<'t>, modified: Time) {
        self.root_attributes = Some((attributes, modified));
    }

    /// Leaves folders until the current folder is the parent of `path`. Returns the last name of
    /// the path.
    pub(super) fn go_to_parent<'p>(
        &mut self,
        path: &'p [u8],
        counts: &Counters,
    ) -> io::Result<&'p [u8]> {
        let (parent, name) = split(path);
        while self.path != parent {
            self.leave(counts)?;
        }
        Ok(name)
    }

    /// Returns the descriptor of the current folder.
    pub(super) fn current(&self) -> io::Result<&OwnedFd> {
        match self.entered.last() {
            None => Ok(&self.root),
            Some(entered) => entered
                .fd
                .as_ref()
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }

    /// Creates a folder, and makes it the current folder.
    pub(super) fn enter(
        &mut self,
        name: &[u8],
        over: bool,
        attributes: Attributes<'t>,
        modified: Time,
    ) -> io::Result<()> {
        let parent = self.current()?;
        let mode = Mode::from_raw_mode(0o700);
        let fd = match sys::mkdirat(parent, name, mode) {
            Err(Errno::EXIST) if over => match sys::openat(parent, name, FOLDER, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    clear(parent, name)?;
                    sys::mkdirat(parent, name, mode)?;
                    sys::openat(parent, name, FOLDER, Mode::empty())?
                }
                Err(error) => return Err(error.into()),
            },
            made => {
                made?;
                sys::openat(parent, name, FOLDER, Mode::empty())?
            }
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend(name);
        if let Some(above) = self.entered.len().checked_sub(MAX_OPEN) {
            self.entered[above].fd = None;
        }
        self.entered.push(OpenFolder {
            fd: Some(fd),
            len: self.path.len(),
            attributes,
            modified,
        });
        Ok(())
    }

    fn leave(&mut self, counts: &Counters) -> io::Result<()> {
        let left = self.entered.pop().ok_or(io::ErrorKind::InvalidData)?;
        if let Some(fd) = &left.fd {
            let applied = apply(&Inode::Folder(fd), left.attributes, left.modified, counts);
            // The error text names the failed folder, since the walk is already at another entry.
            applied.map_err(|error| {
                let path = self.path.escape_ascii();
                io::Error::new(error.kind(), format!("folder {path}: {error}"))
            })?;
        }
        self.path
            .truncate(self.entered.last().map_or(0, |above| above.len));
        if let Some(above) = self.entered.last()
            && above.fd.is_none()
        {
            let fd = walk(&self.root, &self.path)?;
            if let Some(above) = self.entered.last_mut() {
                above.fd = Some(fd);
            }
        }
        Ok(())
    }

    /// Leaves all folders, the target folder last.
    pub(super) fn leave_all(&mut self, counts: &Counters) -> io::Result<()> {
        while !self.entered.is_empty() {
            self.leave(counts)?;
        }
        match self.root_attributes {
            Some((attributes, modified)) => {
                apply(&Inode::Folder(&self.root), attributes, modified, counts)
            }
            None => Ok(()),
        }
    }

    /// Opens the parent of a written path, and returns the last name of the path. The folder may
    /// have a mode with which only root can open it.
    pub(super) fn open<'p>(&self, path: &'p [u8]) -> io::Result<(OwnedFd, &'p [u8])> {
        let (parent, name) = split(path);
        Ok((walk(&self.root, parent)?, name))
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

fn walk(root: &OwnedFd, path: &[u8]) -> io::Result<OwnedFd> {
    let mut folder = sys::openat(root, c".", FOLDER, Mode::empty())?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        folder = sys::openat(&folder, name, FOLDER, Mode::empty())?;
    }
    Ok(folder)
}

/// Removes a name from a folder. If the name is a folder, also removes all its entries.
pub(super) fn clear(parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match sys::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    empty(&sys::openat(parent, name, FOLDER, Mode::empty())?)?;
    Ok(sys::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Removes all entries of a folder.
pub(super) fn empty(folder: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let inner = entry.file_name().to_bytes();
        if inner == b"." || inner == b".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            clear(folder, inner)?;
        } else {
            sys::unlinkat(folder, inner, AtFlags::empty())?;
        }
    }
    Ok(())
}
