//! Checks the chart `chart-host`: each host uses its own DPU, as the node labels pair hosts and
//! DPUs.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    binaries::Binaries,
    cluster::Cluster,
    lifecycle::holds,
    pod_process::{self, PodProcess},
    release::{Release, node},
    steps::Steps,
    strict::PRIVILEGED,
};
use crate::paths;

/// Label of a DPU node with the name of its host.
const HOST_LABEL: &str = "provisioning.dpu.nvidia.com/host";

/// Folder of the host's containerd configuration in the container.
const RUNTIME: &str = "host/etc/containerd";
/// A containerd configuration that the administrator of a host has written.
const ADMIN_CONFIG: &str = "# of this site\nversion = 3\n\n[debug]\n  level = \"info\"\n";

/// Checks that the chart finds the pairs of host and DPU, follows changes, and undoes its setup.
///
/// # Errors
/// A step fails that later steps need. The step is counted as failed.
pub(super) fn paired(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    let folder = paths::root().join("bluefield/chart-host");
    let unpair = format!("{HOST_LABEL}-");
    cluster
        .client
        .kubectl(["label", "node", "dpu-3", &unpair])?;
    let it = Release::new(cluster, "pierhead-host", PRIVILEGED, &folder)?;
    let discover = "discover: {enabled: true}\n";
    steps.note("install", it.upgrade(discover, &[]))?;
    steps.note(
        "pods on hosts with a DPU",
        it.runs_on(&["host-1", "host-2"]),
    )?;
    let pairs = json!({"host-1": "http://10.0.0.1:5000", "host-2": "http://10.0.0.2:5000"});
    steps.note("each with the address of its own", has(&it, &pairs))?;
    let annotate = |what: &str| {
        let words = ["annotate", "node", "dpu-2", what];
        cluster.client.kubectl(words).map(drop)
    };
    annotate("pierhead.io/address=192.0.2.2")?;
    steps.note("upgrade by annotation", it.upgrade(discover, &[]))?;
    let named = json!({"host-1": "http://10.0.0.1:5000", "host-2": "http://192.0.2.2:5000"});
    steps.note("with the address that a DPU names", has(&it, &named))?;
    annotate("pierhead.io/address-")?;
    let nobody = "discover: {enabled: true, label: of-nobody}\n";
    steps.note("without a pair it is ready", it.upgrade(nobody, &[]))?;
    steps.note("and on no host", it.runs_on(&[]))?;

    let pair = format!("{HOST_LABEL}=host-3");
    cluster.client.kubectl(["label", "node", "dpu-3", &pair])?;
    steps.note("upgrade", it.upgrade(discover, &[]))?;
    let all = ["host-1", "host-2", "host-3"];
    steps.note("a new pair has its pod", it.runs_on(&all))?;
    steps.note("rollback", it.rollback("1"))?;
    steps.note("the pair is no more", it.runs_on(&all[..2]))?;
    steps.note("as it was", has(&it, &pairs))?;

    let named = "address: \"http://$(NODE_NAME)-dpu.example:5000\"\n";
    steps.note("one pattern for all", it.upgrade(named, &[]))?;
    steps.note("pods on every host with a DPU", it.runs_on(&all))?;
    let grace =
        it.daemon_set()?["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone();
    let enough = holds(grace.as_i64() >= Some(30), &format!("{grace} s"));
    steps.note("time to take it back", enough)?;
    steps.note("uninstall leaves nothing", it.uninstall())
}

/// Runs the command of the pod on `host-1` on this machine. Checks the files that it writes for the
/// container runtime, and that the files are gone after the release is uninstalled.
///
/// # Errors
/// As [`paired`].
pub(super) fn carried_out(
    cluster: &Cluster,
    binaries: &Binaries,
    daemon: &Path,
    steps: &mut Steps<'_>,
) -> Result<()> {
    let folder = paths::root().join("bluefield/chart-host");
    let it = Release::new(cluster, "pierhead-host", PRIVILEGED, &folder)?;
    steps.note("install", it.upgrade("discover: {enabled: true}\n", &[]))?;
    it.runs_on(&["host-1", "host-2", "host-3"])?;
    let pods = it.pods()?;
    let pod = pods.iter().find(|pod| node(pod) == "host-1");
    let root = cluster.folder().join("host-1");
    let runtime = root.join(RUNTIME);
    fs::create_dir_all(&runtime)?;
    fs::write(runtime.join("config.toml"), ADMIN_CONFIG)?;
    let before = pod_process::files(&root.join("host"))?;
    let pod = pod.context("no pod on host-1")?;
    let mut process = PodProcess::start(cluster, binaries, daemon, pod, &root)?;
    let written = cluster.until("hosts.toml", || {
        process.look()?;
        let files = pod_process::files(&runtime)?;
        let (_, content) = files
            .iter()
            .find(|(path, _)| path.ends_with("certs.d/_default/hosts.toml"))
            .context("no hosts.toml")?;
        let text = String::from_utf8_lossy(content);
        ensure!(text.contains("http://10.0.0.1:5000"), "it says {text}");
        Ok(())
    });
    steps.note("containerd of host-1 is sent to dpu-1", written)?;
    steps.note("uninstall leaves nothing", it.uninstall())?;
    steps.note("its end", process.end())?;
    let after = pod_process::files(&root.join("host"))?;
    let left: Vec<_> = after
        .keys()
        .filter(|it| !before.contains_key(*it))
        .collect();
    let same = holds(after == before, &format!("not as before; new: {left:?}"));
    steps.note("every byte of the host is as before", same)
}

fn has(it: &Release<'_>, pairs: &serde_json::Value) -> Result<()> {
    let found = it.only("configmaps").context("the pairs")?["data"].clone();
    ensure!(found == *pairs, "pairs are {found}");
    Ok(())
}
