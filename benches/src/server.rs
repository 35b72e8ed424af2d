//! Runs a pierhead daemon for a benchmark, and requests bundles from it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pierhead_oci::Digest;
use pierhead_tests::layout::architecture;
use pierhead_tests::process;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;

/// Time limit of indexing an image.
const INDEX_TIMEOUT: Duration = Duration::from_secs(1200);
/// Interval of polling whether the daemon is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The end of a chunked body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A running pierhead. Dropping it stops the process and removes its cache.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    words: Vec<String>,
    /// The command prefix that runs programs in the namespace of the server.
    program: Vec<String>,
    admin: String,
    folder: TempDir,
}

/// The response with a bundle.
#[derive(Clone, Debug)]
pub(crate) struct BundleResponse {
    pub(crate) etag: String,
    /// Received bytes, including the response head.
    pub(crate) bytes: u64,
    /// Time from the request to the first byte of the body.
    pub(crate) first_byte: Duration,
}

impl Server {
    /// Starts pierhead in front of a registry. `prefix` is the command prefix for its namespace.
    pub(crate) fn start(
        pierhead: &Path,
        prefix: &[String],
        listen: &str,
        upstream: SocketAddr,
        config: &str,
    ) -> Result<Self> {
        // The data folder is beside the program, on disk. The default folder for temporary files
        // may be in memory.
        let pierhead = pierhead
            .canonicalize()
            .with_context(|| format!("{}: cargo build --release", pierhead.display()))?;
        let folder = tempfile::Builder::new()
            .prefix("bundle-bench")
            .tempdir_in(pierhead.parent().context("a program without a folder")?)?;
        let file = folder.path().join("pierhead.toml");
        fs::write(&file, config)?;
        let mut program = prefix.to_vec();
        program.push(pierhead.display().to_string());
        let mut words = program.clone();
        for word in [
            "serve",
            "--listen",
            listen,
            "--admin",
            "127.0.0.1:0",
            "--config",
            &file.display().to_string(),
            "--data",
            &folder.path().join("data").display().to_string(),
            "--ready-file",
            &folder.path().join("ready").display().to_string(),
            "--upstream",
            &format!("docker.io=http://{upstream}"),
        ] {
            words.push(word.to_owned());
        }
        let (process, address, admin) = spawn(&words, folder.path())?;
        Ok(Self {
            process,
            address,
            words,
            program,
            admin,
            folder,
        })
    }

    /// Starts a new process with the same data folder. The new process may use another port.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.end();
        (self.process, self.address, self.admin) = spawn(&self.words, self.folder.path())?;
        Ok(())
    }

    /// Requests a bundle of `library/<name>` over a new connection, and discards the bytes. Retries
    /// while the server is not ready.
    pub(crate) fn bundle(&self, name: &str, base_images: &[Digest]) -> Result<BundleResponse> {
        let end = Instant::now() + INDEX_TIMEOUT;
        loop {
            match self.ask(name, base_images)? {
                Some(answer) => return Ok(answer),
                None if Instant::now() > end => {
                    bail!("{name} is not ready after {INDEX_TIMEOUT:?}")
                }
                None => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Requests a bundle; `None` when the server is not ready.
    fn ask(&self, name: &str, base_images: &[Digest]) -> Result<Option<BundleResponse>> {
        let (repository, tag) = name.split_once(':').context("a name without a tag")?;
        // Some image references point to an index.
        let platform = format!("linux/{}", architecture());
        let body =
            json!({ "want": tag, "platform": platform, "base_images": base_images }).to_string();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        let start = Instant::now();
        write!(
            stream,
            "POST /v2/docker.io/library/{repository}/_pierhead/bundle HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let mut buffer = vec![0; 256 << 10];
        let mut filled = 0;
        let end = loop {
            let read = stream.read(&mut buffer[filled..])?;
            ensure!(read > 0, "{name}: connection closed within the head");
            filled += read;
            let end = buffer[..filled].windows(4).position(|it| it == b"\r\n\r\n");
            if let Some(end) = end {
                break end;
            }
        };
        let mut first_byte = (filled > end + 4).then(|| start.elapsed());
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let mut bytes = filled as u64;
        let mut tail = buffer[..filled].to_vec();
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            first_byte.get_or_insert_with(|| start.elapsed());
            bytes += read as u64;
            tail.drain(..tail.len().saturating_sub(LAST_CHUNK.len()));
            tail.extend_from_slice(&buffer[read.saturating_sub(LAST_CHUNK.len())..read]);
        }
        let total = start.elapsed();
        let field = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            let mut lines = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
            lines.next().map(|(_, value)| value.trim().to_owned())
        };
        let status = head.split(' ').nth(1).unwrap_or_default();
        match status {
            "200" => {}
            "503" => return Ok(None),
            _ => bail!("{name}: {head}"),
        }
        if let Some(length) = field("content-length") {
            let length: u64 = length.parse()?;
            ensure!(
                bytes == length + end as u64 + 4,
                "{name}: {bytes} bytes of {length}"
            );
        }
        if field("transfer-encoding").is_some() {
            ensure!(
                tail.ends_with(LAST_CHUNK),
                "{name}: interrupted after {bytes} bytes"
            );
        }
        Ok(Some(BundleResponse {
            etag: field("etag").unwrap_or_default(),
            bytes,
            first_byte: first_byte.unwrap_or(total),
        }))
    }

    /// Waits until the daemon has no background work.
    pub(crate) fn settle(&self) -> Result<()> {
        let end = Instant::now() + INDEX_TIMEOUT;
        while self.jobs()? > 0 {
            ensure!(Instant::now() < end, "busy for {INDEX_TIMEOUT:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Number of queued and running background jobs.
    fn jobs(&self) -> Result<u64> {
        self.stat("jobs")
    }

    /// A value of the daemon's bundle statistics.
    pub(crate) fn stat(&self, name: &str) -> Result<u64> {
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).args(["cache", "stat", "--json"]);
        let said = process::stdout(command.args(["--admin", &self.admin]))?;
        let stat: Value = serde_json::from_str(&said)?;
        let figure = stat["bundle"][name].as_u64();
        figure.with_context(|| format!("no {name} in {stat}"))
    }

    /// Lets the server fetch, index, pack and prepare an image. Returns its final response.
    pub(crate) fn warm(&self, name: &str, base_images: &[Digest]) -> Result<BundleResponse> {
        self.bundle(name, base_images)?;
        self.settle()?;
        let (one, other) = (
            self.bundle(name, base_images)?,
            self.bundle(name, base_images)?,
        );
        ensure!(
            (&one.etag, one.bytes) == (&other.etag, other.bytes),
            "equal requests have different responses: {one:?} {other:?}"
        );
        Ok(other)
    }
}

/// Starts the daemon. Returns the process, its address and its admin address.
fn spawn(words: &[String], folder: &Path) -> Result<(Process, SocketAddr, String)> {
    let ready = folder.join("ready");
    let _ = fs::remove_file(&ready);
    let (program, arguments) = words.split_first().context("no program")?;
    let mut process = Process::spawn(process::command(Path::new(program)).args(arguments))?;
    let (address, admin) = process.until("pierhead is ready", || {
        // A file that the daemon has only partly written counts as missing.
        let Ok(started) = serde_json::from_slice::<Value>(&fs::read(&ready).unwrap_or_default())
        else {
            return Ok(None);
        };
        let address = started["listen"][0]
            .as_str()
            .context("no address")?
            .parse()?;
        let admin = started["admin"].as_str().context("no admin address")?;
        Ok(Some((address, format!("http://{admin}"))))
    })?;
    Ok((process, address, admin))
}

/// Any loopback port.
pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}
