//! The part of QEMU's command line that all virtual machines share.

use std::{fs, os::unix::fs::OpenOptionsExt as _, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{boot::Logs, image::Image};
use crate::paths;

/// A command line under construction.
pub(crate) struct Qemu(Command);

impl Qemu {
    /// Command line of a machine that boots `image`. QEMU's standard input and output are those of
    /// the guest's command.
    ///
    /// # Errors
    /// The program is not installed.
    pub(crate) fn new(program: &str, image: &Image, logs: &Logs) -> Result<Self> {
        let program = paths::find(program).with_context(|| format!("no {program}"))?;
        let mut command = Command::new(program);
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none"])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&logs.initramfs);
        let mut qemu = Self(command);
        qemu.add("-serial", &format!("file:{}", value(&logs.console)))
            .add("-chardev", "stdio,id=out,signal=off")
            .add(
                "-chardev",
                &format!("file,id=told,path={}", value(&logs.told)),
            )
            .add("-device", "virtio-serial-pci")
            .add("-device", "virtconsole,chardev=out")
            .add("-device", "virtconsole,chardev=told");
        Ok(qemu)
    }

    /// Adds an option with its value.
    pub(crate) fn add(&mut self, option: &str, value: &str) -> &mut Self {
        self.0.args([option, value]);
        self
    }

    /// Adds a disk. A write of the guest reaches the host's page cache at once, so it survives a
    /// kill of QEMU.
    pub(crate) fn disk(&mut self, file: &Path) -> &mut Self {
        self.add(
            "-drive",
            &format!(
                "id=disk,if=none,format=raw,cache=unsafe,file={}",
                value(file)
            ),
        )
        .add("-device", "virtio-blk-pci,drive=disk")
    }

    /// Adds a folder of this machine, which the guest mounts by 9p with the tag `tag`.
    pub(crate) fn folder(&mut self, tag: &str, at: &Path, options: &str) -> &mut Self {
        self.add(
            "-fsdev",
            &format!(
                "local,id={tag},path={},security_model=none,multidevs=remap{options}",
                value(at)
            ),
        )
        .add(
            "-device",
            &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        )
    }

    /// Adds the root folder of this machine, which `root.sh` mounts.
    pub(crate) fn host_root(&mut self) -> &mut Self {
        self.folder("host", Path::new("/"), ",readonly=on")
    }

    /// The complete command.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.0
    }
}

/// Escapes a path for a list of options: commas are doubled.
pub(crate) fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Creates the file of a disk or NVDIMM, unless it exists. Returns whether the file is new.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn blank(path: &Path, bytes: u64) -> Result<bool> {
    let file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("make {}", path.display()))?;
    let new = file.metadata()?.len() == 0;
    if new {
        file.set_len(bytes)?;
    }
    Ok(new)
}
