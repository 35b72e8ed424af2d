//! A running virtual machine with forwarded ports and a shell that the host controls.
//!
//! The guest's script prints [`READY`] when pierhead serves. After that, the script runs each line
//! that it reads, and prints [`END`] with the exit status.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::console::say;

use super::{
    boot::{Boot, BootResult, ConsoleOutput, Logs},
    qemu::{Qemu, value},
};

/// Ports of pierhead in the guest: for clients, and for administration.
pub(crate) const PORTS: [u16; 2] = [5000, 5001];

/// Lines with which the guest's shell reports its state.
const READY: &str = "guest: ready";
const END: &str = "guest: end ";

/// A running machine.
pub(crate) struct Up {
    boot: Boot,
    /// Address on this machine that leads to pierhead's port for clients.
    pub(crate) address: SocketAddr,
    /// Address on this machine that leads to pierhead's admin port.
    pub(crate) admin: SocketAddr,
}

impl Up {
    /// Gives the machine a network in which this machine is 10.0.2.2, boots it, and waits until it
    /// is ready.
    ///
    /// # Errors
    /// The machine does not become ready. The error has the console output.
    pub(crate) fn start(mut qemu: Qemu, logs: Logs, limit: Duration) -> Result<Self> {
        // The path of a Unix socket has at most 107 bytes, so a short temporary path is needed.
        let folder = tempfile::tempdir()?;
        let monitor = folder.path().join("monitor");
        let forward: String = PORTS
            .iter()
            .map(|port| format!(",hostfwd=tcp:127.0.0.1:0-:{port}"))
            .collect();
        qemu.add("-netdev", &format!("user,id=net{forward}"))
            .add("-device", "virtio-net-pci,netdev=net,romfile=")
            .add(
                "-monitor",
                &format!("unix:{},server=on,wait=off", value(&monitor)),
            );
        let mut boot = Boot::start(qemu.command(), logs, limit)?;
        loop {
            match boot.listen()? {
                ConsoleOutput::Line(line) if line == READY => break,
                ConsoleOutput::Line(line) => say!("  | {line}"),
                ConsoleOutput::Off => {
                    boot.end()?;
                    bail!("the virtual machine ended before it was ready");
                }
            }
        }
        let [address, admin] = forwarded(&monitor)?;
        Ok(Self {
            boot,
            address,
            admin,
        })
    }

    /// The guest's clock when it was ready, and the duration of the boot.
    pub(crate) fn ready(&self) -> (String, Duration) {
        (self.boot.ready(), self.boot.elapsed())
    }

    /// Runs a line of shell in the guest, and returns its exit status. Passes each output line to
    /// `print`.
    ///
    /// # Errors
    /// The machine ends, or exceeds its time limit.
    pub(crate) fn shell(&mut self, line: &str, mut print: impl FnMut(&str)) -> Result<i32> {
        self.boot.say(line)?;
        loop {
            match self.boot.listen()? {
                ConsoleOutput::Line(line) => match line.strip_prefix(END) {
                    Some(status) => return Ok(status.trim().parse()?),
                    None => print(&line),
                },
                ConsoleOutput::Off => bail!(
                    "the virtual machine ended in the middle\n{}",
                    self.boot.console()
                ),
            }
        }
    }

    /// Runs a line of shell in the guest, and returns its status and output. The output is a pipe,
    /// so programs print no colours.
    ///
    /// # Errors
    /// As [`Up::shell`].
    pub(crate) fn output(&mut self, line: &str) -> Result<(i32, String)> {
        let mut text = String::new();
        let status = self.shell(line, |line| {
            text.push_str(line);
            text.push('\n');
        })?;
        Ok((status, text))
    }

    /// Kills the machine, like a power loss.
    ///
    /// # Errors
    /// The process cannot be killed.
    pub(crate) fn cut(mut self) -> Result<()> {
        self.boot.kill()
    }

    /// Runs the line of shell that ends the machine, and waits for the end.
    ///
    /// # Errors
    /// The machine does not end.
    pub(crate) fn off(mut self, line: &str) -> Result<BootResult> {
        self.boot.say(line)?;
        while let ConsoleOutput::Line(_) = self.boot.listen()? {}
        self.boot.end()
    }
}

/// Ports of this machine that lead to [`PORTS`] of the guest. QEMU has chosen them.
fn forwarded(monitor: &Path) -> Result<[SocketAddr; 2]> {
    let mut stream = UnixStream::connect(monitor).context("QEMU's monitor")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(b"info usernet\n")?;
    let mut text = String::new();
    let mut buffer = [0; 4096];
    loop {
        let port = |guest: u16| text.lines().find_map(|line| port(line, guest));
        if let [Some(clients), Some(admin)] = PORTS.map(port) {
            return Ok([clients, admin].map(|port| (Ipv4Addr::LOCALHOST, port).into()));
        }
        let read = stream.read(&mut buffer).context("QEMU's monitor")?;
        if read == 0 {
            bail!("QEMU forwards no port:\n{text}");
        }
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
}

/// Parses a line of QEMU's monitor such as `  TCP[HOST_FORWARD]  13       127.0.0.1 40001
/// 10.0.2.15  5000     0     0`.
fn port(line: &str, guest: u16) -> Option<u16> {
    let mut words = line.split_whitespace();
    if words.next() != Some("TCP[HOST_FORWARD]") {
        return None;
    }
    let words: Vec<&str> = words.collect();
    let [_, _, here, _, there, _, _] = words.as_slice() else {
        return None;
    };
    (there.parse() == Ok(guest)).then(|| here.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_whole_lines() {
        let line =
            "  TCP[HOST_FORWARD]  13       127.0.0.1 40001       10.0.2.15  5000     0     0";
        assert_eq!(port(line, 5000), Some(40001));
        assert_eq!(port(line, 40001), None);
        // The line is incomplete.
        assert_eq!(port(&line[..line.len() - 7], 5000), None);
    }
}
