//! One Helm release of a chart in the test cluster: installs, upgrades, tests and removes it, and
//! checks its objects and the nodes of its pods.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cluster::Cluster;

/// A Helm release: a chart with a name in a namespace.
pub(super) struct Release<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    namespace: &'a str,
    chart: PathBuf,
    before: BTreeSet<String>,
}

impl<'a> Release<'a> {
    /// Creates a release that is not installed yet. Records the existing objects, which must be all
    /// that remain after [`Release::uninstall`].
    ///
    /// # Errors
    /// kubectl fails.
    pub(super) fn new(
        cluster: &'a Cluster,
        name: &'a str,
        namespace: &'a str,
        chart: &Path,
    ) -> Result<Self> {
        Ok(Self {
            cluster,
            name,
            namespace,
            chart: chart.to_owned(),
            before: cluster.client.objects()?,
        })
    }

    /// Installs or upgrades the release with `values` (YAML) and further helm arguments, and waits
    /// until it is ready.
    ///
    /// # Errors
    /// helm fails.
    pub(super) fn upgrade(&self, values: &str, words: &[&str]) -> Result<()> {
        let own = self.cluster.folder().join("values.yaml");
        std::fs::write(&own, values)?;
        let own = format!("--values={}", own.display());
        let chart = self.chart.display().to_string();
        let install = ["upgrade", "--install", self.name, &chart];
        let install = install.into_iter().chain(WAIT);
        self.helm(install.chain(words.iter().copied()).chain([own.as_str()]))
    }

    /// Rolls the release back to a revision.
    ///
    /// # Errors
    /// helm fails.
    pub(super) fn rollback(&self, revision: &str) -> Result<()> {
        self.helm(["rollback", self.name, revision].into_iter().chain(WAIT))
    }

    /// Runs the chart's tests.
    ///
    /// # Errors
    /// A test fails, or the chart has none.
    pub(super) fn test(&self) -> Result<()> {
        let words = [
            "test",
            self.name,
            "--timeout=3m",
            "--namespace",
            self.namespace,
        ];
        let said = self.cluster.client.helm(words)?;
        if !said
            .lines()
            .any(|it| it.starts_with("Phase:") && it.ends_with("Succeeded"))
        {
            bail!("no test succeeded:\n{said}");
        }
        Ok(())
    }

    /// Uninstalls the release, and waits until exactly the earlier objects exist.
    ///
    /// # Errors
    /// An object remains or is missing.
    pub(super) fn uninstall(&self) -> Result<()> {
        self.helm(["uninstall", self.name].into_iter().chain(WAIT))?;
        self.cluster.until("nothing is left", || {
            let after = self.cluster.client.objects()?;
            let differ: Vec<_> = after.symmetric_difference(&self.before).cloned().collect();
            if !differ.is_empty() {
                bail!("more or less than before: {}", differ.join(", "));
            }
            Ok(())
        })
    }

    /// Waits until each of `nodes` has a ready pod, and no other node has a pod of the release.
    ///
    /// # Errors
    /// The time limit is exceeded.
    pub(super) fn runs_on(&self, nodes: &[&str]) -> Result<()> {
        self.cluster.until(&format!("pods of {}", self.name), || {
            let pods = self.pods()?;
            let mut found: Vec<_> = pods.iter().map(node).collect();
            found.sort_unstable();
            if found != nodes {
                bail!("on {found:?} and not on {nodes:?}");
            }
            match pods.iter().find(|pod| !is_ready(pod)) {
                Some(pod) => bail!("the pod on {} is not ready", node(pod)),
                None => Ok(()),
            }
        })
    }

    /// Pods of the release, except pods that are being deleted and pods of tests.
    ///
    /// # Errors
    /// kubectl fails.
    pub(super) fn pods(&self) -> Result<Vec<Value>> {
        let list = self.list("pods")?;
        let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
        Ok(list.into_iter().filter(stays).collect())
    }

    /// The DaemonSet of the release.
    ///
    /// # Errors
    /// The release has no DaemonSet, or more than one.
    pub(super) fn daemon_set(&self) -> Result<Value> {
        self.only("daemonsets")
    }

    /// The only object of a kind in the release.
    ///
    /// # Errors
    /// The release has no such object, or several.
    pub(super) fn only(&self, kind: &str) -> Result<Value> {
        let mut list = self.list(kind)?;
        let first = list.pop().with_context(|| format!("no {kind}"))?;
        if !list.is_empty() {
            bail!("more {kind} than one");
        }
        Ok(first)
    }

    /// Objects of a kind in the release.
    ///
    /// # Errors
    /// kubectl fails.
    pub(super) fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let selector = format!("--selector=app.kubernetes.io/instance={}", self.name);
        let words = [kind, &selector, "--namespace", self.namespace];
        let mut list = self.cluster.client.get(words)?;
        Ok(list["items"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default())
    }

    fn helm<'b>(&'b self, words: impl IntoIterator<Item = &'b str>) -> Result<()> {
        let words = words.into_iter().chain(["--namespace", self.namespace]);
        self.cluster.client.helm(words).map(drop)
    }
}

const WAIT: [&str; 2] = ["--wait", "--timeout=3m"];

/// Name of the node to which a pod is bound.
pub(super) fn node(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or("")
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True")
    })
}
