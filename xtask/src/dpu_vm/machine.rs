//! Assembles the virtual machine of the simulated DPU, and boots it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use crate::{
    exec,
    guest::{self, Archive, Image, Logs, PORTS, Qemu, Recipe, Up, blank},
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
/// Debian's libraries for the cores of a DPU, where a compiler for them brought some.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
const NEEDED: [&str; 4] = [
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
];
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

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
    pub(super) fn boot(&self, name: &str, upstream: Option<&str>) -> Result<Up> {
        let logs = Logs::of(&self.logs, name);
        fs::write(&logs.initramfs, self.initramfs(upstream)?)?;
        Up::start(self.qemu(&logs)?, logs, self.limit)
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

    fn qemu(&self, logs: &Logs) -> Result<Qemu> {
        let mut qemu = Qemu::new(QEMU, &self.image, logs)?;
        qemu.add("-machine", "virt")
            .add("-cpu", "cortex-a72")
            .add("-smp", "8")
            .add("-m", "4G")
            .disk(&self.disk)
            .add("-append", "console=ttyAMA0 quiet panic=-1");
        Ok(qemu)
    }
}

fn configuration(upstream: Option<&str>) -> String {
    let [clients, admin] = PORTS;
    let hub = upstream.map_or_else(String::new, |url| {
        // This machine, as QEMU's network calls it.
        let url = url.replacen("127.0.0.1", "10.0.2.2", 1);
        format!("[upstreams.\"docker.io\"]\naddresses = {url:?}\n")
    });
    format!(
        "listen = [\"0.0.0.0:{clients}\"]\nadmin = \"0.0.0.0:{admin}\"\ndata = \"/data/pierhead\"\n\
         cache.size = \"512MiB\"\ncache.min_free = \"16MiB\"\n\
         [tier]\nkind = \"file\"\npath = \"/data/tier\"\nsize = \"64MiB\"\n{hub}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstream_is_named_as_the_guest_must() {
        let text = configuration(Some("http://127.0.0.1:4000"));
        assert!(
            text.contains("addresses = \"http://10.0.2.2:4000\""),
            "{text}"
        );
        assert!(!configuration(None).contains("upstreams"));
    }
}
