//! Pressure stall information: which share of the time somebody had to wait for a resource, by the kernel's own count.
//!
//! The kernel counts for the machine (`/proc/pressure`) and for each group of version 2, some also for those of version 1
//! (`memory.pressure` beside the limits); what presses harder counts. Its averages lag by their ten seconds; the differences of its totals do not.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::machine::cgroup::{Controller, Group};
use crate::machine::{below, text};

/// What somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    Memory,
    Cpu,
    Io,
}

impl Resource {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Io];

    /// The kernel's.
    pub(crate) fn name(self) -> &'static str {
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

/// Shares of a time, from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Stalled {
    /// In which at least one task waited.
    pub(crate) some: f64,
    /// In which all that wanted to work waited.
    pub(crate) full: f64,
}

/// Time in which somebody waited, since the machine was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Totals {
    some: Duration,
    full: Duration,
}

/// A resource, watched: each look tells of the time since the one before.
pub(crate) struct Stalls {
    /// With what was read last, and when.
    places: Vec<(PathBuf, Option<(Totals, Instant)>)>,
}

impl Stalls {
    /// Of the machine and of this process's own group, below `root`, which is `/` but in tests. `None` where the kernel does not count
    /// (`CONFIG_PSI`, `psi=1`).
    pub(crate) fn of(resource: Resource, root: &Path) -> Option<Self> {
        let machine = root.join("proc/pressure").join(resource.name());
        let files = std::iter::once(machine).chain(groups(resource, root));
        let mut places: Vec<_> = files.map(|it| (it, None)).collect();
        places.retain(|(path, _)| read(path).is_some());
        (!places.is_empty()).then_some(Self { places })
    }

    /// What presses hardest since the last look; `None` at the first. Reads a file or two of the kernel's, which does
    /// not wait for any disk.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Stalled> {
        let mut hardest = None::<Stalled>;
        for (path, before) in &mut self.places {
            let Some(totals) = read(path) else { continue };
            let Some((earlier, then)) = before.replace((totals, now)) else {
                continue;
            };
            let passed = now.saturating_duration_since(then);
            let share = |later: Duration, earlier: Duration| {
                let waited = later.saturating_sub(earlier).as_secs_f64();
                let share = waited / passed.as_secs_f64();
                // The kernel's clock and ours differ by little, and no time at all may have passed.
                if share.is_finite() {
                    share.min(1.0)
                } else {
                    0.0
                }
            };
            let here = Stalled {
                some: share(totals.some, earlier.some),
                full: share(totals.full, earlier.full),
            };
            let most = hardest.get_or_insert(here);
            most.some = most.some.max(here.some);
            most.full = most.full.max(here.full);
        }
        hardest
    }
}

/// Where the groups of this process count, if they do.
fn groups(resource: Resource, root: &Path) -> impl Iterator<Item = PathBuf> {
    let proc = |name: &str| text(&root.join("proc/self").join(name)).unwrap_or_default();
    let found = Group::find(resource.controller(), &proc("cgroup"), &proc("mountinfo"));
    found.into_iter().filter_map(move |group| {
        let folder = group.folders().next()?;
        Some(below(root, &folder).join(format!("{}.pressure", resource.name())))
    })
}

fn read(path: &Path) -> Option<Totals> {
    parse(&text(path)?)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`, and mostly a line `full` like it.
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
    fn a_look_tells_of_the_time_since_the_one_before() {
        let root = tempfile::tempdir().unwrap();
        let machine = root.path().join("proc/pressure/memory");
        put(machine.clone(), 5_000_000, 1_000_000);
        let mut stalls = Stalls::of(Resource::Memory, root.path()).unwrap();
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(stalls.look(begin), None);
        put(machine.clone(), 5_500_000, 1_100_000);
        let stalled = stalls.look(after(2)).unwrap();
        assert!((stalled.some - 0.25).abs() < 1e-9 && (stalled.full - 0.05).abs() < 1e-9);
        // Twice at once, and one that counts backwards.
        assert_eq!(stalls.look(after(2)), Some(Stalled::default()));
        put(machine, 0, 0);
        assert_eq!(stalls.look(after(4)), Some(Stalled::default()));
    }

    #[test]
    fn what_presses_harder_counts_be_it_the_machine_or_the_group() {
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
        let mut stalls = Stalls::of(Resource::Memory, root.path()).unwrap();
        let begin = Instant::now();
        stalls.look(begin);
        put(machine, 100_000, 90_000);
        put(own, 300_000, 0);
        let stalled = stalls.look(begin + Duration::from_secs(1)).unwrap();
        assert!((stalled.some - 0.3).abs() < 1e-9 && (stalled.full - 0.09).abs() < 1e-9);
    }

    #[test]
    fn where_the_kernel_does_not_count_there_is_nothing_to_look_at() {
        let root = tempfile::tempdir().unwrap();
        assert!(Stalls::of(Resource::Memory, root.path()).is_none());
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
                Stalls::of(Resource::Memory, root.path()).is_none(),
                "{text:?}"
            );
        }
        fs::write(&path, "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n").unwrap();
        assert!(Stalls::of(Resource::Memory, root.path()).is_some());
    }
}
