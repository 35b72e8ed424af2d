//! Links an inode of the store into a tree, with the attributes of the tree's entry.
//!
//! 1. A process that links an inode holds its lock.
//! 2. Under the lock, an inode whose only name is in the store belongs to the store alone. No tree relies on its
//!    attributes, and it gets those of the entry before the lock is released.
//! 3. An inode with more names is shared only if it has the attributes of the entry already.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{self as sys, AtFlags, FlockOperation};
use rustix::io::Errno;

use pierhead_toc::image_toc::Row;

use super::attributes::{SET_ID, owner};

/// The name of the SELinux label, which every file has where SELinux is in use.
const LABEL: &[u8] = b"security.selinux\0";

/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// The ctime of an inode: seconds and nanoseconds. A later write changes it, unless both are within one tick of the clock.
pub(super) type ChangeTime = (i64, i64);

/// The result of [`link`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// It is the file's, which waits for the entry's attributes and is locked until it is closed. Last changed by this.
    Exclusive(ChangeTime),
    /// The name is linked, and the file has the attributes already.
    Shared,
    /// The name does not exist: the caller makes a copy.
    None,
}

/// Links a file of the store to one more name. `seen` is its ctime when it was verified. With `shared`, the file may have
/// further names. `held` returns whether the name in the store is still this file's.
pub(super) fn link(
    file: &File,
    parent: &OwnedFd,
    name: &[u8],
    row: &Row<'_, '_>,
    seen: ChangeTime,
    shared: bool,
    held: impl FnOnce() -> io::Result<bool>,
) -> io::Result<Link> {
    let (attributes, modified) = (row.attributes, row.modified);
    // Files that give rights stay out of the store. So do files that other users may write to, since they would write to
    // every tree that shares them. The store must be able to read the file.
    let plain = attributes.xattrs.is_empty()
        && attributes.mode & (SET_ID | OTHERS_WRITE) == 0
        && attributes.mode & 0o400 != 0
        && attributes.uid == rustix::process::geteuid().as_raw();
    let Some((uid, gid)) = owner(attributes).filter(|_| plain) else {
        return Ok(Link::None);
    };
    // Another export holds the lock: a copy is faster than the wait.
    if sys::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Link::None);
    }
    let meta = file.metadata()?;
    let owned = (meta.uid(), meta.gid()) == (attributes.uid, attributes.gid);
    let same = owned
        && meta.mode() & 0o7777 == attributes.mode
        && (meta.mtime(), meta.mtime_nsec()) == (modified.seconds, i64::from(modified.nanos));
    let alone = meta.nlink() == 1;
    if has_xattrs(file) || changed(&meta) != seen || !(alone || same && shared) {
        return Ok(Link::None);
    }
    // The count comes before the lookup. Names are added under the lock only, so the single name is the store's if the
    // store has it now. Otherwise the store has another file meanwhile, and this one belongs to a tree.
    if alone && !held()? {
        return Ok(Link::None);
    }
    if !owned && sys::fchown(file, Some(uid), Some(gid)).is_err() {
        return Ok(Link::None);
    }
    match add_name(file, parent, name) {
        Ok(()) if alone => Ok(Link::Exclusive(changed(&file.metadata()?))),
        Ok(()) => Ok(Link::Shared),
        // Another file system, too many names, or a file of another user.
        Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOENT) => Ok(Link::None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn changed(meta: &Metadata) -> ChangeTime {
    (meta.ctime(), meta.ctime_nsec())
}

fn add_name(file: &File, parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    match sys::linkat(file, "", parent, name, AtFlags::EMPTY_PATH) {
        // Older systems need CAP_DAC_READ_SEARCH for an empty path.
        Err(Errno::NOENT) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            sys::linkat(sys::CWD, path, parent, name, AtFlags::SYMLINK_FOLLOW)
        }
        done => done,
    }
}

/// Whether a file has extended attributes. The entry has none.
fn has_xattrs(file: &File) -> bool {
    let mut names = [0; 256];
    match sys::flistxattr(file, &mut names[..]) {
        Ok(len) => !(len == 0 || names[..len] == *LABEL),
        Err(error) => error != Errno::OPNOTSUPP,
    }
}
