//! A running virtual machine with forwarded ports and a shell that the host controls.
//!
//! Its script prints [`READY`] when pierhead serves, then runs each line that it reads and says [`END`] with the status.

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
    boot::{Boot, Ended, Logs, Said},
    qemu::{Qemu, value},
};

/// Where pierhead listens in the guest: for clients, and for those who look after it.
pub(crate) const PORTS: [u16; 2] = [5000, 5001];

/// The guest's words on its shell.
const READY: &str = "guest: ready";
const END: &str = "guest: end ";

/// A machine that is up.
pub(crate) struct Up {
    boot: Boot,
    /// Where clients reach it from this machine.
    pub(crate) address: SocketAddr,
    /// Where its metrics are.
    pub(crate) admin: SocketAddr,
}

impl Up {
    /// Gives the machine a network, in which this one is 10.0.2.2, boots it and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come so far: with its console.
    pub(crate) fn start(mut qemu: Qemu, logs: Logs, limit: Duration) -> Result<Self> {
        // A socket's path has 107 bytes at most.
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
                Said::Line(line) if line == READY => break,
                Said::Line(line) => say!("  | {line}"),
                Said::Off => {
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

    /// What the guest's clock showed when it was ready, and how long that took here.
    pub(crate) fn ready(&self) -> (String, Duration) {
        (self.boot.ready(), self.boot.elapsed())
    }

    /// Runs a line of shell in the guest, and gives its exit status; `print` gets what it prints.
    ///
    /// # Errors
    /// When the machine ends, or is at it for too long.
    pub(crate) fn shell(&mut self, line: &str, mut print: impl FnMut(&str)) -> Result<i32> {
        self.boot.say(line)?;
        loop {
            match self.boot.listen()? {
                Said::Line(line) => match line.strip_prefix(END) {
                    Some(status) => return Ok(status.trim().parse()?),
                    None => print(&line),
                },
                Said::Off => bail!(
                    "the virtual machine ended in the middle\n{}",
                    self.boot.console()
                ),
            }
        }
    }

    /// What a line of shell prints, and its status. Through a pipe there is no colour in it.
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

    /// Pulls the plug.
    ///
    /// # Errors
    /// When the process cannot be killed.
    pub(crate) fn cut(mut self) -> Result<()> {
        self.boot.kill()
    }

    /// Runs the line of shell that ends it, and waits for that.
    ///
    /// # Errors
    /// When it does not come to that.
    pub(crate) fn off(mut self, line: &str) -> Result<Ended> {
        self.boot.say(line)?;
        while let Said::Line(_) = self.boot.listen()? {}
        self.boot.end()
    }
}

/// Which ports of this machine lead to those of the guest: QEMU has chosen them.
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

/// Reads a line such as `  TCP[HOST_FORWARD]  13       127.0.0.1 40001       10.0.2.15  5000     0     0`.
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
        // The rest of it has not come yet.
        assert_eq!(port(&line[..line.len() - 7], 5000), None);
    }
}
