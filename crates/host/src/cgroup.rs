//! Linux cgroups (version 1 and 2) of this process: finds the folders with the limits of memory,
//! CPU and I/O, and parses the files in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The version of the cgroup interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// cgroup version 1 has one hierarchy for each controller.
    One,
    /// cgroup version 2 has one hierarchy for all controllers.
    Two,
}

/// A resource that a cgroup limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Controller {
    /// The controller that limits memory.
    Memory,
    /// The controller that limits CPU time.
    Cpu,
    /// The controller that limits disk I/O, whose name in version 1 is `blkio`.
    Io,
}

impl Controller {
    /// Returns the name of the controller in version 2.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Io => "io",
        }
    }

    /// Returns the name of the controller in version 1.
    fn old_name(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }
}

/// A cgroup in one hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cgroup {
    /// The version of the hierarchy that contains the cgroup.
    pub version: Version,
    /// The mount point of the hierarchy: the highest cgroup that this process sees.
    top: PathBuf,
    /// The path of the cgroup below the mount point.
    inside: PathBuf,
}

impl Cgroup {
    /// Returns the folder of the cgroup, then the folder of each ancestor. The limits of the
    /// ancestors apply to the process, too.
    pub fn folders(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.inside.ancestors().map(|inside| self.top.join(inside))
    }

    /// Finds the cgroups of a process that limit `controller`. The result has a cgroup of version
    /// 1, a cgroup of version 2, or both.
    ///
    /// `cgroup` is the text of `/proc/self/cgroup`. `mounts` is the text of `/proc/self/mountinfo`.
    pub fn find(controller: Controller, cgroup: &str, mounts: &str) -> Vec<Self> {
        cgroup
            .lines()
            .filter_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                let version = match controllers {
                    "" => Version::Two,
                    names if names.split(',').any(|it| it == controller.old_name()) => Version::One,
                    _ => return None,
                };
                let (root, top) = mount(version, controller, Path::new(path), mounts)?;
                Some(Self {
                    version,
                    top,
                    inside: inside(path, &root),
                })
            })
            .collect()
    }
}

/// Returns the part of a cgroup's path below the root of the mount. In a container without a cgroup
/// namespace, the mount can show another part of the hierarchy. In this case, the mount point is
/// the nearest visible cgroup.
fn inside(path: &str, root: &Path) -> PathBuf {
    let path = Path::new(path);
    let below = path.strip_prefix(root).unwrap_or(Path::new(""));
    let is_plain = below
        .components()
        .all(|part| matches!(part, std::path::Component::Normal(_)));
    if is_plain {
        below.to_owned()
    } else {
        PathBuf::new()
    }
}

/// Returns the root of the mounted part of the hierarchy, and the mount point. The page proc(5)
/// describes the format of the mount table.
///
/// A container can have several mounts. Chooses the mount whose root is the longest path above the
/// cgroup at `path`. If no root is above this cgroup, chooses the first mount.
fn mount(
    version: Version,
    controller: Controller,
    path: &Path,
    mounts: &str,
) -> Option<(PathBuf, PathBuf)> {
    let all = mounts.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = file_system.split(' ');
        let (kind, _, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_hierarchy = match version {
            Version::Two => kind == "cgroup2",
            Version::One => {
                kind == "cgroup" && options.split(',').any(|it| it == controller.old_name())
            }
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        is_hierarchy.then(|| (unescape(root), unescape(point)))
    });
    let depth = |root: &Path| match path.starts_with(root) {
        true => root.components().count(),
        false => 0,
    };
    // `max_by_key` returns the last of several equal maxima. The order is reversed, so that the
    // result is the first of several equal mounts.
    let all: Vec<_> = all.collect();
    all.into_iter().rev().max_by_key(|(root, _)| depth(root))
}

/// Decodes blanks, tabs, line feeds and backslashes, which the kernel encodes as a backslash and
/// three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut plain = text.to_owned();
    for (code, sign) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        plain = plain.replace(code, sign);
    }
    PathBuf::from(plain)
}

/// Parses the bytes of `memory.max` and `memory.high` (version 2) or `memory.limit_in_bytes`
/// (version 1). `None` if there is no limit.
pub fn parse_bytes(text: &str) -> Option<u64> {
    // If there is no limit, version 1 states the largest possible number of pages, in bytes.
    const UNLIMITED: u64 = 1 << 60;
    let bytes = text.trim().parse().ok()?;
    (bytes < UNLIMITED).then_some(bytes)
}

/// Parses a CPU quota. Returns the quota in thousandths of a core, and the period of the quota. The
/// text is `cpu.max` (version 2), or `cpu.cfs_quota_us` followed by `cpu.cfs_period_us` (version
/// 1). `None` if there is no limit.
pub fn parse_quota(text: &str) -> Option<(u64, Duration)> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let (quota, period) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let thousandths = u128::from(quota) * 1000 / u128::from(period.max(1));
    let thousandths = u64::try_from(thousandths).ok()?;
    Some((thousandths, Duration::from_micros(period)))
}

/// Counts how often the kernel throttled a cgroup because the quota of the cgroup was used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuThrottling {
    /// Number of periods in which the cgroup ran.
    pub periods: u64,
    /// Number of periods in which the cgroup was throttled.
    pub throttled_periods: u64,
    /// Time for which the cgroup was throttled, summed up over all CPUs.
    pub throttled_time: Duration,
}

impl CpuThrottling {
    /// Parses the file `cpu.stat`, whose times are in microseconds in version 2 and in nanoseconds
    /// in version 1.
    pub fn parse(text: &str) -> Option<Self> {
        let of = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let (_, number) = lines.find(|(key, _)| *key == name)?;
            number.trim().parse::<u64>().ok()
        };
        let throttled_time = of("throttled_usec").map(Duration::from_micros);
        Some(Self {
            periods: of("nr_periods")?,
            throttled_periods: of("nr_throttled")?,
            throttled_time: throttled_time
                .or_else(|| of("throttled_time").map(Duration::from_nanos))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH_VERSIONS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn found(controller: Controller, cgroup: &str, mounts: &str) -> Vec<(Version, Vec<String>)> {
        let reported = |group: Cgroup| {
            let folders = group.folders().map(|it| it.display().to_string());
            (group.version, folders.collect())
        };
        let groups = Cgroup::find(controller, cgroup, mounts);
        groups.into_iter().map(reported).collect()
    }

    #[test]
    fn a_cgroup_is_found_with_its_ancestors() {
        let own = "9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/c\n";
        let unified = (
            Version::Two,
            vec![
                "/sys/fs/cgroup/unified/c".to_owned(),
                "/sys/fs/cgroup/unified/".to_owned(),
            ],
        );
        let memory = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory/",
        ];
        assert_eq!(
            found(Controller::Memory, own, BOTH_VERSIONS),
            [
                (Version::One, memory.map(str::to_owned).to_vec()),
                unified.clone()
            ]
        );
        let cpu = vec!["/sys/fs/cgroup/cpu/".to_owned()];
        assert_eq!(
            found(Controller::Cpu, own, BOTH_VERSIONS),
            [(Version::One, cpu), unified]
        );
    }

    #[test]
    fn a_path_outside_of_the_mounted_part_becomes_the_mount_point() {
        let mounts = "5 4 0:2 /docker/x /sys/fs/my\\040groups ro - cgroup2 cgroup ro\n";
        let folder = |own: &str| found(Controller::Cpu, own, mounts)[0].1[0].clone();
        assert_eq!(folder("0::/docker/x\n"), "/sys/fs/my groups/");
        assert_eq!(folder("0::/docker/x/y\n"), "/sys/fs/my groups/y");
        // The process was moved to a cgroup outside of the mounted part of the hierarchy.
        assert_eq!(folder("0::/../z\n"), "/sys/fs/my groups/");
        assert_eq!(folder("0::/docker/x/../../z\n"), "/sys/fs/my groups/");
        assert_eq!(
            found(Controller::Cpu, "0::/a\n", "").len(),
            0,
            "no hierarchy is mounted"
        );
        assert_eq!(
            found(Controller::Cpu, "3:pids:/a\n", BOTH_VERSIONS).len(),
            0
        );
    }

    #[test]
    fn the_mount_with_the_longest_root_above_the_cgroup_is_chosen() {
        let mounts = "\
5 4 0:2 /other /a rw - cgroup2 cgroup rw
6 4 0:2 / /b rw - cgroup2 cgroup rw
7 4 0:2 /pods/x /c rw - cgroup2 cgroup rw
8 4 0:2 /pods/x /d rw - cgroup2 cgroup rw
";
        let folder = |own: &str| found(Controller::Cpu, own, mounts)[0].1[0].clone();
        assert_eq!(folder("0::/pods/x/y\n"), "/c/y");
        assert_eq!(folder("0::/pods\n"), "/b/pods");
        let none =
            "5 4 0:2 /other /a rw - cgroup2 cgroup rw\n6 4 0:2 /more /b rw - cgroup2 cgroup rw\n";
        assert_eq!(found(Controller::Cpu, "0::/pods\n", none)[0].1[0], "/a/");
    }

    #[test]
    fn memory_limits_and_cpu_quotas_of_both_versions_are_parsed() {
        assert_eq!(parse_bytes("268435456\n"), Some(256 << 20));
        for none in ["max\n", "9223372036854771712\n", "", "-1", "1.5"] {
            assert_eq!(parse_bytes(none), None, "{none:?}");
        }
        let period = Duration::from_millis(100);
        assert_eq!(parse_quota("50000 100000\n"), Some((500, period)));
        assert_eq!(parse_quota("250000\n100000\n"), Some((2500, period)));
        for none in ["max 100000\n", "-1\n100000\n", "", "100000"] {
            assert_eq!(parse_quota(none), None, "{none:?}");
        }
        assert_eq!(parse_quota("7 0"), Some((7000, Duration::ZERO)));
    }

    #[test]
    fn the_cpu_stat_of_both_versions_is_parsed() {
        let counted = Some(CpuThrottling {
            periods: 12,
            throttled_periods: 3,
            throttled_time: Duration::from_millis(150),
        });
        let one = "nr_periods 12\nnr_throttled 3\nthrottled_time 150000000\nnr_bursts 0\n";
        let two = "usage_usec 5\nnr_periods 12\nnr_throttled 3\nthrottled_usec 150000\n";
        assert_eq!(CpuThrottling::parse(one), counted);
        assert_eq!(CpuThrottling::parse(two), counted);
        for none in ["", "nr_periods 1\nnr_throttled 1\n", "nr_periods x\n"] {
            assert_eq!(CpuThrottling::parse(none), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(cgroup in "(\\PC|[:\n/])*", mounts in "(\\PC|[ \n/-])*") {
            for controller in [Controller::Memory, Controller::Cpu] {
                for group in Cgroup::find(controller, &cgroup, &mounts) {
                    prop_assert!(group.folders().all(|it| it.starts_with(&group.top)));
                }
            }
            let _ = (parse_bytes(&cgroup), parse_quota(&mounts), CpuThrottling::parse(&cgroup));
        }
    }
}
