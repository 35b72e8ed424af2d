//! The machine's upstream and its client: the example program `peer` of `crates/testkit`.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Running; ended when it is dropped.
pub(super) struct Peer {
    child: Child,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Its registry.
    pub(super) url: String,
}

/// What came of a pull.
pub(super) struct Pulled {
    /// Until the manifest was here, and until all was.
    pub(super) seconds: [f64; 2],
    /// Of the whole image.
    pub(super) bytes: u64,
    /// Answers, and those from a cache.
    pub(super) answers: [u64; 2],
    /// Requests that the registry got meanwhile.
    pub(super) asked: u64,
}

impl Peer {
    /// Starts it.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
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

    /// Pulls the image through `address` and compares every byte.
    ///
    /// # Errors
    /// With what was wrong.
    pub(super) fn pull(&mut self, address: SocketAddr) -> Result<Pulled> {
        let said = self.ask(&format!("pull {address}"))?;
        let number = |key: &str| said[key].as_u64().with_context(|| format!("{key}: {said}"));
        let seconds = |key: &str| said[key].as_f64().with_context(|| format!("{key}: {said}"));
        Ok(Pulled {
            seconds: [seconds("manifest_seconds")?, seconds("seconds")?],
            bytes: number("bytes")?,
            answers: [number("answers")?, number("hits")?],
            asked: number("asked")?,
        })
    }

    /// The body of an answer.
    ///
    /// # Errors
    /// When its status is not 200.
    pub(super) fn get(&mut self, address: SocketAddr, path: &str) -> Result<String> {
        let said = self.ask(&format!("get {address} {path}"))?;
        if said["status"] != 200 {
            bail!("{path}: {said}");
        }
        Ok(said["body"].as_str().context("no body")?.to_owned())
    }

    /// Ends its registry: nobody answers there.
    ///
    /// # Errors
    /// When it is gone itself.
    pub(super) fn down(&mut self) -> Result<()> {
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
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
