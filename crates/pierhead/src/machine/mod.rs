//! The machine as this process may use it: memory and processors, less what its control groups take away.

pub(crate) mod cgroup;
mod cores;
mod interface;
mod room;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use cgroup::Throttled;
use cgroup::{Controller, Group, Version, parse_bytes, parse_quota};
pub(crate) use cores::{Cores, list, stay_on};
pub(crate) use interface::{Interface, Lacking, all_addresses};
pub(crate) use room::Room;

/// Hundreds of mounts are a few dozen kilobytes; the rest is smaller by far.
const MAX_FILE: u64 = 1 << 20;

/// A bound that a group sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limit {
    /// Bytes.
    pub(crate) amount: u64,
    pub(crate) version: Version,
}

/// Processor time that a group gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Quota {
    /// Thousandths of a core.
    pub(crate) amount: u64,
    /// After which the kernel counts anew.
    pub(crate) period: Duration,
    /// Where it says how often it was used up.
    pub(crate) stat: PathBuf,
}

/// Read once, at the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Machine {
    /// Bytes; 0 where the kernel does not say.
    pub(crate) memory: u64,
    /// Of the control group, when that is less.
    pub(crate) memory_limit: Option<Limit>,
    /// Processors that this process may run on, by their numbers, ascending.
    pub(crate) cores: Vec<usize>,
    /// Processor time that the control group gives, when that is less.
    pub(crate) quota: Option<Quota>,
}

impl Machine {
    /// What the files below `root` say, which is `/` but in tests.
    pub(crate) fn read(root: &Path) -> Self {
        let proc = |name: &str| text(&root.join("proc").join(name)).unwrap_or_default();
        let (cgroup, mounts) = (proc("self/cgroup"), proc("self/mountinfo"));
        let memory = kibibytes(&proc("meminfo"), "MemTotal:") << 10;
        let status = proc("self/status");
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let cores = allowed.and_then(|list| cores::parse_list(list.trim()).ok());
        let cores = cores.unwrap_or_default();
        let folders = |controller| {
            let groups = Group::find(controller, &cgroup, &mounts);
            let folders = groups.into_iter().flat_map(|group| {
                let folders = group.folders().map(|it| (group.version, below(root, &it)));
                folders.collect::<Vec<_>>()
            });
            folders.collect::<Vec<_>>()
        };
        let limits = folders(Controller::Memory)
            .into_iter()
            .filter_map(|(version, folder)| {
                let names: &[&str] = match version {
                    Version::One => &["memory.limit_in_bytes"],
                    Version::Two => &["memory.max", "memory.high"],
                };
                let limits = names.iter().filter_map(|name| text(&folder.join(name)));
                let amount = limits.filter_map(|text| parse_bytes(&text)).min()?;
                Some(Limit { amount, version })
            });
        let memory_limit = limits.min_by_key(|limit| limit.amount);
        let quotas = folders(Controller::Cpu)
            .into_iter()
            .filter_map(|(version, folder)| {
                let of = |name| text(&folder.join(name));
                let (amount, period) = parse_quota(&match version {
                    Version::One => of("cpu.cfs_quota_us")? + &of("cpu.cfs_period_us")?,
                    Version::Two => of("cpu.max")?,
                })?;
                let stat = folder.join("cpu.stat");
                Some(Quota {
                    amount,
                    period,
                    stat,
                })
            });
        let quota = quotas.min_by_key(|quota| quota.amount);
        let whole = u64::try_from(cores.len()).unwrap_or(u64::MAX) * 1000;
        Self {
            memory,
            memory_limit: memory_limit.filter(|limit| memory == 0 || limit.amount < memory),
            quota: quota.filter(|quota| cores.is_empty() || quota.amount < whole),
            cores,
        }
    }

    /// Processors that can be busy at once, at least one.
    pub(crate) fn parallel(&self) -> usize {
        let cores = self.cores.len().max(1);
        let quota = self.quota.as_ref().map(|it| it.amount.div_ceil(1000));
        let quota = quota.and_then(|whole| usize::try_from(whole).ok());
        cores.min(quota.unwrap_or(cores)).max(1)
    }
}

/// An absolute path as if `root` were `/`.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A file of the kernel's; `None` when there is no such.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// `NAME   123 kB`, as in `/proc/meminfo` and `/proc/self/status`; 0 when it is not there.
pub(crate) fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn machine(files: &[(&str, &str)]) -> Machine {
        let root = tempfile::tempdir().unwrap();
        let always = [
            ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,6\n"),
        ];
        for (path, text) in always.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Machine::read(root.path())
    }

    #[test]
    fn without_groups_it_is_the_whole_machine() {
        let whole = machine(&[]);
        assert_eq!((whole.memory, whole.memory_limit), (16 << 20, None));
        assert_eq!(whole.cores, [0, 1, 2, 3, 6]);
        assert_eq!(whole.quota, None);
        assert_eq!(whole.parallel(), 5);
        assert_eq!(Machine::default().parallel(), 1);
    }

    #[test]
    fn a_line_of_kibibytes() {
        let status = "VmHWM:\t 7 kB\nVmRSS:\t  1234 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), 1234);
        assert_eq!(kibibytes("", "VmRSS:"), 0);
    }

    #[test]
    fn of_version_two_the_tightest_around_counts() {
        let mounts = (
            "proc/self/mountinfo",
            "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw\n",
        );
        let own = ("proc/self/cgroup", "0::/a/b\n");
        let found = machine(&[
            mounts,
            own,
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "9000000\n"),
            ("sys/fs/cgroup/a/memory.max", "8000000\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ]);
        let limit = Limit {
            amount: 8_000_000,
            version: Version::Two,
        };
        assert_eq!(found.memory_limit, Some(limit));
        assert_eq!(found.parallel(), 3);
        let quota = found.quota.unwrap();
        assert_eq!(
            (quota.amount, quota.period),
            (2500, Duration::from_millis(100))
        );
        assert!(quota.stat.ends_with("sys/fs/cgroup/a/b/cpu.stat"));
        // More than there is bounds nothing.
        let found = machine(&[
            mounts,
            own,
            ("sys/fs/cgroup/a/b/memory.max", "99999999999\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "500000 100000\n"),
        ]);
        assert_eq!((found.memory_limit, found.quota), (None, None));
    }

    #[test]
    fn version_one_has_files_and_hierarchies_of_its_own() {
        let found = machine(&[
            (
                "proc/self/mountinfo",
                "1 1 0:1 / /g/memory rw - cgroup c rw,memory\n2 1 0:2 /pod /g/cpu rw - cgroup c rw,cpu\n3 1 0:3 / /g/new rw - cgroup2 c rw\n",
            ),
            ("proc/self/cgroup", "4:memory:/a\n1:cpu:/pod/b\n0::/\n"),
            ("g/memory/a/memory.limit_in_bytes", "5000000\n"),
            ("g/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("g/cpu/b/cpu.cfs_quota_us", "25000\n"),
            ("g/cpu/b/cpu.cfs_period_us", "50000\n"),
        ]);
        let limit = Limit {
            amount: 5_000_000,
            version: Version::One,
        };
        assert_eq!(found.memory_limit, Some(limit));
        assert_eq!(found.parallel(), 1);
        let quota = found.quota.unwrap();
        assert_eq!(
            (quota.amount, quota.period),
            (500, Duration::from_millis(50))
        );
        assert!(quota.stat.ends_with("g/cpu/b/cpu.stat"));
    }
}
