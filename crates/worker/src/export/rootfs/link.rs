//! Hard-links an inode of the store into an exported tree, with the attributes of the entry in the
//! tree. The invariants of a link are:
//!
//! 1. A process that links an inode holds the lock on this inode.
//! 2. If the only name of a locked inode is in the store, no tree relies on its attributes. Such an
//!    inode gets the attributes of the entry before the lock is released.
//! 3. An inode with more than one name is linked only if it already has the attributes of the
//!    entry.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{self as sys, AtFlags, FlockOperation};
use rustix::io::Errno;

use pierhead_toc::image_toc::Row;

use super::attributes::{SET_ID, owner};

/// The extended attribute of the SELinux label. Where SELinux is in use, every file has this
/// attribute.
const LABEL: &[u8] = b"security.selinux\0";

/// Write permission of the group, and of other users.
const OTHERS_WRITE: u32 = 0o022;

/// The ctime of an inode: seconds and nanoseconds. A later write to the inode changes its ctime,
/// except within the same tick of the clock.
pub(super) type ChangeTime = (i64, i64);

/// What [`link`] did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// The name is linked to a file that no other tree shares. The file still needs the attributes
    /// of the entry. The file is locked until the caller closes it. The value is the ctime of the
    /// file.
    Exclusive(ChangeTime),
    /// The name is linked to a file that already has the attributes of the entry.
    Shared,
    /// The name is not linked, so the caller copies the file.
    None,
}

/// Adds a name in the exported tree to a file of the store. `seen` is the ctime of the file when it
/// was verified. With `may_share`, the file may have further names. `is_stored` returns whether the
/// store's name still belongs to this file.
pub(super) fn link(
    file: &File,
    parent: &OwnedFd,
    name: &[u8],
    row: &Row<'_, '_>,
    seen: ChangeTime,
    may_share: bool,
    is_stored: impl FnOnce() -> io::Result<bool>,
) -> io::Result<Link> {
    let (attributes, modified) = (row.attributes, row.modified);
    // Files that grant rights (setuid, extended attributes) are never linked. Files that other
    // users may write to are not linked either, since a write would change every tree that shares
    // the file. The store itself must be able to read a linked file.
    let is_linkable = attributes.xattrs.is_empty()
        && attributes.mode & (SET_ID | OTHERS_WRITE) == 0
        && attributes.mode & 0o400 != 0
        && attributes.uid == rustix::process::geteuid().as_raw();
    let Some((uid, gid)) = owner(attributes).filter(|_| is_linkable) else {
        return Ok(Link::None);
    };
    // If another export holds the lock, copying the file is faster than waiting for the lock.
    if sys::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Link::None);
    }
    let meta = file.metadata()?;
    let has_owner = (meta.uid(), meta.gid()) == (attributes.uid, attributes.gid);
    let has_attributes = has_owner
        && meta.mode() & 0o7777 == attributes.mode
        && (meta.mtime(), meta.mtime_nsec()) == (modified.seconds, i64::from(modified.nanos));
    let has_one_name = meta.nlink() == 1;
    if has_xattrs(file) || changed(&meta) != seen || !(has_one_name || has_attributes && may_share)
    {
        return Ok(Link::None);
    }
    // Names are added under the lock only, so the order "count, then look up" is safe. If the
    // store's name belongs to this file, it is the file's only name. If not, the store has replaced
    // the file, and the only name of this file belongs to a tree.
    if has_one_name && !is_stored()? {
        return Ok(Link::None);
    }
    if !has_owner && sys::fchown(file, Some(uid), Some(gid)).is_err() {
        return Ok(Link::None);
    }
    match add_name(file, parent, name) {
        Ok(()) if has_one_name => Ok(Link::Exclusive(changed(&file.metadata()?))),
        Ok(()) => Ok(Link::Shared),
        // The link is not possible: the tree is on another file system, the file has too many
        // names, or it belongs to another user.
        Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOENT) => Ok(Link::None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn changed(meta: &Metadata) -> ChangeTime {
    (meta.ctime(), meta.ctime_nsec())
}

fn add_name(file: &File, parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    match sys::linkat(file, "", parent, name, AtFlags::EMPTY_PATH) {
        // Before 6.10, Linux requires CAP_DAC_READ_SEARCH to link a descriptor with an empty path.
        Err(Errno::NOENT) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            sys::linkat(sys::CWD, path, parent, name, AtFlags::SYMLINK_FOLLOW)
        }
        done => done,
    }
}

/// Whether a file has extended attributes other than its SELinux label.
fn has_xattrs(file: &File) -> bool {
    let mut names = [0; 256];
    match sys::flistxattr(file, &mut names[..]) {
        Ok(len) => !(len == 0 || names[..len] == *LABEL),
        Err(error) => error != Errno::OPNOTSUPP,
    }
}
