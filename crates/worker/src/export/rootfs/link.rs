//! A store's inode as a file of a tree, with the attributes of the tree's entry.
//!
//! Who links an inode holds its lock. Under that, one of a single name that is the store's is the store's alone: nobody counts
//! on its attributes, and it gets the entry's before the lock is given up. One of more names is shared where it has them all.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{self as sys, AtFlags, FlockOperation};
use rustix::io::Errno;

use pierhead_toc::image_toc::Row;

use super::attributes::{SET_ID, owner};

/// Of labels that every file has where they are in use.
const LABEL: &[u8] = b"security.selinux\0";

/// Writing to the group, and to all.
const OTHERS_WRITE: u32 = 0o022;

/// When an inode was last changed: seconds and nanoseconds. What was written since has another, unless both are within a tick
/// of the system's clock.
pub(super) type ChangeTime = (i64, i64);

/// What became of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// It is the file's, which waits for the entry's attributes and is locked until it is closed. ChangeTime last by this.
    Exclusive(ChangeTime),
    /// It is the file's, which had them.
    Shared,
    /// It is not there: a copy is to be made.
    None,
}

/// Gives a store's file, which was `seen` to be whole when it was last changed then, one more name. `shared`: also where others
/// have it. `held`: whether the store's name is still this file's.
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
    // What gives rights is kept out of the store, and so is what another user may write to: he would write to every tree that
    // has it. And the store must be able to read it.
    let plain = attributes.xattrs.is_empty()
        && attributes.mode & (SET_ID | OTHERS_WRITE) == 0
        && attributes.mode & 0o400 != 0
        && attributes.uid == rustix::process::geteuid().as_raw();
    let Some((uid, gid)) = owner(attributes).filter(|_| plain) else {
        return Ok(Link::None);
    };
    // Whoever has it will make it a tree's own, or waits for what we do: neither is worth waiting for.
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
    // Counted before it is looked for: names are only given under the lock, so the one name was the store's if it is now. Else the
    // store has got another file meanwhile, and this one is a tree's.
    if alone && !held()? {
        return Ok(Link::None);
    }
    if !owned && sys::fchown(file, Some(uid), Some(gid)).is_err() {
        return Ok(Link::None);
    }
    match add_name(file, parent, name) {
        Ok(()) if alone => Ok(Link::Exclusive(changed(&file.metadata()?))),
        Ok(()) => Ok(Link::Shared),
        // Another file system, as many names as this one allows, or a file of somebody else's.
        Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::NOENT) => Ok(Link::None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn changed(meta: &Metadata) -> ChangeTime {
    (meta.ctime(), meta.ctime_nsec())
}

fn add_name(file: &File, parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    match sys::linkat(file, "", parent, name, AtFlags::EMPTY_PATH) {
        // Older systems let only those do this who may read everything.
        Err(Errno::NOENT) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            sys::linkat(sys::CWD, path, parent, name, AtFlags::SYMLINK_FOLLOW)
        }
        done => done,
    }
}

/// Somebody has set them: the entry has none.
fn has_xattrs(file: &File) -> bool {
    let mut names = [0; 256];
    match sys::flistxattr(file, &mut names[..]) {
        Ok(len) => !(len == 0 || names[..len] == *LABEL),
        Err(error) => error != Errno::OPNOTSUPP,
    }
}
