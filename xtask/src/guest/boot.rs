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

/// Lines of the guest's console that a failure shows.
const CONSOLE_LINES: usize = 30;

/// The files of one boot.
pub(crate) struct Logs {
    /// What it boots from besides the kernel.
    pub(crate) initramfs: PathBuf,
    /// What its kernel and its first process print.
    pub(crate) console: PathBuf,
    /// What its first process tells the host: see `init.sh`.
    pub(crate) told: PathBuf,
}

impl Logs {
    /// Those in `folder`; `name` tells this boot from others.
    pub(crate) fn of(folder: &Path, name: &str) -> Self {
        Self {
            initramfs: folder.join(format!("{name}.initramfs")),
            console: folder.join(format!("{name}.console")),
            told: folder.join(format!("{name}.told")),
        }
    }
}

/// A boot in progress. Dropped, it pulls the plug.
pub(crate) struct Boot {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    begun: Instant,
    limit: Duration,
    logs: Logs,
}

/// What came of a boot.
pub(crate) struct Ended {
    /// The command's exit status.
    pub(crate) status: i32,
    /// From the start of the machine to its end.
    pub(crate) took: Duration,
    /// What the guest's clock showed when the command began.
    pub(crate) ready: String,
}

/// What the machine says next.
pub(crate) enum Said {
    /// The command printed a line.
    Line(String),
    /// There will be no more: the machine is off.
    Off,
}

impl Boot {
    /// Starts `qemu`, whose standard output and input are those of the guest's job, for at most `limit`.
    ///
    /// # Errors
    /// When it cannot be started.
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
            // Only whole lines: the last one of a machine that was killed may be torn.
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
            begun: Instant::now(),
            limit,
            logs,
        })
    }

    /// Waits for what the command prints next.
    ///
    /// # Errors
    /// When the machine is at it for longer than its limit.
    pub(crate) fn listen(&mut self) -> Result<Said> {
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

    /// Writes a line to the job's input.
    ///
    /// # Errors
    /// When the machine is off.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("it has no input")?;
        input
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| input.flush())
            .context("the virtual machine does not listen")
    }

    /// Pulls the plug: the process gets no chance to write anything back.
    ///
    /// # Errors
    /// When the process cannot be killed.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end, after [`Said::Off`].
    ///
    /// # Errors
    /// When the machine did not come to the end of its command: with its console.
    pub(crate) fn end(mut self) -> Result<Ended> {
        let qemu = self.child.wait()?;
        let Some(status) = self.told("exit ").and_then(|it| it.parse().ok()) else {
            let what = match self.told("ready ") {
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
            ready: self.ready(),
        })
    }

    /// What the guest's clock showed when the command began.
    pub(crate) fn ready(&self) -> String {
        self.told("ready ").unwrap_or_else(|| "?".to_owned())
    }

    /// Since it was started.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The rest of the line that begins so, of those that the first process told.
    fn told(&self, key: &str) -> Option<String> {
        let told = fs::read_to_string(&self.logs.told).ok()?;
        let mut lines = told.lines();
        lines.find_map(|line| line.trim().strip_prefix(key).map(str::to_owned))
    }

    /// The last lines that the guest's kernel and first process printed.
    pub(crate) fn console(&self) -> String {
        let console = &self.logs.console;
        let text = fs::read(console).unwrap_or_default();
        let text = exec::tail(&text, CONSOLE_LINES);
        format!("its console ({}):\n{text}", console.display())
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        // Whatever became of the command, no machine stays behind.
        let _ = self.kill();
    }
}
