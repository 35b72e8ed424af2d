//! Assembles the virtual machine with emulated persistent memory, and boots it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::guest::{self, Archive, Boot, Image, Logs, Qemu, Recipe, blank, quote, value};

/// Name of the emulator.
pub(super) const QEMU: &str = "qemu-system-x86_64";
const SCRIPT: &[u8] = include_bytes!("script.sh");

/// Kernel and modules of the machine.
pub(super) const RECIPE: Recipe = Recipe {
    arch: "amd64",
    modules: &[
        "virtio_pci",
        "virtio_blk",
        "virtio_console",
        "9pnet_virtio",
        "9p",
        "overlay",
        "nfit",
        "nd_pmem",
        // ext4 requests this module by name at a mount. The module's dependencies do not mention
        // it.
        "crc32c_generic",
        "ext4",
    ],
    known_module: "nd_pmem",
};

/// Size in bytes of the disk without DAX.
const DISK: u64 = 512 << 20;

/// A machine that can be booted repeatedly with the same NVDIMM.
pub(super) struct Machine {
    /// Kernel and base of the initramfs.
    pub(super) image: Image,
    /// File with the contents of the NVDIMM, which outlives the machine.
    pub(super) nvdimm: PathBuf,
    /// File with the contents of the disk, which is not persistent memory.
    pub(super) disk: PathBuf,
    /// Whether KVM runs the guest on the host's CPU. Without KVM, QEMU emulates the CPU.
    pub(super) kvm: bool,
    /// Time limit of one boot with its command.
    pub(super) limit: Duration,
    /// Folder of the host that the guest mounts at the same path and may write.
    pub(super) share: PathBuf,
    /// Folder for the console output of each boot.
    pub(super) logs: PathBuf,
}

impl Machine {
    /// Creates the files of the NVDIMM and the disk, unless they exist.
    ///
    /// # Errors
    /// A file cannot be created.
    pub(super) fn plug_in(&self, nvdimm: u64) -> Result<()> {
        blank(&self.nvdimm, nvdimm)?;
        blank(&self.disk, DISK)?;
        Ok(())
    }

    /// Boots the machine, which runs the shell command `command` in `folder`. `name` distinguishes
    /// the boots.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub(super) fn boot(&self, name: &str, folder: &Path, command: &str) -> Result<Boot> {
        fs::create_dir_all(&self.logs)?;
        let logs = Logs::of(&self.logs, name);
        fs::write(&logs.initramfs, self.initramfs(folder, command))?;
        let mut qemu = self.qemu(&logs)?;
        Boot::start(qemu.command(), logs, self.limit)
    }

    fn initramfs(&self, folder: &Path, command: &str) -> Vec<u8> {
        let mut job = Archive::default();
        let folder = quote(&folder.display().to_string());
        job.file(
            "job/command",
            format!("cd {folder} || exit 125\n{command}\n").as_bytes(),
        );
        let settings = [
            ("LIMIT", self.limit.as_secs().to_string()),
            ("SHARE", self.share.display().to_string()),
        ];
        guest::initramfs(&self.image, &settings, SCRIPT, job)
    }

    fn qemu(&self, logs: &Logs) -> Result<Qemu> {
        let bytes = fs::metadata(&self.nvdimm)
            .with_context(|| format!("the NVDIMM's file {}", self.nvdimm.display()))?
            .len();
        let mut qemu = Qemu::new(QEMU, &self.image, logs)?;
        qemu.add("-machine", "q35,nvdimm=on")
            .add("-accel", if self.kvm { "kvm" } else { "tcg" })
            // On a host that is itself a virtual machine, the CPU often does not support this
            // register.
            .add("-cpu", "max,arch-capabilities=off")
            .add("-smp", "2")
            .add("-m", "1G,slots=2,maxmem=64G")
            .add(
                "-object",
                &format!(
                    "memory-backend-file,id=dimm,share=on,mem-path={},size={bytes},align=2M",
                    value(&self.nvdimm)
                ),
            )
            .add("-device", "nvdimm,memdev=dimm")
            .disk(&self.disk)
            .add(
                "-append",
                "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=unstable no_timer_check",
            );
        qemu.host_root().folder("share", &self.share, "");
        Ok(qemu)
    }
}
