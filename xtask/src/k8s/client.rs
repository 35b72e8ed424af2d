//! Runs kubectl and helm against one test cluster, without the user's own settings.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::binaries::Binaries;
use crate::exec;

/// Kinds of objects that Kubernetes creates and deletes by itself.
const RESTLESS: &[&str] = &[
    "apiservices.apiregistration.k8s.io",
    "componentstatuses",
    "events",
    "events.events.k8s.io",
];

/// Runs kubectl and helm against one cluster.
pub(super) struct Client {
    kubectl: PathBuf,
    helm: PathBuf,
    path: PathBuf,
    access: PathBuf,
    home: PathBuf,
}

impl Client {
    /// A client with the kubeconfig `access`, and with caches below `home`.
    pub(super) fn new(binaries: &Binaries, access: PathBuf, home: PathBuf) -> Self {
        Self {
            kubectl: binaries.kubernetes("kubectl"),
            helm: binaries.helm.clone(),
            path: binaries.folder().to_owned(),
            access,
            home,
        }
    }

    /// A command whose environment leads to this cluster.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let mut path = self.path.clone().into_os_string();
        if let Some(others) = std::env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        command
            .env("KUBECONFIG", &self.access)
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("HELM_CACHE_HOME", self.home.join("cache"))
            .env("HELM_CONFIG_HOME", self.home.join("config"))
            .env("HELM_DATA_HOME", self.home.join("data"))
            .env_remove("HELM_NAMESPACE");
        command
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    /// kubectl fails. The error has its output.
    pub(super) fn kubectl(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<String> {
        exec::text(self.command(&self.kubectl).args(words))
    }

    /// Runs helm and returns its output.
    ///
    /// # Errors
    /// helm fails. The error has its output.
    pub(super) fn helm(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<String> {
        exec::text(self.command(&self.helm).args(words))
    }

    /// Runs `kubectl get` with these arguments. Returns a list, or one object.
    ///
    /// # Errors
    /// When kubectl fails.
    pub(super) fn get<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<Value> {
        let words = ["get", "--output=json"].into_iter().chain(words);
        Ok(serde_json::from_str(&self.kubectl(words)?)?)
    }

    /// Creates or changes the objects of manifests.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub(super) fn apply(&self, manifests: &str) -> Result<()> {
        self.hand(&["apply", "--server-side"], manifests)
    }

    /// Creates the objects of manifests, including their status.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub(super) fn create(&self, manifests: &str) -> Result<()> {
        self.hand(&["create"], manifests)
    }

    fn hand(&self, words: &[&str], manifests: &str) -> Result<()> {
        let words = [words, &["--validate=strict", "--filename=-"]].concat();
        let output = self.send(&words, manifests)?;
        if !output.status.success() {
            bail!("{}", exec::tail(&output.stderr, 10));
        }
        Ok(())
    }

    /// Runs kubectl with `manifests` as its input.
    ///
    /// # Errors
    /// kubectl cannot be started. The returned output says whether it failed.
    pub(super) fn send(&self, words: &[&str], manifests: &str) -> Result<Output> {
        let mut child = self
            .command(&self.kubectl)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start kubectl")?;
        // kubectl reads all its input before it prints, so neither side blocks.
        let mut input = child.stdin.take().context("no standard input")?;
        input.write_all(manifests.as_bytes())?;
        drop(input);
        Ok(child.wait_with_output()?)
    }

    /// All objects as `KIND/NAMESPACE/NAME`, except [`RESTLESS`] kinds and objects in the
    /// namespaces of the control plane.
    ///
    /// # Errors
    /// When kubectl fails.
    pub(super) fn objects(&self) -> Result<BTreeSet<String>> {
        let kinds = self.kubectl(["api-resources", "--verbs=list", "--output=name"])?;
        let kinds: Vec<_> = kinds.lines().filter(|it| !RESTLESS.contains(it)).collect();
        let each = r#"{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}"#;
        let listed = self.kubectl([
            "get",
            &kinds.join(","),
            "--all-namespaces",
            &format!("--output=jsonpath={each}"),
        ])?;
        let theirs = |it: &&str| {
            it.split('/')
                .nth(1)
                .is_some_and(|it| it.starts_with("kube-"))
        };
        let ours = listed.lines().filter(|it| !theirs(it));
        Ok(ours.map(str::to_owned).collect())
    }
}
