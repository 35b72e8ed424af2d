//! Runs podman as a client, with its own storage and a mirror in its `registries.conf`. podman and
//! CRI-O use the same library for pulls.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use super::{Client, PullResult, UNREACHABLE, with_entrypoint};
use crate::{
    paths, process,
    tool::{self, Missing},
};

/// podman with its own store.
#[derive(Debug)]
pub struct Podman {
    program: PathBuf,
    registry: String,
    home: Option<PathBuf>,
    /// A folder with a short path, for the sockets of podman's container monitor.
    run: TempDir,
    data: TempDir,
}

impl Podman {
    /// Finds podman.
    pub fn find() -> Result<PathBuf, Missing> {
        tool::root()?;
        tool::find(&["runc", "crun"])?;
        tool::find(&["podman"])
    }

    /// Pulls images of `registry` only through the mirror, with the path
    /// `/v2/<prefix>/<repository>/…`. The configured address of the registry itself is unreachable.
    pub fn with_mirror(registry: &str, mirror: SocketAddr) -> Result<Self> {
        Self::with_origin(registry, mirror, UNREACHABLE)
    }

    /// As [`Podman::with_mirror`], but falls back to the registry at `origin`.
    pub fn with_origin(registry: &str, mirror: SocketAddr, origin: SocketAddr) -> Result<Self> {
        let program = Self::find()?;
        let run = paths::short("ph-podman")?;
        let data = paths::scratch("podman")?;
        fs::write(
            data.path().join("registries.conf"),
            format!(
                "[[registry]]\nprefix = {registry:?}\nlocation = \"{origin}\"\ninsecure = true\n\
                 [[registry.mirror]]\nlocation = \"{mirror}/{registry}\"\ninsecure = true\n"
            ),
        )?;
        fs::write(
            data.path().join("storage.conf"),
            format!(
                "[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n",
                data.path().join("root"),
                run.path().join("run"),
            ),
        )?;
        fs::write(
            data.path().join("policy.json"),
            r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
        )?;
        fs::write(data.path().join("no-auth.json"), "{}")?;
        // All podman processes of a machine share one set of locks in shared memory. A podman with
        // new folders would free all locks of this set, so this podman uses file locks.
        fs::write(
            data.path().join("containers.conf"),
            "[engine]\nlock_type = \"file\"\n",
        )?;
        Ok(Self {
            program,
            registry: registry.to_owned(),
            home: None,
            run,
            data,
        })
    }

    /// A podman that reads only the configuration in `.config/containers` of this home folder.
    pub fn with_home(registry: &str, home: &Path) -> Result<Self> {
        let mut podman = Self::with_mirror(registry, SocketAddr::from(([127, 0, 0, 1], 1)))?;
        podman.home = Some(home.to_owned());
        Ok(podman)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        match &self.home {
            Some(home) => command.env("HOME", home).env_remove("XDG_CONFIG_HOME"),
            None => command.env(
                "CONTAINERS_REGISTRIES_CONF",
                self.data.path().join("registries.conf"),
            ),
        };
        command
            .env(
                "CONTAINERS_STORAGE_CONF",
                self.data.path().join("storage.conf"),
            )
            .env("CONTAINERS_CONF", self.data.path().join("containers.conf"))
            .env("REGISTRY_AUTH_FILE", self.data.path().join("no-auth.json"))
            // Without systemd, podman can create cgroups only through cgroupfs.
            .args(["--cgroup-manager", "cgroupfs", "--events-backend", "none"])
            .arg("--tmpdir")
            .arg(self.run.path().join("tmp"));
        command
    }

    /// Runs `podman` with these arguments. Returns its standard output.
    pub fn podman(&self, arguments: &[&str]) -> Result<String> {
        process::stdout(self.command().args(arguments))
    }

    /// The output (stdout and stderr) of a container.
    pub fn logs(&self, container: &str) -> Result<String> {
        let output = self.command().args(["logs", container]).output()?;
        let texts = [output.stdout, output.stderr];
        Ok(texts
            .map(|it| String::from_utf8_lossy(&it).into_owned())
            .concat())
    }

    /// Loads the image for this machine from an OCI layout. Returns its ID.
    pub fn load(&self, layout: &Path) -> Result<String> {
        let policy = self.data.path().join("policy.json").display().to_string();
        let layout = format!("oci:{}", layout.display());
        let id = self.podman(&["pull", "--quiet", "--signature-policy", &policy, &layout])?;
        Ok(id.trim().to_owned())
    }
}

impl Client for Podman {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn pull(&self, name: &str) -> Result<PullResult> {
        let name = format!("{}/{name}", self.registry);
        let policy = self.data.path().join("policy.json").display().to_string();
        self.podman(&["pull", "--quiet", "--signature-policy", &policy, &name])?;
        let about: Value = serde_json::from_str(&self.podman(&["image", "inspect", &name])?)?;
        // For an index, podman also lists the manifest of the platform. The field "Digest" is the
        // digest of the index.
        let root = about[0]["Digest"].as_str().context("no digest")?;
        let id = about[0]["Id"].as_str().context("no id")?;
        Ok(PullResult {
            root: root.to_owned(),
            config: format!("sha256:{id}"),
        })
    }

    fn empty(&self) -> Result<()> {
        self.podman(&["system", "prune", "--all", "--force"])
            .map(drop)
    }

    fn run(&self, name: &str, command: &[&str]) -> Result<Option<String>> {
        let name = format!("{}/{name}", self.registry);
        let mut podman = self.command();
        podman.args(["run", "--rm", "--network=none"]);
        // Without these limits, podman would raise the limits to those of the kernel, which a
        // sandbox may forbid even for root.
        podman.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]);
        process::stdout(with_entrypoint(&mut podman, &name, command)).map(Some)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        process::unmount_below(self.run.path());
        process::unmount_below(self.data.path());
    }
}
