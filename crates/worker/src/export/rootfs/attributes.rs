//! Sets owner, extended attributes, mode and mtime of an exported file or directory. The order of
//! these steps matters, because `chown` clears setuid and capabilities.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{self as sys, AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use pierhead_toc::Time;
use pierhead_toc::image_toc::Attributes;

use super::counts::{Counters, add};
use super::too_large;

/// The mode bits setuid and setgid.
pub(super) const SET_ID: u32 = 0o6000;

/// The inode that gets the attributes.
pub(super) enum Inode<'a> {
    /// An open descriptor of a regular file.
    File(&'a File),
    /// An open descriptor of a directory.
    Folder(&'a OwnedFd),
    /// A symbolic link, pipe or device, which must not be opened. The fields are its folder, its
    /// name, and whether it is a symbolic link.
    Name(&'a OwnedFd, &'a [u8], bool),
}

impl Inode<'_> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(file) => Some(file.as_fd()),
            Self::Folder(fd) => Some(fd.as_fd()),
            Self::Name(..) => None,
        }
    }

    /// Returns a descriptor on the file system of the inode, for `statfs`.
    fn file_system(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) => file.as_fd(),
            Self::Folder(fd) | Self::Name(fd, ..) => fd.as_fd(),
        }
    }

    fn stat(&self) -> Result<Stat, Errno> {
        match self {
            Self::Name(parent, name, _) => sys::statat(parent, *name, AtFlags::SYMLINK_NOFOLLOW),
            Self::File(file) => sys::fstat(file),
            Self::Folder(fd) => sys::fstat(fd),
        }
    }

    fn chown(&self, uid: Uid, gid: Gid) -> Result<(), Errno> {
        match self {
            Self::Name(parent, name, _) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                sys::chownat(parent, *name, Some(uid), Some(gid), flags)
            }
            _ => self
                .fd()
                .map_or(Ok(()), |fd| sys::fchown(fd, Some(uid), Some(gid))),
        }
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Name(parent, of, _) => {
                // Linux before 6.13 has no system call that takes a folder's descriptor and a name.
                let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
                path.extend(*of);
                sys::lsetxattr(path, name, value, XattrFlags::empty())
            }
            _ => self.fd().map_or(Ok(()), |fd| {
                sys::fsetxattr(fd, name, value, XattrFlags::empty())
            }),
        }
    }

    fn chmod(&self, mode: Mode) -> Result<(), Errno> {
        match self {
            // Symbolic links have no mode on Linux.
            Self::Name(_, _, true) => Ok(()),
            Self::Name(parent, name, false) => sys::chmodat(parent, *name, mode, AtFlags::empty()),
            _ => self.fd().map_or(Ok(()), |fd| sys::fchmod(fd, mode)),
        }
    }

    fn set_time(&self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Self::Name(parent, name, _) => {
                sys::utimensat(parent, *name, times, AtFlags::SYMLINK_NOFOLLOW)
            }
            _ => self.fd().map_or(Ok(()), |fd| sys::futimens(fd, times)),
        }
    }
}

/// Sets all attributes of an inode, and counts owners and extended attributes that cannot be set.
///
/// The owner is set first, because `chown` clears capabilities and setuid. The mtime is set last.
/// Attributes that already have the right value are not set again, which saves journal writes.
pub(super) fn apply(
    at: &Inode<'_>,
    attributes: Attributes<'_>,
    modified: Time,
    counts: &Counters,
) -> io::Result<()> {
    let mut mode = attributes.mode;
    let now = at.stat()?;
    let is_owned = (now.st_uid, now.st_gid) == (attributes.uid, attributes.gid);
    let owned = match owner(attributes) {
        Some(_) if is_owned => Ok(()),
        Some((uid, gid)) => at.chown(uid, gid),
        None => Err(Errno::INVAL),
    };
    match owned {
        Ok(()) => {}
        // EINVAL means that the owner has no mapping in this user namespace.
        Err(Errno::PERM | Errno::INVAL) => {
            add(&counts.owners, 1);
            // The owner cannot be set, so drop setuid and setgid: otherwise, the file would run as
            // the user that exports.
            if !matches!(at, Inode::Folder(_)) && mode & SET_ID != 0 {
                mode &= !SET_ID;
                add(&counts.modes, 1);
            }
        }
        Err(error) => return Err(error.into()),
    }
    for (name, value) in attributes.xattrs.iter() {
        match at.set_xattr(name, value) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => add(&counts.xattrs, 1),
            Err(error) => {
                return Err(too_large::attribute(at.file_system(), name, value, error));
            }
        }
    }
    // Set setuid again, since the change of the owner may have cleared it.
    if now.st_mode & 0o7777 != mode || mode & SET_ID != 0 {
        at.chmod(Mode::from_raw_mode(mode))?;
    }
    Ok(at.set_time(&times(modified))?)
}

/// Returns owner and group. Returns `None` if one of them is 2^32 - 1, by which chown(2) means "no
/// change".
pub(super) fn owner(attributes: Attributes<'_>) -> Option<(Uid, Gid)> {
    let known = attributes.uid != u32::MAX && attributes.gid != u32::MAX;
    known.then(|| (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid)))
}

fn times(modified: Time) -> Timestamps {
    let time = Timespec {
        tv_sec: modified.seconds,
        tv_nsec: modified.nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
