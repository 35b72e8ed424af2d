//! Runs the example program `peer` of `crates/testkit` beside a virtual machine: an upstream
//! registry and a client.

use std::{
    fmt,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{console, exec, paths};

/// The running program. Dropping it ends the program.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// URL of the program's registry.
    pub(crate) url: String,
}

/// The result of a pull.
pub(crate) struct PullResult {
    /// Seconds until the manifest was complete, and until the whole image was complete.
    pub(crate) seconds: [f64; 2],
    /// Size of the image in bytes.
    pub(crate) bytes: u64,
    /// Number of responses, and of responses from a cache.
    pub(crate) answers: [u64; 2],
    /// Number of requests that the registry received during the pull.
    pub(crate) asked: u64,
}

impl fmt::Display for PullResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [manifest, all] = self.seconds;
        let [answers, hits] = self.answers;
        write!(
            f,
            "manifest in {manifest:.2} s, {} bytes in {all:.2} s, {hits} of {answers} from the cache",
            self.bytes
        )
    }
}

impl Peer {
    /// Builds the program `peer`.
    ///
    /// # Errors
    /// The program does not compile.
    pub(crate) fn built() -> Result<PathBuf> {
        // The same features as in the build of the tests, so that cargo compiles nothing twice.
        exec::output(exec::cargo().args(["build", "--workspace", "--example", "peer"]))?;
        Ok(paths::target().join("debug/examples/peer"))
    }

    /// Starts the program.
    ///
    /// # Errors
    /// The program does not become ready.
    pub(crate) fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(console::stdio()?)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut peer = Self {
            input: child.stdin.take().context("no input")?,
            answers: BufReader::new(child.stdout.take().context("no output")?),
            child,
            url: String::new(),
        };
        let first = peer.answer()?;
        first["url"]
            .as_str()
            .context("no URL")?
            .clone_into(&mut peer.url);
        Ok(peer)
    }

    /// Pulls the image through `address`, and compares every byte.
    ///
    /// # Errors
    /// The pull fails, or a byte differs.
    pub(crate) fn pull(&mut self, address: SocketAddr) -> Result<PullResult> {
        let said = self.ask(&format!("pull {address}"))?;
        let number = |key: &str| said[key].as_u64().with_context(|| format!("{key}: {said}"));
        let seconds = |key: &str| said[key].as_f64().with_context(|| format!("{key}: {said}"));
        Ok(PullResult {
            seconds: [seconds("manifest_seconds")?, seconds("seconds")?],
            bytes: number("bytes")?,
            answers: [number("answers")?, number("hits")?],
            asked: number("asked")?,
        })
    }

    /// Repeats the pull until the registry gets no request. A client may have all bytes before
    /// pierhead has stored them.
    ///
    /// # Errors
    /// A pull fails, or the registry still gets requests for stored blobs.
    pub(crate) fn cached(&mut self, address: SocketAddr) -> Result<PullResult> {
        loop {
            let pulled = self.pull(address)?;
            let [answers, hits] = pulled.answers;
            if hits == answers {
                ensure!(pulled.asked == 0, "the upstream was asked");
                return Ok(pulled);
            }
        }
    }

    /// Returns the body of a response.
    ///
    /// # Errors
    /// The status is not 200.
    pub(crate) fn get(&mut self, address: SocketAddr, path: &str) -> Result<String> {
        let said = self.ask(&format!("get {address} {path}"))?;
        if said["status"] != 200 {
            bail!("{path}: {said}");
        }
        Ok(said["body"].as_str().context("no body")?.to_owned())
    }

    /// Stops the program's registry, so that connections to it are refused.
    ///
    /// # Errors
    /// The program has ended.
    pub(crate) fn down(&mut self) -> Result<()> {
        self.ask("down").map(drop)
    }

    fn ask(&mut self, line: &str) -> Result<Value> {
        writeln!(self.input, "{line}")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).context("the peer has ended")?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{error}");
        }
        Ok(answer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
