//! A measured process: CPU time, memory and open files of its process tree, from /proc.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use pierhead_tests::process::Daemon;

/// A running child process whose output is discarded. Dropping it sends SIGTERM, then SIGKILL.
pub(crate) struct Process(Daemon);

/// Clock ticks per second of CPU accounting in `/proc/<pid>/stat`: 100 on all common Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        Ok(Self(Daemon::start(&name, command, Path::new("/dev/null"))?))
    }

    /// Waits until `ask` returns a value. The process must not exit first.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.0.until(what, |_| ask())
    }

    /// Waits until a server listens on a loopback port.
    pub(crate) fn listens(&mut self, port: u16) -> Result<()> {
        let connect = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        self.until("a server that listens", connect).map(drop)
    }

    /// Ends the process by SIGTERM.
    pub(crate) fn end(&mut self) {
        // A process that ignores SIGTERM has been killed.
        let _ = self.0.terminate();
    }

    /// The process IDs of the process and its descendants.
    fn tree(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let mut open = vec![self.0.pid()];
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
