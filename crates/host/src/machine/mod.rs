//! The memory and CPUs of the host that this process may use, within the limits of its cgroups.

mod cores;
mod memory_headroom;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cores::{CpuSelection, bind_to_cores, format_cpu_list};
pub use memory_headroom::MemoryHeadroom;

use crate::cgroup::{Cgroup, Controller, Version, parse_bytes, parse_quota};
use crate::kernel_file::{below, kibibytes, read_kernel_file};

/// The memory limit of a cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// The memory limit in bytes.
    pub amount: u64,
    /// The version of the cgroup that sets the limit.
    pub version: Version,
}

/// The CPU limit of a cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuLimit {
    /// The CPU limit in thousandths of a core.
    pub amount: u64,
    /// The period of the quota.
    pub period: Duration,
    /// The path of the file `cpu.stat`, which counts how often the kernel throttled the cgroup.
    pub stat: PathBuf,
}

/// Memory and CPUs of the host, read once at the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// Bytes of memory of the host. 0 if the number is unknown.
    pub memory: u64,
    /// The memory limit of the cgroup, if it is lower than `memory`.
    pub memory_limit: Option<MemoryLimit>,
    /// Numbers of the CPUs on which this process may run, in ascending order.
    pub cores: Vec<usize>,
    /// The CPU limit of the cgroup, if it is lower than the number of CPUs.
    pub cpu_limit: Option<CpuLimit>,
}

impl Machine {
    /// Reads the files below `root`, which is `/`, or a simulated folder in tests.
    pub fn read(root: &Path) -> Self {
        let proc = |name: &str| read_kernel_file(&root.join("proc").join(name)).unwrap_or_default();
        let (cgroup, mounts) = (proc("self/cgroup"), proc("self/mountinfo"));
        let memory = kibibytes(&proc("meminfo"), "MemTotal:") << 10;
        let status = proc("self/status");
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let cores = allowed.and_then(|list| cores::parse_cpu_list(list.trim()).ok());
        let cores = cores.unwrap_or_default();
        let folders = |controller| {
            let groups = Cgroup::find(controller, &cgroup, &mounts);
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
                let limits = names
                    .iter()
                    .filter_map(|name| read_kernel_file(&folder.join(name)));
                let amount = limits.filter_map(|text| parse_bytes(&text)).min()?;
                Some(MemoryLimit { amount, version })
            });
        let memory_limit = limits.min_by_key(|limit| limit.amount);
        let quotas = folders(Controller::Cpu)
            .into_iter()
            .filter_map(|(version, folder)| {
                let of = |name| read_kernel_file(&folder.join(name));
                let (amount, period) = parse_quota(&match version {
                    Version::One => of("cpu.cfs_quota_us")? + &of("cpu.cfs_period_us")?,
                    Version::Two => of("cpu.max")?,
                })?;
                let stat = folder.join("cpu.stat");
                Some(CpuLimit {
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
            cpu_limit: quota.filter(|quota| cores.is_empty() || quota.amount < whole),
            cores,
        }
    }

    /// Returns the number of CPUs that can be busy at the same time, at least 1.
    pub fn parallel(&self) -> usize {
        let cores = self.cores.len().max(1);
        let quota = self.cpu_limit.as_ref().map(|it| it.amount.div_ceil(1000));
        let quota = quota.and_then(|whole| usize::try_from(whole).ok());
        cores.min(quota.unwrap_or(cores)).max(1)
    }
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
    fn without_cgroups_the_machine_has_no_limits() {
        let whole = machine(&[]);
        assert_eq!((whole.memory, whole.memory_limit), (16 << 20, None));
        assert_eq!(whole.cores, [0, 1, 2, 3, 6]);
        assert_eq!(whole.cpu_limit, None);
        assert_eq!(whole.parallel(), 5);
        assert_eq!(Machine::default().parallel(), 1);
    }

    #[test]
    fn the_lowest_limit_of_a_version_2_cgroup_and_its_ancestors_counts() {
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
        let limit = MemoryLimit {
            amount: 8_000_000,
            version: Version::Two,
        };
        assert_eq!(found.memory_limit, Some(limit));
        assert_eq!(found.parallel(), 3);
        let quota = found.cpu_limit.unwrap();
        assert_eq!(
            (quota.amount, quota.period),
            (2500, Duration::from_millis(100))
        );
        assert!(quota.stat.ends_with("sys/fs/cgroup/a/b/cpu.stat"));
        // Limits above the resources of the machine are ignored.
        let found = machine(&[
            mounts,
            own,
            ("sys/fs/cgroup/a/b/memory.max", "99999999999\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "500000 100000\n"),
        ]);
        assert_eq!((found.memory_limit, found.cpu_limit), (None, None));
    }

    #[test]
    fn version_1_limits_are_read_from_the_hierarchy_of_each_controller() {
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
        let limit = MemoryLimit {
            amount: 5_000_000,
            version: Version::One,
        };
        assert_eq!(found.memory_limit, Some(limit));
        assert_eq!(found.parallel(), 1);
        let quota = found.cpu_limit.unwrap();
        assert_eq!(
            (quota.amount, quota.period),
            (500, Duration::from_millis(50))
        );
        assert!(quota.stat.ends_with("g/cpu/b/cpu.stat"));
    }
}
