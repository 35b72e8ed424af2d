//! Runs crane (of go-containerregistry) as a client: it pulls an index with all platforms into an
//! OCI layout.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{Client, PullResult};
use crate::{
    layout::{self, OciLayout, architecture},
    paths, process,
    tool::{self, Missing},
};

/// crane, with a folder for the pulled images.
#[derive(Debug)]
pub struct Crane {
    program: PathBuf,
    prefix: String,
    data: TempDir,
}

impl Crane {
    /// Finds crane, which only `go install` provides.
    pub fn find() -> Result<PathBuf, Missing> {
        tool::find(&["crane"]).map_err(Missing::unless_go)
    }

    /// Pulls through pierhead as the registry, with the upstream in the path:
    /// `127.0.0.1:PORT/docker.io/library/app:1`.
    pub fn with_path(proxy: SocketAddr, registry: &str) -> Result<Self> {
        let program = Self::find()?;
        Ok(Self {
            program,
            prefix: format!("{proxy}/{registry}/"),
            data: paths::scratch("crane")?,
        })
    }

    /// Runs `crane` with these arguments, in which `{}` stands for the prefix of the proxy.
    pub fn crane(&self, arguments: &[&str]) -> Result<String> {
        let arguments = arguments.iter().map(|it| it.replace("{}", &self.prefix));
        process::stdout(
            Command::new(&self.program)
                .env("DOCKER_CONFIG", self.data.path())
                .args(arguments),
        )
    }
}

/// Verifies every blob of an OCI layout with one image. Returns the digest of its root, and the
/// config if the root is a manifest.
fn verify(folder: &Path) -> Result<(String, Option<String>)> {
    for blob in fs::read_dir(folder.join("blobs/sha256"))? {
        let path = blob?.path();
        let name = path
            .file_name()
            .and_then(|it| it.to_str())
            .context("a name")?
            .to_owned();
        let digest = layout::digest_of(&path)?;
        ensure!(
            digest == format!("sha256:{name}"),
            "the blob {name} is {digest}"
        );
    }
    let files = OciLayout::new(folder);
    let entries = files.entries()?;
    let root = entries.first().context("an empty index")?;
    let document = files.document(root)?;
    let config = document["config"]["digest"].as_str().map(str::to_owned);
    let root = root["digest"].as_str().context("no digest")?;
    Ok((root.to_owned(), config))
}

impl Client for Crane {
    fn name(&self) -> &'static str {
        "crane"
    }

    fn pull(&self, name: &str) -> Result<PullResult> {
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
        Ok(PullResult {
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
