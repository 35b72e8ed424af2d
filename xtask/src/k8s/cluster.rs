//! Starts a Kubernetes control plane on the loopback interface, with nodes that kwok simulates.

use std::{
    cell::RefCell,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{binaries::Binaries, client::Client, server::Server, settings::Settings};
use crate::paths;

const NODES: &str = include_str!("nodes.yaml");

/// Time limit of a start or a change, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of starts. Each start uses other ports, because another process may take a port
/// before the server does.
const STARTS: usize = 3;

/// etcd, the Kubernetes servers and kwok, which simulates the nodes. Dropping the value kills them
/// and deletes their data.
pub(super) struct Cluster {
    servers: RefCell<Vec<Server>>,
    /// Client of the cluster.
    pub(super) client: Client,
    // Dropped after the servers, because they write into this folder until they end.
    scratch: tempfile::TempDir,
}

impl Cluster {
    /// Starts the cluster and waits until every node is ready.
    ///
    /// # Errors
    /// A server ends, or is not ready within the time limit. The error has the end of its log.
    pub(super) fn start(binaries: &Binaries) -> Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::try_start(binaries) {
                Err(error) if tries < STARTS => println!("  once more: {error:#}"),
                result => return result,
            }
        }
    }

    fn try_start(binaries: &Binaries) -> Result<Self> {
        let scratch = scratch()?;
        let settings = Settings::write(binaries, scratch.path())?;
        let home = scratch.path().join("home");
        fs::create_dir(&home)?;
        let it = Self {
            servers: RefCell::default(),
            client: Client::new(binaries, settings.access("admin"), home),
            scratch,
        };
        it.add(binaries, "etcd", &settings.etcd())?;
        it.add(binaries, "kube-apiserver", &settings.api_server())?;
        it.until("the API server is ready", || {
            it.client.kubectl(["get", "--raw", "/readyz"])
        })?;
        let controllers = settings.controller_manager();
        it.add(binaries, "kube-controller-manager", &controllers)?;
        it.add(binaries, "kube-scheduler", &settings.scheduler())?;
        it.add(binaries, "kwok", &settings.kwok())?;
        it.client.create(NODES)?;
        it.until("every node is ready", || {
            let ready = ["wait", "--for=condition=Ready", "node", "--all"];
            it.client.kubectl(ready.iter().chain(&["--timeout=1s"]))
        })?;
        Ok(it)
    }

    fn add(
        &self,
        binaries: &Binaries,
        name: &'static str,
        command: &std::process::Command,
    ) -> Result<()> {
        let log = self.scratch.path().join(format!("{name}.log"));
        let server = Server::start(binaries, name, log, command)?;
        self.servers.borrow_mut().push(server);
        Ok(())
    }

    /// A folder that is deleted with the cluster.
    pub(super) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Calls `ask` until it succeeds. After the time limit, returns its last error.
    ///
    /// # Errors
    /// The time limit is exceeded, or a server has ended.
    pub(super) fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let started_at = Instant::now();
        loop {
            for server in self.servers.borrow_mut().iter_mut() {
                server.look()?;
            }
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) if started_at.elapsed() > PATIENCE => {
                    let limit = PATIENCE.as_secs();
                    return Err(error.context(format!("{what}: not within {limit} s")));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// Creates a folder for one run, and deletes the folders of killed runs.
fn scratch() -> Result<tempfile::TempDir> {
    let folder = paths::target().join("k8s");
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|it| it.split('-').nth(1));
        let lives = owner.is_some_and(|pid| Path::new("/proc").join(pid).exists());
        if !lives {
            fs::remove_dir_all(entry.path())?;
        }
    }
    tempfile::Builder::new()
        .prefix(&format!("run-{}-", std::process::id()))
        .tempdir_in(&folder)
        .with_context(|| format!("a folder in {}", folder.display()))
}
