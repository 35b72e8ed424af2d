//! Runs skopeo as a client: it copies images from a registry into a folder, with the same library
//! as podman and CRI-O.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{Client, PullResult};
use crate::{
    layout, paths, process,
    tool::{self, Missing},
};

/// skopeo, with a folder for the copied images.
#[derive(Debug)]
pub struct Skopeo {
    program: PathBuf,
    prefix: String,
    data: TempDir,
}

impl Skopeo {
    /// Finds skopeo.
    pub fn find() -> Result<PathBuf, Missing> {
        tool::find(&["skopeo"])
    }

    /// Copies through pierhead as the registry, with the upstream in the path:
    /// `docker://127.0.0.1:PORT/docker.io/library/app:1`.
    pub fn with_path(proxy: SocketAddr, registry: &str) -> Result<Self> {
        let program = Self::find()?;
        let data = paths::scratch("skopeo")?;
        fs::write(
            data.path().join("policy.json"),
            r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
        )?;
        Ok(Self {
            program,
            prefix: format!("{proxy}/{registry}/"),
            data,
        })
    }

    /// Copies an image into its own folder: all platforms if `all`, otherwise the platform of this
    /// machine. Verifies every blob. Returns the digest of the index or manifest, and the config of
    /// a manifest.
    pub fn copy(&self, name: &str, all: bool, more: &[&str]) -> Result<(String, Option<String>)> {
        let folder = tempfile::tempdir_in(self.data.path())?.keep();
        let mut command = Command::new(&self.program);
        command
            .arg("--policy")
            .arg(self.data.path().join("policy.json"))
            .arg("copy")
            .arg("--quiet")
            .args(more);
        if all {
            command.arg("--all");
        }
        command.args([
            format!("docker://{}{name}", self.prefix),
            // Unlike an OCI layout, a plain folder stores Docker manifests unchanged.
            format!("dir:{}", folder.display()),
        ]);
        process::run(&mut command)?;
        verify(&folder)
    }
}

/// Verifies every blob of a copy. Returns the digest of the manifest or index, and the config of a
/// manifest.
fn verify(folder: &Path) -> Result<(String, Option<String>)> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|it| it.to_str())
            .context("a name")?;
        let stated = name.trim_end_matches(".manifest.json");
        if matches!(name, "version" | "manifest.json") {
            continue;
        }
        let digest = layout::digest_of(&path)?;
        ensure!(
            digest == format!("sha256:{stated}"),
            "the blob {name} is {digest}"
        );
    }
    let root = folder.join("manifest.json");
    let document: Value = serde_json::from_slice(&fs::read(&root)?)?;
    let config = document["config"]["digest"].as_str().map(str::to_owned);
    Ok((layout::digest_of(&root)?, config))
}

impl Client for Skopeo {
    fn name(&self) -> &'static str {
        "skopeo"
    }

    fn pull(&self, name: &str) -> Result<PullResult> {
        // skopeo changes an index unless it copies all platforms.
        let (root, _) = self.copy(name, true, &["--src-tls-verify=false"])?;
        let (_, config) = self.copy(name, false, &["--src-tls-verify=false"])?;
        Ok(PullResult {
            root,
            config: config.context("a copy without a config")?,
        })
    }

    fn empty(&self) -> Result<()> {
        for entry in fs::read_dir(self.data.path())? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    fn run(&self, _name: &str, _command: &[&str]) -> Result<Option<String>> {
        Ok(None)
    }
}
