//! One boot of a virtual machine: its console output, its time limit, and its exit status.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{console, exec};

/// Number of console lines that an error contains.
const CONSOLE_LINES: usize = 30;

/// The files of one boot.
pub(crate) struct Logs {
    /// The initramfs of the boot.
    pub(crate) initramfs: PathBuf,
    /// Console: the output of the kernel and of the init process.
    pub(crate) console: PathBuf,
    /// Messages of the init process (`init.sh`) to the host.
    pub(crate) told: PathBuf,
}

impl Logs {
    /// Paths of these files in `folder`. `name` distinguishes the boots.
    pub(crate) fn of(folder: &Path, name: &str) -> Self {
        Self {
            initramfs: folder.join(format!("{name}.initramfs")),
            console: folder.join(format!("{name}.console")),
            told: folder.join(format!("{name}.told")),
        }
    }
}

/// A boot in progress. Dropping it kills the machine.
pub(crate) struct Boot {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    started_at: Instant,
    limit: Duration,
    logs: Logs,
}

/// The result of a boot.
pub(crate) struct BootResult {
    /// Exit status of the guest's command.
    pub(crate) status: i32,
    /// Time from the start of the machine until its end.
    pub(crate) took: Duration,
    /// The guest's clock when the command began.
    pub(crate) ready: String,
}

/// The next event of the machine.
pub(crate) enum ConsoleOutput {
    /// The guest's command printed a line.
    Line(String),
    /// The machine is off, so no more lines follow.
    Off,
}

impl Boot {
    /// Starts `qemu`, and kills it after `limit`. QEMU's standard input and output are those of the
    /// guest's command: see [`Boot::say`] and [`Boot::listen`].
    ///
    /// # Errors
    /// QEMU cannot be started.
    pub(crate) fn start(qemu: &mut Command, logs: Logs, limit: Duration) -> Result<Self> {
        let name = qemu.get_program().display().to_string();
        let mut child = qemu
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(console::stdio()?)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let input = child.stdin.take();
        let stdout = child.stdout.take().context("no standard output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            // Forward only complete lines. The last line of a killed machine may be incomplete.
            while reader.read_until(b'\n', &mut line).is_ok() && line.pop() == Some(b'\n') {
                let text = String::from_utf8_lossy(&line).into_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            input,
            lines,
            started_at: Instant::now(),
            limit,
            logs,
        })
    }

    /// Waits for the next line of the guest's command, or for the end of the machine.
    ///
    /// # Errors
    /// The machine exceeds its time limit.
    pub(crate) fn listen(&mut self) -> Result<ConsoleOutput> {
        let left = self.limit.saturating_sub(self.started_at.elapsed());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(ConsoleOutput::Line(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(ConsoleOutput::Off),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "the virtual machine was still running after {} s\n{}",
                    self.limit.as_secs(),
                    self.console()
                )
            }
        }
    }

    /// Writes a line to the standard input of the guest's command.
    ///
    /// # Errors
    /// The machine is off.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("it has no input")?;
        input
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| input.flush())
            .context("the virtual machine does not listen")
    }

    /// Kills the machine like a power loss: QEMU writes nothing back.
    ///
    /// # Errors
    /// The process cannot be killed.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end of the machine, after [`ConsoleOutput::Off`].
    ///
    /// # Errors
    /// The guest's command did not finish. The error has the console output.
    pub(crate) fn end(mut self) -> Result<BootResult> {
        let qemu = self.child.wait()?;
        let Some(status) = self.init_message("exit ").and_then(|it| it.parse().ok()) else {
            let what = match self.init_message("ready ") {
                Some(_) => "ended in the middle of its command",
                None => "did not boot",
            };
            bail!(
                "the virtual machine {what} (QEMU: {qemu})\n{}",
                self.console()
            );
        };
        Ok(BootResult {
            status,
            took: self.started_at.elapsed(),
            ready: self.ready(),
        })
    }

    /// The guest's clock when the command began.
    pub(crate) fn ready(&self) -> String {
        self.init_message("ready ")
            .unwrap_or_else(|| "?".to_owned())
    }

    /// Time since the start of the machine.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// The rest of the init process's message that begins with `key`.
    fn init_message(&self, key: &str) -> Option<String> {
        let told = fs::read_to_string(&self.logs.told).ok()?;
        let mut lines = told.lines();
        lines.find_map(|line| line.trim().strip_prefix(key).map(str::to_owned))
    }

    /// The last lines of the console.
    pub(crate) fn console(&self) -> String {
        let console = &self.logs.console;
        let text = fs::read(console).unwrap_or_default();
        let text = exec::tail(&text, CONSOLE_LINES);
        format!("its console ({}):\n{text}", console.display())
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        // No machine may outlive this process.
        let _ = self.kill();
    }
}
