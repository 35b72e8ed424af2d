//! Test harness of the daemon tests: runs the daemon as a process on free ports, and sends requests
//! and signals to it.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use pierhead_testkit::http::{Request, Response};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// Time limit of each event that a test waits for. A longer wait means that pierhead hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for an event, with a time limit.
pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen"),
    }
}

/// A running daemon. Dropping this value kills the process.
pub(crate) struct Daemon {
    child: Child,
    folder: TempDir,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: watch::Receiver<String>,
}

/// Returns a command with an admin listener on a free port.
fn serving(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = serving_with_default_admin(folder);
    command.args(["--admin", "127.0.0.1:0"]).args(arguments);
    command
}

fn serving_with_default_admin(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pierhead"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(folder.join("pierhead.toml"))
        .arg("--data")
        .arg(folder.join("data"))
        .arg("--ready-file")
        .arg(folder.join("ready"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // Removes the environment variables for HTTP proxies, which would change the test.
    for name in ["https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"] {
        command.env_remove(name);
    }
    command
}

/// Collects the lines of the daemon's log.
fn follow(child: &mut Child) -> watch::Receiver<String> {
    let (sender, receiver) = watch::channel(String::new());
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            sender.send_modify(|log| {
                log.push_str(&line);
                log.push('\n');
            });
        }
    });
    receiver
}

/// Creates the folder of a daemon, with its configuration.
fn configured(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pierhead.toml");
    std::fs::write(&file, config).expect("the file is written");
    // Sets the mode of the file independently of the umask.
    let everybody = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(file, everybody).expect("a new mode");
    folder
}

impl Daemon {
    /// Starts a daemon with this configuration, and waits until it is ready.
    pub(crate) async fn start(config: &str, arguments: &[&str]) -> Self {
        Self::start_with(config, arguments, |_| {}).await
    }

    /// Starts a daemon, after `more` has changed its command.
    pub(crate) async fn start_with(
        config: &str,
        arguments: &[&str],
        more: impl FnOnce(&mut Command),
    ) -> Self {
        let folder = configured(config);
        let mut command = serving(folder.path(), arguments);
        more(&mut command);
        Self::run(folder, command).await
    }

    /// Starts a daemon with the default address of the admin listener.
    pub(crate) async fn start_with_default_admin() -> Self {
        let folder = configured("");
        let command = serving_with_default_admin(folder.path());
        Self::run(folder, command).await
    }

    async fn run(folder: TempDir, mut command: Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        let mut log = follow(&mut child);
        let ready = folder.path().join("ready");
        // The daemon writes this log line after the ready file. If the process exits instead, the
        // log ends.
        let started = soon("the start", log.wait_for(|log| log.contains("is ready")))
            .await
            .is_ok();
        assert!(started, "it did not start: {}", *log.borrow());
        let told: serde_json::Value =
            serde_json::from_slice(&std::fs::read(ready).expect("the file exists")).expect("JSON");
        let address = |value: &serde_json::Value| value.as_str().and_then(|text| text.parse().ok());
        let listen = address(&told["listen"][0]).expect("an address");
        // If the daemon has no admin listener, uses an address that refuses connections.
        let admin = address(&told["admin"]).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        Self {
            child,
            folder,
            listen,
            admin,
            log,
        }
    }

    /// Starts a second daemon with the same data folder. The second daemon must fail.
    pub(crate) async fn second(&self, arguments: &[&str]) -> Output {
        refuse(self.folder.path(), arguments).await
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("pierhead runs")
    }

    /// The folder with configuration and data.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn ready_file(&self) -> PathBuf {
        self.folder.path().join("ready")
    }

    /// Writes the configuration file. The daemon reads the file at the next SIGHUP.
    pub(crate) fn configure(&self, config: &str) {
        std::fs::write(self.folder.path().join("pierhead.toml"), config)
            .expect("the file is written");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Waits until the process of the daemon exits and its whole log is read.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let status = soon("the end", self.child.wait())
            .await
            .expect("it is our child");
        let mut log = self.log.clone();
        // The reader drops its end of the channel at the end of the output.
        soon("the end of the log", async {
            while log.changed().await.is_ok() {}
        })
        .await;
        status
    }

    /// Returns the text of the log so far.
    pub(crate) fn log(&self) -> String {
        self.log.borrow().clone()
    }

    /// Waits until the log contains this text.
    pub(crate) async fn logs(&self, text: &str) {
        let mut log = self.log.clone();
        let is_logged = soon(text, log.wait_for(|log| log.contains(text)))
            .await
            .is_ok();
        assert!(is_logged, "{text:?} was never logged: {}", *log.borrow());
    }

    /// Sends a request to the admin listener of the daemon.
    pub(crate) async fn ask(&self, request: Request) -> Response {
        request.send(self.admin).await.expect("a response")
    }

    /// Sends a GET request to the admin listener of the daemon.
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.ask(Request::get(path)).await
    }

    /// Runs `pierhead cache …`. Returns the exit code, standard output and standard error.
    pub(crate) async fn cache(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pierhead"));
        command
            .arg("cache")
            .args(arguments)
            .args(["--admin", &format!("http://{}", self.admin)]);
        let output = soon("the command's end", command.output())
            .await
            .expect("pierhead runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    /// Runs `pierhead cache …`. The command must succeed. Returns standard output.
    #[track_caller]
    pub(crate) fn cached(&self, arguments: &[&str]) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let (code, out, err) = self.cache(arguments).await;
            assert_eq!(code, Some(0), "{caller}: {arguments:?}: {out}{err}");
            out
        }
    }
}

/// Sends a signal to the process.
pub(crate) fn send_signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("pierhead runs");
    rustix::process::kill_process(pid, signal).expect("the file exists");
}

/// Starts a daemon in a folder, after `more` has changed its command. Does not wait until the
/// daemon is ready.
pub(crate) fn start_only(folder: &Path, more: impl FnOnce(&mut Command)) -> Child {
    write_missing_config(folder);
    let mut command = serving(folder, &[]);
    more(&mut command);
    command.spawn().expect("it starts")
}

/// Runs `pierhead serve` in a folder. The start must fail.
pub(crate) async fn refuse(folder: &Path, arguments: &[&str]) -> Output {
    write_missing_config(folder);
    soon("the refusal", serving(folder, arguments).output())
        .await
        .expect("pierhead runs")
}

/// Writes an empty configuration file into a folder that has none.
fn write_missing_config(folder: &Path) {
    let config = folder.join("pierhead.toml");
    if !config.exists() {
        std::fs::write(config, "").expect("the file is written");
    }
}

/// Creates a file with the password of an upstream.
pub(crate) fn password_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, "hunter2\n").expect("a password");
    // All users can read this file, so pierhead logs a warning.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&file, all).expect("its mode");
    file
}
