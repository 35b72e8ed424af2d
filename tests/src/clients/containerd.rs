//! Runs containerd as a client: a separate daemon, which `ctr` controls. The file `hosts.toml` of
//! containerd names pierhead as a mirror. containerd names the registry in each request to the
//! mirror by the parameter `?ns=`.

use std::{env, fs, net::SocketAddr, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{Client, PullResult, UNREACHABLE};
use crate::{
    paths,
    process::{self, Daemon},
    tool::{self, Missing},
};

/// A running `containerd`.
#[derive(Debug)]
pub struct Containerd {
    daemon: Daemon,
    ctr: PathBuf,
    registry: String,
    /// A folder with a short path, for the sockets.
    sockets: TempDir,
    data: TempDir,
}

impl Containerd {
    /// Finds the daemon and `ctr`: version 2 from `go install`, or else Debian's version 1.6.
    pub fn find() -> Result<(PathBuf, PathBuf), Missing> {
        tool::root()?;
        tool::find(&["runc"])?;
        tool::find(&["containerd-shim-runc-v2"])?;
        Ok((tool::find(&["containerd"])?, tool::find(&["ctr"])?))
    }

    /// Starts a containerd that can pull images of `registry` only through the mirror: the
    /// configured address of the registry itself is unreachable.
    pub fn with_mirror(registry: &str, mirror: SocketAddr) -> Result<Self> {
        Self::start(registry, &format!("http://{mirror}"), "")
    }

    /// As [`Containerd::with_mirror`], but falls back to the registry at `origin`.
    pub fn with_origin(registry: &str, mirror: SocketAddr, origin: SocketAddr) -> Result<Self> {
        let mirror = format!("http://{mirror}");
        Self::between(Self::programs()?, registry, &mirror, "", origin)
    }

    /// As [`Containerd::with_mirror`], with additional keys for the mirror in `hosts.toml`.
    pub fn start(registry: &str, mirror: &str, keys: &str) -> Result<Self> {
        Self::between(Self::programs()?, registry, mirror, keys, UNREACHABLE)
    }

    /// As [`Containerd::start`], with these paths of the daemon and of `ctr`.
    pub fn start_as(
        programs: (PathBuf, PathBuf),
        registry: &str,
        mirror: &str,
        keys: &str,
    ) -> Result<Self> {
        Self::between(programs, registry, mirror, keys, UNREACHABLE)
    }

    fn programs() -> Result<(PathBuf, PathBuf)> {
        Ok(Self::find()?)
    }

    fn between(
        (daemon, ctr): (PathBuf, PathBuf),
        registry: &str,
        mirror: &str,
        keys: &str,
        origin: SocketAddr,
    ) -> Result<Self> {
        let sockets = paths::short("ph-ctd")?;
        let data = paths::scratch("containerd")?;
        let hosts = data.path().join("hosts").join(registry);
        fs::create_dir_all(&hosts)?;
        fs::write(
            hosts.join("hosts.toml"),
            format!(
                "server = \"http://{origin}\"\n[host.\"{mirror}\"]\ncapabilities = [\"pull\", \"resolve\"]\n{keys}\n"
            ),
        )?;
        let config = data.path().join("config.toml");
        fs::write(
            &config,
            format!(
                // Configuration version 2 works with containerd 1.6 and 2.x. The CRI plugin is
                // disabled, because it would need a network configuration.
                "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
                 \"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\"]\n[grpc]\naddress = {:?}\n",
                data.path().join("root"),
                sockets.path().join("state"),
                sockets.path().join("s"),
            ),
        )?;
        let mut command = process::command(&daemon);
        // containerd finds its shim on the PATH, and both must have the same version.
        command
            .arg("--config")
            .arg(&config)
            .env("PATH", env::join_paths(tool::search_path())?);
        let mut containerd = Self {
            daemon: Daemon::start("containerd", &mut command, &data.path().join("log"))?,
            ctr,
            registry: registry.to_owned(),
            sockets,
            data,
        };
        containerd.daemon.until("serving", |log| {
            Ok(log.contains("containerd successfully booted").then_some(()))
        })?;
        Ok(containerd)
    }

    /// A `ctr` command for this daemon.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.ctr);
        command.arg("--address").arg(self.sockets.path().join("s"));
        command
    }

    /// The folder to pass to `ctr --hosts-dir`.
    pub fn hosts(&self) -> String {
        self.data.path().join("hosts").display().to_string()
    }

    /// Runs `ctr` with these arguments. Returns its standard output.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        process::stdout(self.command().args(arguments))
    }

    /// Pulls all platforms of an image.
    pub fn pull_all(&self, name: &str) -> Result<()> {
        let hosts = self.data.path().join("hosts").display().to_string();
        self.ctr(&[
            "images",
            "pull",
            "--all-platforms",
            "--hosts-dir",
            &hosts,
            &format!("{}/{name}", self.registry),
        ])
        .map(drop)
    }

    /// The digests in the content store.
    pub fn contents(&self) -> Result<Vec<String>> {
        Ok(self
            .ctr(&["content", "ls", "--quiet"])?
            .lines()
            .map(str::to_owned)
            .collect())
    }
}

impl Client for Containerd {
    fn name(&self) -> &'static str {
        "containerd"
    }

    fn pull(&self, name: &str) -> Result<PullResult> {
        let name = format!("{}/{name}", self.registry);
        let hosts = self.data.path().join("hosts").display().to_string();
        self.ctr(&["images", "pull", "--hosts-dir", &hosts, &name])?;
        let list = self.ctr(&["images", "ls", &format!("name=={name}")])?;
        let root = list
            .split_whitespace()
            .find(|word| word.starts_with("sha256:"))
            .with_context(|| list.clone())?
            .to_owned();
        // The manifest of the platform has the digest of the config. containerd verified both
        // documents during the pull.
        let mut document = self.json(&root)?;
        if let Some(manifests) = document["manifests"].as_array() {
            let ours = |it: &&serde_json::Value| {
                it["platform"]["architecture"] == crate::layout::architecture()
            };
            let digest = manifests
                .iter()
                .find(ours)
                .and_then(|it| it["digest"].as_str());
            document = self.json(digest.context("an index without this platform")?)?;
        }
        let config = document["config"]["digest"]
            .as_str()
            .context("a manifest without a config")?;
        Ok(PullResult {
            root,
            config: config.to_owned(),
        })
    }

    fn empty(&self) -> Result<()> {
        let images = self.ctr(&["images", "ls", "--quiet"])?;
        for image in images.lines() {
            self.ctr(&["images", "rm", "--sync", image])?;
        }
        // containerd keeps the contents of a failed pull when its images are removed.
        for digest in self.contents()? {
            self.ctr(&["content", "rm", &digest])?;
        }
        let left = self.contents()?;
        ensure!(
            left.is_empty(),
            "contents remain after the removal of all images: {left:?}"
        );
        let content = self
            .data
            .path()
            .join("root/io.containerd.content.v1.content");
        // containerd deletes files of removed contents later, in a garbage collection. Before the
        // garbage collection, a pull would use these files without a request.
        let lease = self.ctr(&["leases", "create"])?;
        self.ctr(&["leases", "delete", "--sync", lease.trim()])?;
        let left = fs::read_dir(content.join("blobs/sha256")).map_or(0, Iterator::count);
        ensure!(
            left == 0,
            "{left} files remain after the removal of all contents"
        );
        // Deletes partial downloads of failed pulls. The next pull would resume them, even if their
        // bytes are wrong.
        for left in fs::read_dir(content.join("ingest")).into_iter().flatten() {
            fs::remove_dir_all(left?.path())?;
        }
        Ok(())
    }

    fn run(&self, name: &str, command: &[&str]) -> Result<Option<String>> {
        let name = format!("{}/{name}", self.registry);
        // All containerd daemons of a machine share the state folder of runc, so the container ID
        // must be unique.
        let folder = self.sockets.path().file_name().and_then(|it| it.to_str());
        let id = folder.context("a folder without a name")?;
        let words = [&["run", "--rm", &name, id], command].concat();
        self.ctr(&words).map(Some)
    }
}

impl Containerd {
    fn json(&self, digest: &str) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(
            &self.ctr(&["content", "get", digest])?,
        )?)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.daemon.terminate();
        process::unmount_below(self.sockets.path());
        process::unmount_below(self.data.path());
    }
}
