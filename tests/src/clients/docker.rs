//! Runs Docker as a client: a separate `dockerd` with its own data folder, which the `docker`
//! command controls.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Client, PullResult, with_entrypoint};
use crate::{
    paths,
    process::{self, Daemon},
    tool::{self, Missing},
};

/// A running `dockerd`.
#[derive(Debug)]
pub struct Docker {
    daemon: Daemon,
    client: PathBuf,
    /// The prefix that the test adds to image names.
    prefix: String,
    /// A folder with a short path, for the sockets.
    sockets: TempDir,
    data: TempDir,
}

impl Docker {
    /// Finds `dockerd` and `docker`.
    pub fn find() -> Result<(PathBuf, PathBuf), Missing> {
        tool::root()?;
        tool::find(&["runc"])?;
        Ok((tool::find(&["dockerd"])?, tool::find(&["docker"])?))
    }

    /// Starts Docker with pierhead as the mirror of Docker Hub: `docker pull library/app:1`.
    pub fn with_mirror(mirror: SocketAddr) -> Result<Self> {
        Self::start(
            &json!({ "registry-mirrors": [format!("http://{mirror}")] }),
            String::new(),
        )
    }

    /// As [`Docker::with_mirror`], with a fake Docker Hub as the fallback. Docker reaches the fake
    /// through an HTTP proxy, because the name of Docker Hub is fixed. Docker trusts only the CA in
    /// the file `authority`, and does not retry downloads, so that a failure of the mirror is
    /// visible.
    pub fn with_hub(mirror: SocketAddr, proxy: SocketAddr, authority: &Path) -> Result<Self> {
        let settings = json!({
            "registry-mirrors": [format!("http://{mirror}")],
            "max-download-attempts": 1,
        });
        Self::spawn(&settings, String::new(), |command| {
            command
                .env("HTTPS_PROXY", format!("http://{proxy}"))
                .env("NO_PROXY", "127.0.0.1")
                .env("SSL_CERT_FILE", authority);
        })
    }

    /// Uses pierhead as the registry: `docker pull 127.0.0.1:PORT/docker.io/library/app:1`. Docker
    /// allows plain HTTP for loopback addresses.
    pub fn with_path(proxy: SocketAddr, registry: &str) -> Result<Self> {
        Self::start(&json!({}), format!("{proxy}/{registry}/"))
    }

    /// Starts Docker with these settings (`daemon.json`) and this prefix of image names.
    pub fn start(settings: &Value, prefix: String) -> Result<Self> {
        Self::spawn(settings, prefix, |_| ())
    }

    fn spawn(settings: &Value, prefix: String, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let (daemon, client) = Self::find()?;
        let sockets = paths::short("ph-docker")?;
        let data = paths::scratch("docker")?;
        let mut settings = settings.clone();
        let more = json!({
            "data-root": data.path().join("root"),
            "exec-root": sockets.path().join("exec"),
            "pidfile": sockets.path().join("pid"),
            "hosts": [format!("unix://{}", sockets.path().join("s").display())],
            // No bridge network, so that Docker does not change the network of this machine.
            "bridge": "none",
            "iptables": false,
            "ip6tables": false,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        let config = data.path().join("daemon.json");
        fs::write(&config, settings.to_string())?;
        let mut command = process::command(&daemon);
        // Docker starts the containerd and runc of the system, which it finds on the PATH and whose
        // versions match.
        command.arg("--config-file").arg(&config);
        prepare(&mut command);
        let mut docker = Self {
            daemon: Daemon::start("dockerd", &mut command, &data.path().join("log"))?,
            client,
            prefix,
            sockets,
            data,
        };
        docker.daemon.until("API listening", |log| {
            Ok(log.contains("API listen on").then_some(()))
        })?;
        Ok(docker)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.client);
        command
            .env(
                "DOCKER_HOST",
                format!("unix://{}", self.sockets.path().join("s").display()),
            )
            .env_remove("DOCKER_CONTEXT")
            // An empty configuration folder. The developer's own configuration may contain
            // credentials.
            .env("DOCKER_CONFIG", self.sockets.path());
        command
    }

    /// The path of its `daemon.json`.
    pub fn config(&self) -> PathBuf {
        self.data.path().join("daemon.json")
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.sockets.path().join("s")
    }

    /// Reloads `daemon.json` without a restart, and waits for the reload.
    pub fn reload(&mut self) -> Result<()> {
        let done = |log: &str| log.matches("Reloaded configuration").count();
        let before = done(&self.daemon.log());
        self.daemon.signal(rustix::process::Signal::HUP)?;
        self.daemon.until("the reload of its configuration", |log| {
            Ok((done(log) > before).then_some(()))
        })
    }

    /// Runs `docker` with these arguments.
    pub fn docker(&self, arguments: &[&str]) -> Result<String> {
        process::run(self.command().args(arguments))
    }
}

impl Client for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn pull(&self, name: &str) -> Result<PullResult> {
        let name = format!("{}{name}", self.prefix);
        self.docker(&["pull", &name])?;
        let about: Value = serde_json::from_str(&process::stdout(
            self.command().args(["image", "inspect", &name]),
        )?)?;
        let text = |value: &Value| {
            value
                .as_str()
                .map(str::to_owned)
                .with_context(|| about.to_string())
        };
        let named = text(&about[0]["RepoDigests"][0])?;
        let (_, root) = named.split_once('@').context("no digest")?;
        Ok(PullResult {
            root: root.to_owned(),
            config: text(&about[0]["Id"])?,
        })
    }

    fn empty(&self) -> Result<()> {
        self.docker(&["system", "prune", "--all", "--force"])
            .map(drop)
    }

    fn run(&self, name: &str, command: &[&str]) -> Result<Option<String>> {
        let name = format!("{}{name}", self.prefix);
        let mut docker = self.command();
        docker.args(["run", "--rm", "--network=none"]);
        process::stdout(with_entrypoint(&mut docker, &name, command)).map(Some)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // `dockerd` stops its containerd, which stops its shims.
        let _ = self.daemon.terminate();
        process::unmount_below(self.sockets.path());
        process::unmount_below(self.data.path());
    }
}
