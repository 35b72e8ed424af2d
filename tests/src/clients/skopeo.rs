//! skopeo: copies from a registry into an OCI layout, with the library of podman and CRI-O.

use std::{fs, net::SocketAddr, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::{Client, Pulled};
use crate::{
    layout, place, process,
    tool::{self, Missing},
};

/// A skopeo with a folder to copy to.
#[derive(Debug)]
pub struct Skopeo {
    program: PathBuf,
    prefix: String,
    data: TempDir,
}

impl Skopeo {
    /// Where it is.
    pub fn find() -> Result<PathBuf, Missing> {
        tool::find(&["skopeo"])
    }

    /// Through the proxy by path: `docker://127.0.0.1:PORT/docker.io/library/app:1`.
    pub fn with_path(proxy: SocketAddr, registry: &str) -> Result<Self> {
        let program = Self::find().map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let data = place::scratch("skopeo")?;
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

    /// A copy into a folder of its own; `--all` copies every platform, else this machine's. Returns
    /// the digest in the copy's index after verifying every blob of the copy.
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
            format!("oci:{}:copy", folder.display()),
        ]);
        process::run(&mut command)?;
        verify(&folder)
    }
}

/// The root of an OCI layout with one image, and its config where the root is a manifest. Every blob
/// is read against its digest.
pub(super) fn verify(folder: &std::path::Path) -> Result<(String, Option<String>)> {
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
    let index: Value = serde_json::from_slice(&fs::read(folder.join("index.json"))?)?;
    let root = index["manifests"][0]["digest"]
        .as_str()
        .context("an empty index")?
        .to_owned();
    let document: Value = serde_json::from_slice(&fs::read(
        folder.join("blobs").join(root.replacen(':', "/", 1)),
    )?)?;
    let config = document["config"]["digest"].as_str().map(str::to_owned);
    Ok((root, config))
}

impl Client for Skopeo {
    fn name(&self) -> &'static str {
        "skopeo"
    }

    fn pull(&self, name: &str) -> Result<Pulled> {
        // Only with all platforms is the index copied as it is.
        let (root, _) = self.copy(name, true, &["--src-tls-verify=false"])?;
        let (_, config) = self.copy(
            name,
            false,
            &["--src-tls-verify=false", "--preserve-digests"],
        )?;
        Ok(Pulled {
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
