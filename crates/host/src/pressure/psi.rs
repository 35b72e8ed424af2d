//! Reads the kernel's pressure stall information (PSI): how long tasks waited for memory, a CPU or
//! the disk.
//!
//! The kernel counts the waiting times of the host (`/proc/pressure`) and of each version-2 cgroup.
//! On some hosts, the kernel also counts the waiting times of version-1 cgroups, in the file
//! `memory.pressure` beside the limits of the cgroup. The reader returns the highest of these
//! pressures. The reader computes differences of the totals, because the kernel's averages lag by
//! ten seconds.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup::{Cgroup, Controller};
use crate::kernel_file::{below, read_kernel_file};

/// A resource that tasks wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Memory, as a resource that tasks wait for.
    Memory,
    /// CPU time, as a resource that tasks wait for.
    Cpu,
    /// Disk I/O, as a resource that tasks wait for.
    Io,
}

impl Resource {
    /// All resources that tasks wait for.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Io];

    /// Returns the name of the resource in the kernel's interface.
    pub fn name(self) -> &'static str {
        self.controller().name()
    }

    fn controller(self) -> Controller {
        match self {
            Self::Memory => Controller::Memory,
            Self::Cpu => Controller::Cpu,
            Self::Io => Controller::Io,
        }
    }
}

/// The shares of a time interval in which tasks waited for a resource. A share is from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stall {
    /// The share of the interval in which at least one task waited.
    pub some: f64,
    /// The share of the interval in which no task could run, because all tasks waited.
    pub full: f64,
}

/// The total time in which tasks waited since the start of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Totals {
    some: Duration,
    full: Duration,
}

/// Reads the pressure of one resource in the time between two reads.
pub struct PressureReader {
    /// For each file, the totals and the time of the previous read.
    files: Vec<(PathBuf, Option<(Totals, Instant)>)>,
}

impl PressureReader {
    /// Finds the pressure files of the host and of this process's cgroup below `root`, which is
    /// `/`, or a simulated folder in tests. `None` if the kernel does not count pressure (which
    /// requires `CONFIG_PSI` and perhaps the kernel parameter `psi=1`).
    pub fn find(resource: Resource, root: &Path) -> Option<Self> {
        let machine = root.join("proc/pressure").join(resource.name());
        let files = std::iter::once(machine).chain(cgroup_files(resource, root));
        let mut files: Vec<_> = files.map(|it| (it, None)).collect();
        files.retain(|(path, _)| read_totals(path).is_some());
        (!files.is_empty()).then_some(Self { files })
    }

    /// Returns the highest pressure since the previous read. `None` at the first read. Does not
    /// block, because the kernel holds these files in memory.
    pub fn read(&mut self, now: Instant) -> Option<Stall> {
        let mut highest = None::<Stall>;
        for (path, before) in &mut self.files {
            let Some(totals) = read_totals(path) else {
                continue;
            };
            let Some((earlier, then)) = before.replace((totals, now)) else {
                continue;
            };
            let passed = now.saturating_duration_since(then);
            let share = |later: Duration, earlier: Duration| {
                let waited = later.saturating_sub(earlier).as_secs_f64();
                let share = waited / passed.as_secs_f64();
                // The clocks of the kernel and of the process differ a little, and the interval can
                // be empty. Therefore a share can be above 1, infinite or not a number.
                if share.is_finite() {
                    share.min(1.0)
                } else {
                    0.0
                }
            };
            let stall = Stall {
                some: share(totals.some, earlier.some),
                full: share(totals.full, earlier.full),
            };
            let highest_so_far = highest.get_or_insert(stall);
            highest_so_far.some = highest_so_far.some.max(stall.some);
            highest_so_far.full = highest_so_far.full.max(stall.full);
        }
        highest
    }
}

/// Returns the pressure files of the cgroups of this process.
fn cgroup_files(resource: Resource, root: &Path) -> impl Iterator<Item = PathBuf> {
    let proc =
        |name: &str| read_kernel_file(&root.join("proc/self").join(name)).unwrap_or_default();
    let found = Cgroup::find(resource.controller(), &proc("cgroup"), &proc("mountinfo"));
    found.into_iter().filter_map(move |group| {
        let folder = group.folders().next()?;
        Some(below(root, &folder).join(format!("{}.pressure", resource.name())))
    })
}

fn read_totals(path: &Path) -> Option<Totals> {
    parse(&read_kernel_file(path)?)
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`, and usually a line `full` of
/// the same form.
fn parse(text: &str) -> Option<Totals> {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let words = line.split_whitespace();
        let total = words
            .filter_map(|word| word.strip_prefix("total="))
            .next()?;
        total.parse().ok().map(Duration::from_micros)
    };
    Some(Totals {
        some: total("some ")?,
        full: total("full ").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(path: PathBuf, some: u64, full: u64) {
        let line =
            |kind, total| format!("{kind} avg10=1.00 avg60=0.50 avg300=0.10 total={total}\n");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, line("some", some) + &line("full", full)).unwrap();
    }

    #[test]
    fn a_read_returns_the_stall_since_the_previous_read() {
        let root = tempfile::tempdir().unwrap();
        let machine = root.path().join("proc/pressure/memory");
        put(machine.clone(), 5_000_000, 1_000_000);
        let mut reader = PressureReader::find(Resource::Memory, root.path()).unwrap();
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(reader.read(begin), None);
        put(machine.clone(), 5_500_000, 1_100_000);
        let stalled = reader.read(after(2)).unwrap();
        assert!((stalled.some - 0.25).abs() < 1e-9 && (stalled.full - 0.05).abs() < 1e-9);
        // The first read has no elapsed time. At the second read, the totals have decreased.
        assert_eq!(reader.read(after(2)), Some(Stall::default()));
        put(machine, 0, 0);
        assert_eq!(reader.read(after(4)), Some(Stall::default()));
    }

    #[test]
    fn the_higher_pressure_of_host_and_cgroup_is_returned() {
        let root = tempfile::tempdir().unwrap();
        let machine = root.path().join("proc/pressure/memory");
        let own = root.path().join("sys/fs/cgroup/a.slice/b/memory.pressure");
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(
            root.path().join("proc/self/cgroup"),
            "4:memory:/old\n0::/a.slice/b\n",
        )
        .unwrap();
        fs::write(
            root.path().join("proc/self/mountinfo"),
            "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 c rw\n",
        )
        .unwrap();
        put(machine.clone(), 0, 0);
        put(own.clone(), 0, 0);
        let mut reader = PressureReader::find(Resource::Memory, root.path()).unwrap();
        let begin = Instant::now();
        reader.read(begin);
        put(machine, 100_000, 90_000);
        put(own, 300_000, 0);
        let stalled = reader.read(begin + Duration::from_secs(1)).unwrap();
        assert!((stalled.some - 0.3).abs() < 1e-9 && (stalled.full - 0.09).abs() < 1e-9);
    }

    #[test]
    fn files_that_are_missing_or_invalid_give_no_reader() {
        let root = tempfile::tempdir().unwrap();
        assert!(PressureReader::find(Resource::Memory, root.path()).is_none());
        let path = root.path().join("proc/pressure/memory");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for text in [
            "",
            "full total=1\n",
            "some avg10=0.00 total=x\n",
            "some total=-1\n",
        ] {
            fs::write(&path, text).unwrap();
            assert!(
                PressureReader::find(Resource::Memory, root.path()).is_none(),
                "{text:?}"
            );
        }
        fs::write(&path, "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n").unwrap();
        assert!(PressureReader::find(Resource::Memory, root.path()).is_some());
    }

    #[test]
    fn totals_are_parsed_from_all_forms_of_the_file() {
        let totals = |some, full| {
            Some(Totals {
                some: Duration::from_micros(some),
                full: Duration::from_micros(full),
            })
        };
        for (text, expected) in [
            (
                "some avg10=0.00 total=7\nfull avg10=0.00 total=3\n",
                totals(7, 3),
            ),
            // Before Linux 5.13, the file of the CPU has no line `full`.
            (
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
                totals(7, 0),
            ),
            ("full total=3\nsome total=7", totals(7, 3)),
            ("some total=7 added=1\r\nfull total=3\r\n", totals(7, 3)),
            ("some avg10=0.00\nfull total=3\n", None),
            ("something total=7\n", None),
            ("some total=99999999999999999999\n", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
