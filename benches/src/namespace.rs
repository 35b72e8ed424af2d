//! Creates network namespaces for benchmarks. A child process holds each namespace and ends with
//! the benchmark program, so no cleanup is needed.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace. The kernel removes its devices and addresses together with the namespace.
pub(crate) struct Namespace {
    /// A `cat` in the namespace, which ends when its input pipe is closed.
    holder: Child,
}

impl Namespace {
    /// Creates a namespace with only a loopback interface. Needs root.
    pub(crate) fn new() -> Result<Self> {
        let holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare, of util-linux")?;
        let mut namespace = Self { holder };
        let Child { stdin, stdout, .. } = &mut namespace.holder;
        stdin.as_mut().context("no pipe")?.write_all(b"?")?;
        // A response of the process shows that the process is in the namespace.
        let answered = stdout.as_mut().context("no pipe")?.read_exact(&mut [0]);
        answered.context("network namespaces need root")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// The process ID that `ip` accepts as the namespace of a device.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.id())
    }

    /// A command prefix that runs a program in the namespace and ends it with the starting thread.
    pub(crate) fn prefix(&self) -> Vec<String> {
        let inside = format!("--net={}", self.path());
        let words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            "nsenter",
            &inside,
            "--",
        ];
        words.map(str::to_owned).into()
    }

    /// A command that runs in the namespace.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let prefix = self.prefix();
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(program);
        command
    }

    /// Runs these lines by `ip -batch`.
    pub(crate) fn ip(&self, lines: &str) -> Result<()> {
        let mut child = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("ip, of iproute2")?;
        let mut stdin = child.stdin.take().context("no pipe")?;
        stdin.write_all(lines.as_bytes())?;
        stdin.write_all(b"\n")?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip {lines}: {said}");
        Ok(())
    }

    /// Sets keys below `/proc/sys/net/ipv4`.
    pub(crate) fn ipv4(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.inside(|| {
            for (key, value) in settings {
                let file = format!("/proc/sys/net/ipv4/{key}");
                fs::write(&file, value).with_context(|| format!("{file} = {value}"))?;
            }
            Ok(())
        })
    }

    /// Runs a closure in a thread of the namespace. Sockets, devices and threads that the closure
    /// creates stay in the namespace.
    pub(crate) fn inside<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = File::open(self.path())?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                what()
            });
            inside.join().ok().context("a thread panicked")?
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use pierhead_tests::tool;

    use super::*;

    /// Dropping a namespace ends the process that holds it, and removes its devices.
    #[test]
    fn a_dropped_namespace_is_removed() {
        if tool::or_skip(tool::root()).is_none() {
            return;
        }
        let namespace = Namespace::new().unwrap();
        namespace.ip("link add there type veth").unwrap();
        let devices = || Ok(fs::read_to_string("/proc/thread-self/net/dev")?);
        assert!(namespace.inside(devices).unwrap().contains("there:"));
        assert!(!devices().unwrap().contains("there:"));
        assert!(namespace.ip("link add there type veth").is_err());
        let path = namespace.path();
        drop(namespace);
        assert!(!std::path::Path::new(&path).exists());
    }
}
