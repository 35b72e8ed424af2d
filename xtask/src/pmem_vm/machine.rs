//! The virtual machine: how it is put together, and one boot of it.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{image::Image, newc::Archive};
use crate::{exec, place};

const INIT: &[u8] = include_bytes!("init.sh");

/// Size of the disk without DAX.
const DISK: u64 = 512 << 20;

/// Lines of the guest's console that a failure shows.
const CONSOLE_LINES: usize = 30;

/// A machine that can be booted again and again on the same NVDIMM.
pub(super) struct Machine {
    /// What it boots from.
    pub(super) image: Image,
    /// The file behind the NVDIMM: what is in it outlives the machine.
    pub(super) nvdimm: PathBuf,
    /// The file behind the disk that is no persistent memory.
    pub(super) disk: PathBuf,
    /// Whether the host's processor runs it, or the emulator.
    pub(super) kvm: bool,
    /// How long one boot may take, with its command.
    pub(super) limit: Duration,
    /// The host's folder that the guest sees at the same path, and may write.
    pub(super) share: PathBuf,
    /// Where each boot leaves its console.
    pub(super) logs: PathBuf,
}

/// A boot in progress. Dropped, it pulls the plug.
pub(super) struct Boot {
    child: Child,
    lines: Receiver<String>,
    begun: Instant,
    limit: Duration,
    console: PathBuf,
    told: PathBuf,
}

/// What came of a boot.
pub(super) struct Ended {
    /// The command's exit status.
    pub(super) status: i32,
    /// From the start of the machine to its end.
    pub(super) took: Duration,
    /// What the guest's clock showed when the command began.
    pub(super) ready: String,
}

/// What the machine says next.
pub(super) enum Said {
    /// The command printed a line.
    Line(String),
    /// There will be no more: the machine is off.
    Off,
}

impl Machine {
    /// Makes the files of NVDIMM and disk, unless they are there.
    ///
    /// # Errors
    /// When one cannot be made.
    pub(super) fn plug_in(&self, nvdimm: u64) -> Result<()> {
        for (path, bytes) in [(&self.nvdimm, nvdimm), (&self.disk, DISK)] {
            let file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(path)
                .with_context(|| format!("make {}", path.display()))?;
            if file.metadata()?.len() == 0 {
                file.set_len(bytes)?;
            }
        }
        Ok(())
    }

    /// Boots it, to run the shell command `command` in `folder`. `name` tells this boot from others.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub(super) fn boot(&self, name: &str, folder: &Path, command: &str) -> Result<Boot> {
        fs::create_dir_all(&self.logs)?;
        let initramfs = self.logs.join(format!("{name}.initramfs"));
        let console = self.logs.join(format!("{name}.console"));
        let told = self.logs.join(format!("{name}.told"));
        fs::write(&initramfs, self.initramfs(folder, command))?;
        let mut child = Command::new(place::find("qemu-system-x86_64").context("no QEMU")?)
            .args(self.arguments(&initramfs, &console, &told)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start qemu-system-x86_64")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            // Only whole lines: the last one of a machine that was killed may be torn.
            while reader.read_until(b'\n', &mut line).is_ok() && line.pop() == Some(b'\n') {
                let text = String::from_utf8_lossy(&line).into_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Ok(Boot {
            child,
            lines,
            begun: Instant::now(),
            limit: self.limit,
            console,
            told,
        })
    }

    fn initramfs(&self, folder: &Path, command: &str) -> Vec<u8> {
        let mut job = Archive::default();
        job.file("init", INIT);
        job.file(
            "job/settings",
            format!(
                "LIMIT={}\nSHARE={}\n",
                self.limit.as_secs(),
                quote(&self.share.display().to_string())
            )
            .as_bytes(),
        );
        let folder = quote(&folder.display().to_string());
        job.file(
            "job/command",
            format!("cd {folder} || exit 125\n{command}\n").as_bytes(),
        );
        [self.image.base.as_slice(), &job.finish()].concat()
    }

    fn arguments(&self, initramfs: &Path, console: &Path, told: &Path) -> Result<Vec<OsString>> {
        let bytes = fs::metadata(&self.nvdimm)
            .with_context(|| format!("the NVDIMM's file {}", self.nvdimm.display()))?
            .len();
        // In option lists of QEMU a comma ends a value, unless it is doubled.
        let path = |path: &Path| path.display().to_string().replace(',', ",,");
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: &str| {
            words.push(option.into());
            if !value.is_empty() {
                words.push(value.into());
            }
        };
        add("-nodefaults", "");
        add("-no-user-config", "");
        add("-no-reboot", "");
        add("-display", "none");
        add("-machine", "q35,nvdimm=on");
        add("-accel", if self.kvm { "kvm" } else { "tcg" });
        // Where the host is a guest itself, its processor often refuses to pass that register on.
        add("-cpu", "max,arch-capabilities=off");
        add("-smp", "2");
        add("-m", "1G,slots=2,maxmem=64G");
        add(
            "-object",
            &format!(
                "memory-backend-file,id=dimm,share=on,mem-path={},size={bytes},align=2M",
                path(&self.nvdimm)
            ),
        );
        add("-device", "nvdimm,memdev=dimm");
        add(
            "-drive",
            &format!(
                "id=disk,if=none,format=raw,cache=unsafe,file={}",
                path(&self.disk)
            ),
        );
        add("-device", "virtio-blk-pci,drive=disk");
        add("-kernel", &path(&self.image.kernel));
        add("-initrd", &path(initramfs));
        add(
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=unstable",
        );
        let mut folder = |tag: &str, at: &Path, options: &str| {
            add(
                "-fsdev",
                &format!(
                    "local,id={tag},path={},security_model=none,multidevs=remap{options}",
                    path(at)
                ),
            );
            add(
                "-device",
                &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
            );
        };
        folder("host", Path::new("/"), ",readonly=on");
        folder("share", &self.share, "");
        add("-serial", &format!("file:{}", path(console)));
        add("-serial", &format!("file:{}", path(told)));
        add("-chardev", "stdio,id=out,signal=off");
        add("-device", "virtio-serial-pci");
        add("-device", "virtconsole,chardev=out");
        Ok(words)
    }
}

impl Boot {
    /// Waits for what the command prints next.
    ///
    /// # Errors
    /// When the machine is at it for longer than its limit.
    pub(super) fn listen(&mut self) -> Result<Said> {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(Said::Line(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(Said::Off),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "the virtual machine was still running after {} s\n{}",
                    self.limit.as_secs(),
                    self.console()
                )
            }
        }
    }

    /// Pulls the plug: the process gets no chance to write anything back.
    ///
    /// # Errors
    /// When the process cannot be killed.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end, after [`Said::Off`].
    ///
    /// # Errors
    /// When the machine did not come to the end of its command: with its console.
    pub(super) fn end(mut self) -> Result<Ended> {
        let qemu = self.child.wait()?;
        let told = fs::read_to_string(&self.told).unwrap_or_default();
        let word = |key: &str| told.lines().find_map(|line| line.trim().strip_prefix(key));
        let ready = word("ready ");
        let Some(status) = word("exit ").and_then(|it| it.parse().ok()) else {
            let what = match ready {
                Some(_) => "ended in the middle of its command",
                None => "did not boot",
            };
            bail!(
                "the virtual machine {what} (QEMU: {qemu})\n{}",
                self.console()
            );
        };
        Ok(Ended {
            status,
            took: self.begun.elapsed(),
            ready: ready.unwrap_or("?").to_owned(),
        })
    }

    /// The last lines that the guest's kernel and first process printed.
    pub(super) fn console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = exec::tail(&text, CONSOLE_LINES);
        format!("its console ({}):\n{text}", self.console.display())
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        // Whatever became of the command, no machine stays behind.
        let _ = self.kill();
    }
}

/// A word as the shell takes it literally.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_come_back_as_they_were() {
        for word in ["plain", "two words", "it's", "$HOME `id` \\", ""] {
            let shell = exec::text(
                Command::new("sh")
                    .arg("-c")
                    .arg(format!("printf %s {}", quote(word))),
            );
            assert_eq!(shell.unwrap(), word);
        }
    }
}
