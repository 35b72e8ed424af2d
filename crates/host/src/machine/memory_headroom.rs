//! Reads how much memory is left below the limits of this process's cgroups.

use std::path::Path;

use crate::cgroup::{Cgroup, Controller, Version, parse_bytes};
use crate::kernel_file::{below, read_kernel_file};

/// The limit and the remaining memory in bytes of one cgroup. Among the cgroups of this process, it
/// is the cgroup with the least remaining memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryHeadroom {
    /// The memory limit of the cgroup.
    pub limit: u64,
    /// Number of bytes that remain below the limit.
    pub left: u64,
}

impl MemoryHeadroom {
    /// Reads the files below `root`, which is `/`, or a simulated folder in tests. `None` if there
    /// is no limit. The page cache counts as free memory, in the same way as in the kernel's value
    /// MemAvailable.
    pub fn read(root: &Path) -> Option<Self> {
        let proc =
            |name: &str| read_kernel_file(&root.join("proc/self").join(name)).unwrap_or_default();
        let groups = Cgroup::find(Controller::Memory, &proc("cgroup"), &proc("mountinfo"));
        let headrooms = groups.iter().flat_map(|group| {
            let folders = group.folders();
            folders.filter_map(|folder| headroom_of(group.version, &below(root, &folder)))
        });
        headrooms.min_by_key(|it| it.left)
    }
}

fn headroom_of(version: Version, folder: &Path) -> Option<MemoryHeadroom> {
    let (limits, used, prefix): (&[&str], _, _) = match version {
        Version::One => (
            &["memory.limit_in_bytes"],
            "memory.usage_in_bytes",
            "total_",
        ),
        Version::Two => (&["memory.max", "memory.high"], "memory.current", ""),
    };
    let read = |name: &str| read_kernel_file(&folder.join(name));
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
    let page_cache = u64::saturating_add(cached("active_file"), cached("inactive_file"));
    let used = parse_bytes(&read(used)?)?.saturating_sub(page_cache);
    Some(MemoryHeadroom {
        limit,
        left: limit.saturating_sub(used),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn headroom(files: &[(&str, &str)]) -> Option<MemoryHeadroom> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        MemoryHeadroom::read(root.path())
    }

    #[test]
    fn the_cgroup_with_the_least_memory_left_counts_without_page_cache() {
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
            headroom(&two),
            Some(MemoryHeadroom {
                limit: 1000,
                left: 650
            })
        );
        let parent = [
            ("sys/fs/cgroup/a/memory.max", "2000\n"),
            ("sys/fs/cgroup/a/memory.current", "1900\n"),
        ];
        assert_eq!(
            headroom(&[&two[..], &parent].concat()),
            Some(MemoryHeadroom {
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
            headroom(&one),
            Some(MemoryHeadroom {
                limit: 500,
                left: 100
            })
        );
        assert_eq!(headroom(&[]), None);
        assert_eq!(headroom(&two[..2]), None, "no limit");
    }

    #[test]
    fn usage_above_the_limit_and_damaged_files_give_no_wrong_headroom() {
        let read = |limit: &str, used: &str, stat: &str| {
            headroom(&[
                (
                    "proc/self/mountinfo",
                    "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw\n",
                ),
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/memory.max", limit),
                ("sys/fs/cgroup/a/memory.current", used),
                ("sys/fs/cgroup/a/memory.stat", stat),
            ])
        };
        let left = |found: Option<MemoryHeadroom>| found.map(|it| it.left);
        assert_eq!(left(read("1000\n", "1200\n", "")), Some(0));
        // In this case, the page cache is larger than the usage: this can happen because the kernel
        // updates the two files one after the other.
        assert_eq!(left(read("1000", "700", "active_file 900\n")), Some(1000));
        let huge = format!("active_file {0}\ninactive_file {0}\n", u64::MAX);
        assert_eq!(left(read("1000", "700", &huge)), Some(1000));
        for stat in ["active_file x\n", "active_file\n", "anon 5\n\n"] {
            assert_eq!(left(read("1000", "700", stat)), Some(300), "{stat:?}");
        }
        for (limit, used) in [("", "700"), ("max", "700"), ("1000", ""), ("1000", "-1")] {
            assert_eq!(read(limit, used, ""), None, "{limit:?} {used:?}");
        }
    }
}
