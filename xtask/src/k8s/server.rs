//! One server process (such as etcd or the API server) of the Kubernetes control plane that `cargo
//! xtask k8s` starts. The process ends when xtask ends.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::binaries::Binaries;
use crate::exec;

/// Number of log lines that an error contains.
const LINES: usize = 20;

/// A server process. Dropping the value kills it, because its data is temporary.
pub(super) struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts `program` with its output in `log`. The kernel kills the server when the calling
    /// thread ends. For this reason, call this function from the main thread, which ends with the
    /// process.
    ///
    /// # Errors
    /// The server cannot be started.
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

    /// Fails if the server has ended. The error has the end of its log.
    pub(super) fn look(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended: {status}\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// Asks the server to end, and waits for its end.
    ///
    /// # Errors
    /// The server exits with an error. The error has the end of its log.
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

/// Finds unused ports of the loopback interface. All ports are bound until all are found, so they
/// differ. If another process takes a port before the server does, the server fails to start and
/// logs the reason.
///
/// # Errors
/// The system has no unused port.
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
