//! Opens of files below a folder, in order, as the kernel reports them (fanotify).

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};
pub(super) use pierhead_bundle::api::MAX_TRACE as MAX_FILES;
use rustix::fs::{AtFlags, CWD, FileType, fstat, statat};

/// A watch over the file system of one folder.
pub(super) struct Watch {
    group: Fanotify,
    /// As this process reaches it, links resolved.
    root: PathBuf,
    seen: HashSet<(u64, u64)>,
    order: Vec<Vec<u8>>,
    /// The kernel dropped events.
    lost: bool,
}

impl Watch {
    /// From here on, opens are recorded.
    ///
    /// # Errors
    /// For people, with what to do.
    pub(super) fn over(root: &Path) -> Result<Self, String> {
        let shown = root.display();
        let root = root
            .canonicalize()
            .map_err(|error| format!("the root {shown}: {error}"))?;
        let flags = InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_UNLIMITED_QUEUE;
        let opened = EventFFlags::O_RDONLY | EventFFlags::O_LARGEFILE | EventFFlags::O_CLOEXEC;
        let group = Fanotify::init(flags, opened).map_err(|error| cannot_watch(&root, error))?;
        group
            .mark(
                MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM,
                MaskFlags::FAN_OPEN | MaskFlags::FAN_OPEN_EXEC,
                CWD,
                Some(root.as_path()),
            )
            .map_err(|error| cannot_watch(&root, error))?;
        Ok(Self {
            group,
            root,
            seen: HashSet::new(),
            order: Vec::new(),
            lost: false,
        })
    }

    /// Takes in all that has happened so far; waits for nothing.
    ///
    /// # Errors
    /// For people.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        loop {
            match self.group.read_events() {
                Ok(events) => events.iter().for_each(|event| self.saw(event)),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                // The kernel could not open one of the files for us: that event is gone, those behind it are not.
                Err(Errno::ENOENT | Errno::ESTALE | Errno::EACCES | Errno::ETXTBSY) => {}
                Err(error) => return Err(format!("cannot read what was opened: {error}")),
            }
        }
    }

    /// Paths below the root, without a slash at their head, in the order of the first open of each, and whether
    /// all were seen.
    pub(super) fn finish(self) -> (Vec<Vec<u8>>, bool) {
        (self.order, !self.lost)
    }

    fn saw(&mut self, event: &FanotifyEvent) {
        let Some(file) = event.fd() else {
            self.lost = true;
            return;
        };
        if self.order.len() >= MAX_FILES {
            self.lost = true;
            return;
        }
        let Ok(stat) = fstat(file) else { return };
        let key = (stat.st_dev, stat.st_ino);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || self.seen.contains(&key)
        {
            return;
        }
        if let Some(path) = self.below(file, key) {
            self.seen.insert(key);
            self.order.push(path);
        }
    }

    /// The path of an open file below the root. The kernel names it as seen from the opener's mount: from our
    /// root, or in a container from its own, so a name counts only if that very file is there.
    fn below(&self, file: BorrowedFd<'_>, key: (u64, u64)) -> Option<Vec<u8>> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = std::fs::read_link(link).ok()?;
        let mut candidates = [
            path.strip_prefix(&self.root).ok(),
            path.strip_prefix("/").ok(),
        ]
        .into_iter()
        .flatten();
        let found = candidates.find(|relative| {
            let here = self.root.join(relative);
            statat(CWD, &here, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == key)
        })?;
        Some(found.as_os_str().as_bytes().to_vec())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

fn cannot_watch(root: &Path, error: Errno) -> String {
    let root = root.display();
    match error {
        Errno::EPERM => {
            "recording what a start opens needs root (CAP_SYS_ADMIN): run it with sudo, in no container".to_owned()
        }
        Errno::ENOSYS => "this kernel has no fanotify".to_owned(),
        Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EXDEV | Errno::ENODEV => format!(
            "the file system of {root} cannot be watched ({error}): Linux 5.1 or later, and a local file system, can"
        ),
        Errno::EMFILE => "too many watches of this user: see /proc/sys/fs/fanotify/max_user_groups".to_owned(),
        other => format!("cannot watch {root}: {other}"),
    }
}
