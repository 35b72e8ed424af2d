//! A cgroup for one test, with limits of memory and CPU. The test library uses the cgroup version,
//! v1 or v2, that has the controllers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    tool::{self, Missing},
    wait,
};

const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup. Dropping it waits for the end of its processes and removes it.
#[derive(Debug)]
pub struct Cgroup {
    /// The folders of the cgroup: one with cgroup v2, one per controller with v1.
    folders: Vec<PathBuf>,
    /// The v2 folder, in which the kernel counts the pressure (PSI) of the cgroup.
    pressure: Option<PathBuf>,
}

/// The cgroup version of this machine, with its root folders.
enum Version {
    One { memory: PathBuf, cpu: PathBuf },
    Two(PathBuf),
}

impl Version {
    fn find() -> Result<Self, Missing> {
        let root = Path::new(ROOT);
        let has = |text: &str, name: &str| text.split_whitespace().any(|it| it == name);
        if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers"))
            && has(&controllers, "memory")
            && has(&controllers, "cpu")
        {
            return Ok(Self::Two(root.to_owned()));
        }
        let (memory, cpu) = (root.join("memory"), root.join("cpu"));
        let there = [memory.join("memory.limit_in_bytes"), cpu.join("cpu.shares")];
        if there.iter().all(|it| it.exists()) {
            return Ok(Self::One { memory, cpu });
        }
        Err(Missing::new(format!(
            "no cgroups with memory and cpu below {ROOT}"
        )))
    }
}

impl Cgroup {
    /// Creates a cgroup with at most `memory` bytes of memory and `thousandths` of a CPU core. With
    /// 0 thousandths, there is no CPU limit.
    ///
    /// # Errors
    /// The process is not root, or may not create cgroups.
    pub fn new(memory: u64, thousandths: u64) -> Result<Self, Missing> {
        tool::root()?;
        let version = Version::find()?;
        Self::make(&version, memory, thousandths)
            .map_err(|error| Missing::new(format!("cannot create a cgroup: {error:#}")))
    }

    fn make(version: &Version, memory: u64, thousandths: u64) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pierhead-test-{}-{nth}", std::process::id());
        let put = |path: PathBuf, text: String| {
            fs::write(&path, text).with_context(|| path.display().to_string())
        };
        let made = |folder: &Path| {
            let folder = folder.join(&name);
            fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
            Ok::<_, anyhow::Error>(folder)
        };
        let period = 100_000;
        let quota = match thousandths {
            0 => None,
            some => Some(some * 100),
        };
        match version {
            Version::One { memory: top, cpu } => {
                // When v1 and v2 are both mounted, also creates a v2 cgroup, because v2 counts the
                // pressure of a cgroup without any controller.
                let beside = top.with_file_name("unified");
                let beside = match beside.join("cgroup.procs").exists() {
                    true => Some(made(&beside)?),
                    false => None,
                };
                let group = Self {
                    folders: [Some(made(top)?), Some(made(cpu)?), beside.clone()]
                        .into_iter()
                        .flatten()
                        .collect(),
                    pressure: beside,
                };
                let [in_memory, in_cpu] = [&group.folders[0], &group.folders[1]];
                put(in_memory.join("memory.limit_in_bytes"), memory.to_string())?;
                put(in_cpu.join("cpu.cfs_period_us"), period.to_string())?;
                put(
                    in_cpu.join("cpu.cfs_quota_us"),
                    quota.map_or("-1".to_owned(), |it| it.to_string()),
                )?;
                Ok(group)
            }
            Version::Two(top) => {
                put(
                    top.join("cgroup.subtree_control"),
                    "+memory +cpu".to_owned(),
                )?;
                let folder = made(top)?;
                let group = Self {
                    pressure: Some(folder.clone()),
                    folders: vec![folder],
                };
                let folder = &group.folders[0];
                put(folder.join("memory.max"), memory.to_string())?;
                put(folder.join("memory.swap.max"), "0".to_owned()).ok();
                put(folder.join("cpu.max"), {
                    let quota = quota.map_or("max".to_owned(), |it| it.to_string());
                    format!("{quota} {period}")
                })?;
                Ok(group)
            }
        }
    }

    /// A command prefix that starts a program, and all its children, in the cgroup.
    pub fn enter(&self) -> Vec<String> {
        const SCRIPT: &str = "while [ \"$1\" != -- ]; do echo $$ > \"$1/cgroup.procs\" || exit 1; shift; done; shift; exec \"$@\"";
        let folders = self.folders.iter().map(|it| it.display().to_string());
        ["sh", "-c", SCRIPT, "sh"]
            .into_iter()
            .map(str::to_owned)
            .chain(folders)
            .chain(["--".to_owned()])
            .collect()
    }

    /// Number of processes that the kernel killed for lack of memory, and the peak memory in bytes.
    ///
    /// # Errors
    /// The file of the kernel cannot be read.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let folder = self.folders.first().context("a cgroup has a folder")?;
        let read = |names: [&str; 2]| {
            let texts = names
                .iter()
                .map(|name| fs::read_to_string(folder.join(name)));
            texts.flatten().next().context(names[0].to_owned())
        };
        let killed = read(["memory.events", "memory.oom_control"])?;
        let killed = killed
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .context("oom_kill")?
            .trim()
            .parse()?;
        let peak = read(["memory.peak", "memory.max_usage_in_bytes"])?;
        Ok((killed, peak.trim().parse()?))
    }
}

/// CPU throttling of a cgroup, from its `cpu.stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Number of periods in which the cgroup used the CPU.
    pub periods: u64,
    /// Number of periods in which the cgroup was throttled.
    pub times: u64,
    /// Total throttled time, summed over the CPUs.
    pub stopped: Duration,
}

impl Cgroup {
    /// A command prefix that hides the pressure of the machine, which other tests cause. With this
    /// prefix, the program sees only the pressure of its cgroup. Put this prefix before that of
    /// [`Cgroup::enter`].
    ///
    /// # Errors
    /// The kernel does not count the pressure of cgroups.
    pub fn alone(&self) -> Result<Vec<String>, Missing> {
        const SCRIPT: &str = "mount -t tmpfs none \"$1\" || exit 1; shift; while [ \"$1\" != -- ]; do [ ! -e \"$1\" ] || mount --bind /dev/null \"$1\" || exit 1; shift; done; shift; exec \"$@\"";
        let pressure = self.pressure.as_deref();
        let own = pressure.map(|it| it.join("cpu.pressure"));
        let counted = own.is_some_and(|it| fs::read_to_string(it).is_ok_and(|it| !it.is_empty()));
        let Some(around) = pressure.and_then(Path::parent).filter(|_| counted) else {
            return Err(Missing::new(
                "this kernel does not count the pressure of cgroups",
            ));
        };
        tool::find(&["unshare"])?;
        let machine = "/proc/pressure".to_owned();
        let around = ["memory", "cpu", "io"].map(|it| around.join(format!("{it}.pressure")));
        let words = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh"].map(str::to_owned);
        Ok(words
            .into_iter()
            .chain([machine])
            .chain(around.map(|it| it.display().to_string()))
            .chain(["--".to_owned()])
            .chain(self.enter())
            .collect())
    }

    /// The throttling since the creation of the cgroup.
    ///
    /// # Errors
    /// The file of the kernel cannot be read.
    pub fn throttled(&self) -> Result<Throttled> {
        let stats = self.folders.iter().map(|it| it.join("cpu.stat"));
        let mut stats = stats.filter_map(|stat| fs::read_to_string(stat).ok());
        let stat = stats.find(|stat| stat.contains("nr_throttled"));
        let stat = stat.context("cpu.stat")?;
        let of = |name: &str| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name)?.1.parse().ok()
        };
        let stopped = of("throttled_usec").map(Duration::from_micros);
        let stopped = stopped.or_else(|| of("throttled_time").map(Duration::from_nanos));
        Ok(Throttled {
            periods: of("nr_periods").context("nr_periods")?,
            times: of("nr_throttled").context("nr_throttled")?,
            stopped: stopped.context("throttled_usec")?,
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            // The processes of the cgroup got a signal. The kernel removes them within a short
            // time.
            let gone = wait::try_until("an empty cgroup", || {
                Ok((fs::remove_dir(folder).is_ok() || !folder.exists()).then_some(()))
            });
            if let Err(error) = gone {
                eprintln!("{}: {error:#}", folder.display());
            }
        }
    }
}
