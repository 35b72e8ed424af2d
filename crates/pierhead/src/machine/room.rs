//! What is left of the memory that the control groups of this process give.

use std::path::Path;

use super::cgroup::{Controller, Group, Version, parse_bytes};
use super::{below, text};

/// Of the group that has the least left. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub(crate) limit: u64,
    pub(crate) left: u64,
}

impl Room {
    /// As the files below `root` say, which is `/` but in tests; `None` where no group has a limit. What the page cache holds is given back when
    /// somebody wants it, and counts as left, as it does in the kernel's MemAvailable.
    pub(crate) fn read(root: &Path) -> Option<Self> {
        let proc = |name: &str| text(&root.join("proc/self").join(name)).unwrap_or_default();
        let groups = Group::find(Controller::Memory, &proc("cgroup"), &proc("mountinfo"));
        let rooms = groups.iter().flat_map(|group| {
            let folders = group.folders();
            folders.filter_map(|folder| of(group.version, &below(root, &folder)))
        });
        rooms.min_by_key(|room| room.left)
    }
}

fn of(version: Version, folder: &Path) -> Option<Room> {
    let (limits, used, prefix): (&[&str], _, _) = match version {
        Version::One => (
            &["memory.limit_in_bytes"],
            "memory.usage_in_bytes",
            "total_",
        ),
        Version::Two => (&["memory.max", "memory.high"], "memory.current", ""),
    };
    let read = |name: &str| text(&folder.join(name));
    let limits = limits.iter().filter_map(|name| parse_bytes(&read(name)?));
    let limit = limits.min()?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached = |name: &str| {
        let line = stat.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            (key.strip_prefix(prefix) == Some(name)).then_some(value)
        });
        line.and_then(|value| value.trim().parse().ok())
            .unwrap_or(0)
    };
    let given_back = u64::saturating_add(cached("active_file"), cached("inactive_file"));
    let used = parse_bytes(&read(used)?)?.saturating_sub(given_back);
    Some(Room {
        limit,
        left: limit.saturating_sub(used),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn room(files: &[(&str, &str)]) -> Option<Room> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Room::read(root.path())
    }

    #[test]
    fn the_group_with_the_least_left_counts_without_its_page_cache() {
        let two = [
            (
                "proc/self/mountinfo",
                "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw\n",
            ),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "700\n"),
            (
                "sys/fs/cgroup/a/b/memory.stat",
                "anon 300\nfile 400\nactive_file 100\ninactive_file 250\n",
            ),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "999999\n"),
        ];
        assert_eq!(
            room(&two),
            Some(Room {
                limit: 1000,
                left: 650
            })
        );
        let around = [
            ("sys/fs/cgroup/a/memory.max", "2000\n"),
            ("sys/fs/cgroup/a/memory.current", "1900\n"),
        ];
        assert_eq!(
            room(&[&two[..], &around].concat()),
            Some(Room {
                limit: 2000,
                left: 100
            })
        );
        let one = [
            (
                "proc/self/mountinfo",
                "1 1 0:1 / /g/memory rw - cgroup c rw,memory\n",
            ),
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("g/memory/a/memory.limit_in_bytes", "500\n"),
            ("g/memory/a/memory.usage_in_bytes", "450\n"),
            (
                "g/memory/a/memory.stat",
                "inactive_file 1\ntotal_inactive_file 40\ntotal_active_file 10\n",
            ),
        ];
        assert_eq!(
            room(&one),
            Some(Room {
                limit: 500,
                left: 100
            })
        );
        assert_eq!(room(&[]), None);
        assert_eq!(room(&two[..2]), None, "no limit");
    }
}
