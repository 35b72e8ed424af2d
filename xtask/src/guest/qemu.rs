//! The part of QEMU's command line that all virtual machines share.

use std::{fs, os::unix::fs::OpenOptionsExt as _, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{boot::Logs, image::Image};
use crate::place;

/// A command line that grows.
pub(crate) struct Qemu(Command);

impl Qemu {
    /// Of a machine that boots `image`. Its job's output and input are QEMU's.
    ///
    /// # Errors
    /// When there is no such program.
    pub(crate) fn new(program: &str, image: &Image, logs: &Logs) -> Result<Self> {
        let program = place::find(program).with_context(|| format!("no {program}"))?;
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

    /// One more option.
    pub(crate) fn add(&mut self, option: &str, value: &str) -> &mut Self {
        self.0.args([option, value]);
        self
    }

    /// A disk. What is written to it is in the host's memory at once, and so outlives the process.
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

    /// A folder of this machine, mounted by 9p as `tag`.
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

    /// This machine's whole root for `root.sh`.
    pub(crate) fn host_root(&mut self) -> &mut Self {
        self.folder("host", Path::new("/"), ",readonly=on")
    }

    /// The command.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.0
    }
}

/// A path as a value in an option list, where a comma ends it unless it is doubled.
pub(crate) fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Makes the file of a disk, or of an NVDIMM, unless it is there: whether it is new.
///
/// # Errors
/// When it cannot be made.
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
