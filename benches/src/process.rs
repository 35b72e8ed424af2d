//! A measured process: CPU time, memory and open files of its process tree, from /proc.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A running child process. Dropping it sends SIGTERM, then SIGKILL.
pub(crate) struct Process(Child);

/// Clock ticks per second of CPU accounting in `/proc/<pid>/stat`: 100 on all common Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(
            child.with_context(|| format!("starting {command:?}"))?,
        ))
    }

    /// The process IDs of the process and its descendants.
    fn tree(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let mut open = vec![self.0.id()];
        while let Some(pid) = open.pop() {
            found.push(pid);
            for task in fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                open.extend(
                    children
                        .split_whitespace()
                        .filter_map(|word| word.parse::<u32>().ok()),
                );
            }
        }
        found
    }

    /// User and system time of the whole tree in seconds.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let mut ticks = 0.0;
        for pid in self.tree() {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let (_, fields) = stat
                .rsplit_once(')')
                .context("a stat line without a name")?;
            for field in fields.split_whitespace().skip(11).take(2) {
                ticks += field.parse::<f64>()?;
            }
        }
        Ok(ticks / TICKS_PER_SECOND)
    }

    /// Resident memory of the whole tree, in MiB.
    pub(crate) fn resident_mib(&self) -> Result<f64> {
        self.status("VmRSS:")
    }

    /// Sum of the peak memory of all processes of the tree, in MiB.
    pub(crate) fn peak_mib(&self) -> Result<f64> {
        self.status("VmHWM:")
    }

    /// Number of file descriptors of the whole tree.
    pub(crate) fn open_files(&self) -> Result<usize> {
        let mut count = 0;
        for pid in self.tree() {
            count += fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        }
        Ok(count)
    }

    fn status(&self, key: &str) -> Result<f64> {
        let mut kib = 0.0;
        for pid in self.tree() {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap_or("0");
            kib += line
                .split_whitespace()
                .next()
                .unwrap_or("0")
                .parse::<f64>()?;
        }
        Ok(kib / 1024.0)
    }
}

impl Process {
    /// Sends SIGTERM, waits, and sends SIGKILL if the process does not exit in time.
    pub(crate) fn end(&mut self) {
        let _ = Command::new("kill")
            .args(["-TERM", &self.0.id().to_string()])
            .status();
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.end();
        }
    }
}

/// Waits until a server listens on a loopback port.
///
/// # Errors
/// After twenty seconds.
pub(crate) fn listens(port: u16) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        ensure!(Instant::now() < end, "no server listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs a command to its end.
///
/// # Errors
/// The command failed; the error contains its output.
pub(crate) fn checked(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(output)
}
