//! Assembles the virtual machine with systemd, and boots it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;

use crate::{
    exec,
    guest::{self, Archive, Image, Logs, Qemu, Recipe, Up, blank},
};

/// Name of the emulator.
pub(super) const QEMU: &str = "qemu-system-x86_64";

/// Kernel and modules of the machine.
pub(super) const RECIPE: Recipe = Recipe {
    arch: "amd64",
    modules: &[
        "virtio_pci",
        "virtio_blk",
        "virtio_net",
        "virtio_console",
        "9pnet_virtio",
        "9p",
        "overlay",
        // ext4 requests this module by name at a mount. The module's dependencies do not mention
        // it.
        "crc32c_generic",
        "ext4",
    ],
    known_module: "virtio_net",
};

/// Size in bytes of the disk for pierhead's data.
const DISK: u64 = 1 << 30;

/// The virtual machine with systemd.
pub(super) struct Machine {
    /// Kernel and base of the initramfs.
    pub(super) image: Image,
    /// Whether KVM runs the guest on the host's CPU. Without KVM, QEMU emulates the CPU.
    pub(super) kvm: bool,
    /// Time limit of a boot with all its commands.
    pub(super) limit: Duration,
    /// Folder for the console output and the disk.
    pub(super) folder: PathBuf,
}

impl Machine {
    /// Boots the machine and waits for its shell.
    ///
    /// # Errors
    /// The shell does not become ready. The error has the console output.
    pub(super) fn boot(&self) -> Result<Up> {
        let disk = self.folder.join("disk");
        if blank(&disk, DISK)? {
            exec::output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk))?;
        }
        let logs = Logs::of(&self.folder, "systemd");
        fs::write(&logs.initramfs, self.initramfs())?;
        Up::start(self.qemu(&logs, &disk)?, logs, self.limit)
    }

    fn initramfs(&self) -> Vec<u8> {
        let mut job = Archive::default();
        for (name, content) in [
            ("guest.service", include_str!("guest.service")),
            ("guest.target", include_str!("guest.target")),
            ("shell", include_str!("shell.sh")),
        ] {
            job.file(&format!("job/{name}"), content.as_bytes());
        }
        let settings = [("LIMIT", self.limit.as_secs().to_string())];
        let script = include_bytes!("script.sh");
        guest::initramfs(&self.image, &settings, script, job)
    }

    fn qemu(&self, logs: &Logs, disk: &Path) -> Result<Qemu> {
        let mut qemu = Qemu::new(QEMU, &self.image, logs)?;
        qemu.add("-machine", "q35")
            .add("-accel", if self.kvm { "kvm" } else { "tcg" })
            .add("-cpu", "max,arch-capabilities=off")
            .add("-smp", "2")
            .add("-m", "2G")
            .disk(disk)
            .host_root()
            .add(
                "-append",
                "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=unstable no_timer_check psi=1 \
                 systemd.unit=guest.target systemd.show_status=0 systemd.gpt_auto=0 fstab=no",
            );
        Ok(qemu)
    }
}
