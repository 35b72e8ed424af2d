//! The simulated DPU: how it is put together, one boot of it, and talking with it.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};

use crate::{
    exec,
    guest::{self, Archive, Boot, Ended, Image, Logs, Qemu, Recipe, Said, blank, value},
};

/// What emulates it.
pub(super) const QEMU: &str = "qemu-system-aarch64";
const SCRIPT: &[u8] = include_bytes!("script.sh");

/// What it boots from.
pub(super) const RECIPE: Recipe = Recipe {
    arch: "arm64",
    modules: &[
        "virtio_pci",
        "virtio_blk",
        "virtio_net",
        "virtio_console",
        // ext4 asks for it by name when it mounts, which no module says that it depends on.
        "crc32c_generic",
        "ext4",
    ],
    telling: "virtio_net",
};

/// Size of its disk.
const DISK: u64 = 1 << 30;
/// Where pierhead listens in the guest: for clients, and for those who look after it.
const PORTS: [u16; 2] = [5000, 5001];
/// Debian's libraries for the cores of a DPU, where a compiler for them brought some.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
const NEEDED: [&str; 4] = [
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
];
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The guest's words on its shell.
const READY: &str = "dpu-vm: ready";
const END: &str = "dpu-vm: end ";

/// A machine that can be booted again and again with the same disk.
pub(super) struct Machine {
    /// What it boots from.
    pub(super) image: Image,
    /// pierhead, for its cores.
    pub(super) binary: PathBuf,
    /// The file behind the disk: what is in it outlives the machine.
    pub(super) disk: PathBuf,
    /// How long one boot may take.
    pub(super) limit: Duration,
    /// Where each boot leaves its console.
    pub(super) logs: PathBuf,
}

/// A machine that is up.
pub(super) struct Dpu {
    boot: Boot,
    /// Where clients reach it from this machine.
    pub(super) address: SocketAddr,
    /// Where its metrics are.
    pub(super) admin: SocketAddr,
}

impl Machine {
    /// Makes a file system on the disk, unless there is one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn plug_in(&self) -> Result<()> {
        if blank(&self.disk, DISK)? {
            exec::output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&self.disk))?;
        }
        Ok(())
    }

    /// Boots it and waits until pierhead serves. `upstream` is the URL of Docker Hub, as this machine would say it.
    ///
    /// # Errors
    /// When it does not come so far: with its console.
    pub(super) fn boot(&self, name: &str, upstream: Option<&str>) -> Result<Dpu> {
        let logs = Logs::of(&self.logs, name);
        fs::write(&logs.initramfs, self.initramfs(upstream)?)?;
        // A socket's path has 107 bytes at most.
        let folder = tempfile::tempdir()?;
        let monitor = folder.path().join("monitor");
        let mut qemu = self.qemu(&logs, &monitor)?;
        let mut boot = Boot::start(qemu.command(), logs, self.limit)?;
        loop {
            match boot.listen()? {
                Said::Line(line) if line == READY => break,
                Said::Line(line) => println!("  | {line}"),
                Said::Off => {
                    boot.end()?;
                    bail!("the virtual machine ended before pierhead served");
                }
            }
        }
        let [address, admin] = forwarded(&monitor)?;
        Ok(Dpu {
            boot,
            address,
            admin,
        })
    }

    fn initramfs(&self, upstream: Option<&str>) -> Result<Vec<u8>> {
        let mut job = Archive::default();
        for folder in ["etc", "etc/ssl", "etc/ssl/certs", "lib"] {
            job.folder(folder);
        }
        let mut add = |path: &str, at: &Path| -> Result<()> {
            let bytes = fs::read(at).with_context(|| format!("read {}", at.display()))?;
            job.file(path, &bytes);
            Ok(())
        };
        add("bin/pierhead", &self.binary)?;
        let libraries = Path::new(LIBRARIES);
        // A program that is linked statically needs none.
        if libraries.exists() {
            for name in NEEDED {
                add(&format!("lib/{name}"), &libraries.join(name))?;
            }
        }
        let authorities = Path::new(AUTHORITIES);
        if authorities.exists() {
            add(&AUTHORITIES[1..], authorities)?;
        }
        job.file("etc/pierhead.toml", configuration(upstream).as_bytes());
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let settings = [
            ("LIMIT", self.limit.as_secs().to_string()),
            ("NOW", now.as_secs().to_string()),
        ];
        Ok(guest::initramfs(&self.image, &settings, SCRIPT, job))
    }

    fn qemu(&self, logs: &Logs, monitor: &Path) -> Result<Qemu> {
        let forward: String = PORTS
            .iter()
            .map(|port| format!(",hostfwd=tcp:127.0.0.1:0-:{port}"))
            .collect();
        let mut qemu = Qemu::new(QEMU, &self.image, logs)?;
        qemu.add("-machine", "virt")
            .add("-cpu", "cortex-a72")
            .add("-smp", "8")
            .add("-m", "4G")
            .disk(&self.disk)
            .add("-netdev", &format!("user,id=net{forward}"))
            .add("-device", "virtio-net-pci,netdev=net,romfile=")
            .add("-append", "console=ttyAMA0 quiet panic=-1")
            .add(
                "-monitor",
                &format!("unix:{},server=on,wait=off", value(monitor)),
            );
        Ok(qemu)
    }
}

impl Dpu {
    /// What the guest's clock showed when pierhead served, and how long that took here.
    pub(super) fn ready(&self) -> (String, Duration) {
        (self.boot.ready(), self.boot.elapsed())
    }

    /// Runs a line of shell in the guest: its exit status and what it printed.
    ///
    /// # Errors
    /// When the machine ends, or is at it for too long.
    pub(super) fn shell(&mut self, line: &str, mut print: impl FnMut(&str)) -> Result<i32> {
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

    /// Pulls the plug.
    ///
    /// # Errors
    /// When the process cannot be killed.
    pub(super) fn cut(mut self) -> Result<()> {
        self.boot.kill()
    }

    /// Ends pierhead in order, then the machine: with the status of pierhead.
    ///
    /// # Errors
    /// When it does not come to that.
    pub(super) fn off(mut self) -> Result<Ended> {
        self.boot
            .say("finish TERM; tell \"exit $?\"; umount /data; sync; poweroff -f")?;
        while let Said::Line(_) = self.boot.listen()? {}
        self.boot.end()
    }
}

fn configuration(upstream: Option<&str>) -> String {
    let [clients, admin] = PORTS;
    let hub = upstream.map_or_else(String::new, |url| {
        // This machine, as QEMU's network calls it.
        let url = url.replacen("127.0.0.1", "10.0.2.2", 1);
        format!("[upstreams.\"docker.io\"]\nurl = {url:?}\n")
    });
    format!(
        "listen = [\"0.0.0.0:{clients}\"]\nadmin = \"0.0.0.0:{admin}\"\ndata = \"/data/pierhead\"\n\
         cache.size = \"512MiB\"\ncache.min_free = \"16MiB\"\n\
         [tier]\nkind = \"file\"\npath = \"/data/tier\"\nsize = \"64MiB\"\n{hub}"
    )
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

    #[test]
    fn the_upstream_is_named_as_the_guest_must() {
        let text = configuration(Some("http://127.0.0.1:4000"));
        assert!(text.contains("url = \"http://10.0.2.2:4000\""), "{text}");
        assert!(!configuration(None).contains("upstreams"));
    }
}
