//! A control group of a test's own: so much memory and so much of a core, in version 1 or 2, whichever has the controllers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};

use crate::{
    tool::{self, Missing},
    wait,
};

const ROOT: &str = "/sys/fs/cgroup";

/// The group; removed when dropped, once its processes have ended.
#[derive(Debug)]
pub struct Group {
    /// One, or one a controller.
    folders: Vec<PathBuf>,
}

/// Which groups are in use, and where.
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
            "no control groups with memory and cpu below {ROOT}"
        )))
    }
}

impl Group {
    /// So many bytes, and thousandths of a core.
    ///
    /// # Errors
    /// Not root, or no control groups that a process may make.
    pub fn new(memory: u64, thousandths: u64) -> Result<Self, Missing> {
        tool::root()?;
        let version = Version::find()?;
        Self::make(&version, memory, thousandths)
            .map_err(|error| Missing::new(format!("no control group can be made: {error:#}")))
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
        let (period, quota) = (100_000, thousandths * 100);
        match version {
            Version::One { memory: top, cpu } => {
                let group = Self {
                    folders: vec![made(top)?, made(cpu)?],
                };
                let [in_memory, in_cpu] = [&group.folders[0], &group.folders[1]];
                put(in_memory.join("memory.limit_in_bytes"), memory.to_string())?;
                put(in_cpu.join("cpu.cfs_period_us"), period.to_string())?;
                put(in_cpu.join("cpu.cfs_quota_us"), quota.to_string())?;
                Ok(group)
            }
            Version::Two(top) => {
                put(
                    top.join("cgroup.subtree_control"),
                    "+memory +cpu".to_owned(),
                )?;
                let group = Self {
                    folders: vec![made(top)?],
                };
                let folder = &group.folders[0];
                put(folder.join("memory.max"), memory.to_string())?;
                put(folder.join("memory.swap.max"), "0".to_owned()).ok();
                put(folder.join("cpu.max"), format!("{quota} {period}"))?;
                Ok(group)
            }
        }
    }

    /// Words before a program that make it start in the group: with each process that it starts.
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

    /// Processes in it that the kernel killed for want of memory, and the most memory that it had.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let folder = self.folders.first().context("a group has a folder")?;
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

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Whoever was in it has been told to end, and is reaped in a moment.
            let gone = wait::until("an empty control group", || {
                Ok((fs::remove_dir(folder).is_ok() || !folder.exists()).then_some(()))
            });
            if let Err(error) = gone {
                eprintln!("{}: {error:#}", folder.display());
            }
        }
    }
}
