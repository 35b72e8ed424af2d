//! One server process of the control plane, which ends with this process.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::binaries::Binaries;
use crate::exec;

/// Lines of its log that a failure shows.
const LINES: usize = 20;

/// A server. Dropped, it is killed: what it keeps is thrown away, too.
pub(super) struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts `program` with its output in `log`. The kernel kills it when this process ends, however that comes:
    /// so call it from the main thread, whose end is the process's.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(
        binaries: &Binaries,
        name: &'static str,
        log: PathBuf,
        program: &Command,
    ) -> Result<Self> {
        let output = File::create(&log)?;
        let child = Command::new(&binaries.setpriv)
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self { name, child, log })
    }

    /// Fails when it is not running any more: with the end of its log.
    pub(super) fn look(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended: {status}\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// Tells it to end, and waits until it has.
    ///
    /// # Errors
    /// When it ends badly: with the end of its log.
    pub(super) fn end(mut self) -> Result<()> {
        let process = self.child.id().to_string();
        exec::output(Command::new("kill").args(["-TERM", &process]))?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended: {status}\n{}", self.name, self.tail());
        }
        Ok(())
    }

    fn tail(&self) -> String {
        exec::tail(&fs::read(&self.log).unwrap_or_default(), LINES)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports of the loopback that nobody has. They are all held until all are known, so they differ; whoever takes one
/// before its server does makes that server's start fail, and says so in its log.
///
/// # Errors
/// When the system has none.
pub(super) fn ports<const N: usize>() -> Result<[u16; N]> {
    let held: Vec<_> = (0..N)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)))
        .collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
