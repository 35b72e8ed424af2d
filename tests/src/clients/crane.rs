//! crane (go-containerregistry): pulls an index with all platforms into an OCI layout.

use std::{fs, net::SocketAddr, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{Client, Pulled, skopeo::verify};
use crate::{
    layout::architecture,
    place, process,
    tool::{self, Missing},
};

/// A crane with a folder to pull to.
#[derive(Debug)]
pub struct Crane {
    program: PathBuf,
    prefix: String,
    data: TempDir,
}

impl Crane {
    /// Where it is.
    pub fn find() -> Result<PathBuf, Missing> {
        tool::find(&["crane"])
    }

    /// Through the proxy by path: `127.0.0.1:PORT/docker.io/library/app:1`.
    pub fn with_path(proxy: SocketAddr, registry: &str) -> Result<Self> {
        let program = Self::find().map_err(|missing| anyhow::anyhow!("{missing}"))?;
        Ok(Self {
            program,
            prefix: format!("{proxy}/{registry}/"),
            data: place::scratch("crane")?,
        })
    }

    /// Runs `crane` with these words; `{}` in them is the prefix of the proxy.
    pub fn crane(&self, arguments: &[&str]) -> Result<String> {
        let arguments = arguments.iter().map(|it| it.replace("{}", &self.prefix));
        process::stdout(
            Command::new(&self.program)
                .env("DOCKER_CONFIG", self.data.path())
                .args(arguments),
        )
    }
}

impl Client for Crane {
    fn name(&self) -> &'static str {
        "crane"
    }

    fn pull(&self, name: &str) -> Result<Pulled> {
        let source = format!("{{}}{name}");
        let whole = tempfile::tempdir_in(self.data.path())?.keep();
        self.crane(&[
            "pull",
            "--format=oci",
            &source,
            &whole.display().to_string(),
        ])?;
        let (root, _) = verify(&whole)?;
        let ours = tempfile::tempdir_in(self.data.path())?.keep();
        let platform = format!("--platform=linux/{}", architecture());
        self.crane(&[
            "pull",
            "--format=oci",
            &platform,
            &source,
            &ours.display().to_string(),
        ])?;
        let (_, config) = verify(&ours)?;
        Ok(Pulled {
            root,
            config: config.context("a pull without a config")?,
        })
    }

    fn empty(&self) -> Result<()> {
        for entry in fs::read_dir(self.data.path())? {
            fs::remove_dir_all(entry?.path())?;
        }
        Ok(())
    }

    fn run(&self, _name: &str, _command: &[&str]) -> Result<Option<String>> {
        Ok(None)
    }
}
