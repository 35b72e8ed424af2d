//! podman, whose library is also CRI-O's: storage and configuration of its own, a mirror in its
//! `registries.conf`.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use super::{Client, NOBODY, Pulled, with_entrypoint};
use crate::{
    place, process,
    tool::{self, Missing},
};

/// A podman with a store of its own.
#[derive(Debug)]
pub struct Podman {
    program: PathBuf,
    registry: String,
    home: Option<PathBuf>,
    /// Short, for the sockets of its monitor.
    run: TempDir,
    data: TempDir,
}

impl Podman {
    /// Where it is.
    pub fn find() -> Result<PathBuf, Missing> {
        tool::root()?;
        tool::find(&["runc", "crun"])?;
        tool::find(&["podman"])
    }

    /// Images of `registry` through a mirror, which podman asks by the path
    /// `/v2/<prefix>/<repository>/…`; the registry itself is at an address that nobody has.
    pub fn with_mirror(registry: &str, mirror: SocketAddr) -> Result<Self> {
        Self::with_origin(registry, mirror, NOBODY)
    }

    /// As [`Podman::with_mirror`], with the address of the registry itself: what the mirror does not
    /// give is asked for there.
    pub fn with_origin(registry: &str, mirror: SocketAddr, origin: SocketAddr) -> Result<Self> {
        let program = Self::find().map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let run = place::short("ph-podman")?;
        let data = place::scratch("podman")?;
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
        // Locks in shared memory are one set for all podmans of a machine, and each that finds its
        // own folders new frees them all.
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

    /// Configured by nothing but what is below this home, whose `.config/containers` it reads.
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
            // Without systemd there is no other way to make a cgroup.
            .args(["--cgroup-manager", "cgroupfs", "--events-backend", "none"])
            .arg("--tmpdir")
            .arg(self.run.path().join("tmp"));
        command
    }

    /// Runs `podman` with these words; what it wrote to its standard output.
    pub fn podman(&self, arguments: &[&str]) -> Result<String> {
        process::stdout(self.command().args(arguments))
    }

    /// What a container wrote to both of its outputs.
    pub fn logs(&self, container: &str) -> Result<String> {
        let output = self.command().args(["logs", container]).output()?;
        let texts = [output.stdout, output.stderr];
        Ok(texts
            .map(|it| String::from_utf8_lossy(&it).into_owned())
            .concat())
    }

    /// Takes the one image of an OCI layout that is for this machine: its ID.
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

    fn pull(&self, name: &str) -> Result<Pulled> {
        let name = format!("{}/{name}", self.registry);
        let policy = self.data.path().join("policy.json").display().to_string();
        self.podman(&["pull", "--quiet", "--signature-policy", &policy, &name])?;
        let about: Value = serde_json::from_str(&self.podman(&["image", "inspect", &name])?)?;
        // Of an index, it lists the platform's manifest too; its "digest" is what the name meant.
        let root = about[0]["Digest"].as_str().context("no digest")?;
        let id = about[0]["Id"].as_str().context("no id")?;
        Ok(Pulled {
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
        // podman raises the limits to the kernel's, which a sandbox may not allow even root.
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
