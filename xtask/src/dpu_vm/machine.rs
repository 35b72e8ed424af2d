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

/// Name of the emulator.
pub(super) const QEMU: &str = "qemu-system-aarch64";
const SCRIPT: &[u8] = include_bytes!("script.sh");

/// Kernel and modules of the machine.
pub(super) const RECIPE: Recipe = Recipe {
    arch: "arm64",
    modules: &[
        "virtio_pci",
        "virtio_blk",
        "virtio_net",
        "virtio_console",
        // ext4 requests this module by name at a mount. The module's dependencies do not mention
        // it.
        "crc32c_generic",
        "ext4",
    ],
    known_module: "virtio_net",
};

/// Size of the disk in bytes.
const DISK: u64 = 1 << 30;
/// Folder of Debian's arm64 libraries, which an installed cross-compiler brings.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
const NEEDED: [&str; 4] = [
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
];
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A machine that can be booted repeatedly with the same disk.
pub(super) struct Machine {
    /// Kernel and base of the initramfs.
    pub(super) image: Image,
    /// Path of the pierhead binary for arm64.
    pub(super) binary: PathBuf,
    /// File with the contents of the disk, which outlives the machine.
    pub(super) disk: PathBuf,
    /// Time limit of one boot.
    pub(super) limit: Duration,
    /// Folder for the console output of each boot.
    pub(super) logs: PathBuf,
}

impl Machine {
    /// Creates a file system on the disk, unless the disk has one.
    ///
    /// # Errors
    /// The file system cannot be created.
    pub(super) fn plug_in(&self) -> Result<()> {
        if blank(&self.disk, DISK)? {
            exec::output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&self.disk))?;
        }
        Ok(())
    }

    /// Boots the machine and waits until pierhead is ready. `upstream` is the URL of Docker Hub,
    /// with an address of this machine's network.
    ///
    /// # Errors
    /// pierhead does not become ready. The error has the console output.
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
        // A statically linked program needs no libraries.
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
        #[expect(
            clippy::disallowed_methods,
            reason = "the wall clock of this crate, used here only"
        )]
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
        // 10.0.2.2 is the address of this machine in QEMU's network.
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
