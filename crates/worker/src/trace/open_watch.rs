//! Records the opens of files below a folder, in order, through fanotify.
//!
//! The code uses an open descriptor of the folder, and not its path. A path such as
//! `/proc/PID/root` leads into another mount namespace. If this path were resolved to text (`/`),
//! the text would name a folder of this machine.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};
use pierhead_bundle::api::MAX_TRACE;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};

/// An open descriptor of the folder with an image's file tree.
#[derive(Debug)]
pub(super) struct ImageRoot {
    folder: File,
    /// The path of the folder, for messages to the user.
    shown: PathBuf,
}

impl ImageRoot {
    /// Opens a folder by its path.
    ///
    /// # Errors
    /// A message for the user.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty())
            .map_err(|error| format!("the root {}: {error}", path.display()))?;
        Ok(Self {
            folder: folder.into(),
            shown: path.to_owned(),
        })
    }

    /// Opens the root folder of a process, in the mount namespace of the process.
    ///
    /// # Errors
    /// A message for the user, with advice.
    pub(super) fn of_process(pid: u32) -> Result<Self, String> {
        Self::open(Path::new(&format!("/proc/{pid}/root")))
            .map_err(|error| format!("{error}: reading it needs root (sudo)"))
    }

    /// Whether this folder is the root of this machine, and so belongs to no image.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) fn is_of_this_machine(&self) -> std::io::Result<bool> {
        let id = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        let own = id(&self.folder)?;
        // If this process itself runs in a container, the root of the machine is the root of
        // process 1.
        let mut machine = ["/", "/proc/1/root"]
            .into_iter()
            .filter_map(|path| File::open(path).ok());
        Ok(machine.any(|folder| id(&folder).is_ok_and(|id| id == own)))
    }

    /// Returns the path of the root folder, for messages.
    pub(super) fn display(&self) -> std::path::Display<'_> {
        self.shown.display()
    }

    /// Opens a path below the root (`O_PATH`) on the same mount. Other mounts below the root
    /// (volumes, `/proc`, a bind mount over `/etc/resolv.conf`) do not belong to the image.
    fn open_below(&self, relative: &Path) -> rustix::io::Result<File> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        openat2(&self.folder, relative, flags, Mode::empty(), within).map(File::from)
    }
}

/// Returns the path of an open file as the kernel reports it, which is relative to the root of the
/// mount namespace in which the file was opened.
fn path_of(file: BorrowedFd<'_>) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// A watch over the file system of one folder.
pub(super) struct OpenWatch {
    fanotify: Fanotify,
    root: ImageRoot,
    recorded: HashSet<(u64, u64)>,
    order: Vec<Vec<u8>>,
    /// Whether the kernel dropped events, or the list of paths has reached its maximum length.
    has_lost_events: bool,
}

impl OpenWatch {
    /// Starts to record opens of files.
    ///
    /// # Errors
    /// A message for the user, with advice.
    pub(super) fn new(root: ImageRoot) -> Result<Self, String> {
        root.open_below(Path::new("."))
            .map_err(|error| match error {
                rustix::io::Errno::NOSYS | rustix::io::Errno::PERM => {
                    format!(
                        "this system has no openat2 ({error}): recording needs Linux 5.6 or later"
                    )
                }
                other => format!("the root {}: {other}", root.display()),
            })?;
        let flags = InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_UNLIMITED_QUEUE;
        let opened = EventFFlags::O_RDONLY | EventFFlags::O_LARGEFILE | EventFFlags::O_CLOEXEC;
        let fanotify = Fanotify::init(flags, opened).map_err(|error| cannot_watch(&root, error))?;
        fanotify
            .mark(
                MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM,
                MaskFlags::FAN_OPEN | MaskFlags::FAN_OPEN_EXEC,
                &root.folder,
                None::<&Path>,
            )
            .map_err(|error| cannot_watch(&root, error))?;
        Ok(Self {
            fanotify,
            root,
            recorded: HashSet::new(),
            order: Vec::new(),
            has_lost_events: false,
        })
    }

    /// Returns the root folder whose opens are recorded.
    pub(super) fn root(&self) -> &ImageRoot {
        &self.root
    }

    /// Reads all pending events. Does not wait for further events.
    ///
    /// # Errors
    /// A message for the user.
    pub(super) fn read_pending(&mut self) -> Result<(), String> {
        loop {
            match self.fanotify.read_events() {
                Ok(events) => events.iter().for_each(|event| self.record(event)),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                // The kernel could not open the file of one event for this process. Only this event
                // is lost.
                Err(Errno::ENOENT | Errno::ESTALE | Errno::EACCES | Errno::ETXTBSY) => {}
                Err(error) => return Err(format!("cannot read the events of fanotify: {error}")),
            }
        }
    }

    /// Returns the paths below the root, without a leading slash, in the order in which each was
    /// first opened. Also returns whether events were lost.
    pub(super) fn finish(self) -> (Vec<Vec<u8>>, bool) {
        (self.order, self.has_lost_events)
    }

    fn record(&mut self, event: &FanotifyEvent) {
        let Some(file) = event.fd() else {
            self.has_lost_events = true;
            return;
        };
        if self.order.len() >= MAX_TRACE {
            self.has_lost_events = true;
            return;
        }
        let Ok(stat) = fstat(file) else { return };
        let key = (stat.st_dev, stat.st_ino);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || self.recorded.contains(&key)
        {
            return;
        }
        if let Some(path) = self.below(file, key) {
            self.recorded.insert(key);
            self.order.push(path);
        }
    }

    /// Returns the path of an open file, relative to the root. The mount namespace of the process
    /// that opened the file is unknown. So the function tries the kernel's path in two ways: as a
    /// path below the root in this process, and as a path relative to the root itself. A path is
    /// valid only if it leads to the same inode.
    fn below(&self, file: BorrowedFd<'_>, key: (u64, u64)) -> Option<Vec<u8>> {
        let path = path_of(file)?;
        // The path of the root is not cached, because it changes when the mount namespace of a
        // container ends.
        let root = path_of(self.root.folder.as_fd());
        let mut candidates = [
            root.as_ref().and_then(|root| path.strip_prefix(root).ok()),
            path.strip_prefix("/").ok(),
        ]
        .into_iter()
        .flatten();
        let found = candidates.find(|relative| {
            let found = self.root.open_below(relative).and_then(fstat);
            found.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == key)
        })?;
        Some(found.as_os_str().as_bytes().to_vec())
    }
}

impl AsFd for OpenWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fanotify.as_fd()
    }
}

fn cannot_watch(root: &ImageRoot, error: Errno) -> String {
    let root = root.display();
    match error {
        Errno::EPERM => {
            "recording needs root (CAP_SYS_ADMIN): run pierhead with sudo, outside of containers"
                .to_owned()
        }
        Errno::ENOSYS => {
            "this kernel has no fanotify: recording needs a kernel with CONFIG_FANOTIFY".to_owned()
        }
        Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EXDEV | Errno::ENODEV => format!(
            "the file system of {root} cannot be watched ({error}): it needs Linux 5.1 or later, and a local file system"
        ),
        Errno::EMFILE => {
            "this user has too many fanotify groups: raise /proc/sys/fs/fanotify/max_user_groups"
                .to_owned()
        }
        other => format!("cannot watch {root}: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_this_machine_is_recognized() {
        let root = ImageRoot::of_process(std::process::id()).expect("a root");
        assert!(root.is_of_this_machine().expect("a folder"));
        let folder = tempfile::tempdir().expect("a folder");
        let root = ImageRoot::open(folder.path()).expect("a root");
        assert!(!root.is_of_this_machine().expect("a folder"));
    }

    #[test]
    fn links_out_of_the_root_and_mounts_below_it_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/etc", folder.path().join("etc")).expect("a link");
        let root = ImageRoot::open(folder.path()).expect("a root");
        for outside in ["etc/passwd", "../etc/passwd"] {
            assert!(root.open_below(Path::new(outside)).is_err(), "{outside}");
        }
        let root = ImageRoot::open(Path::new("/")).expect("a root");
        assert!(root.open_below(Path::new("proc")).is_err());
    }
}
