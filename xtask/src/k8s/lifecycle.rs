//! Checks the lifecycle of a chart release on DPU nodes: pod placement, upgrade, rollback, and
//! uninstallation.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    release::{Release, node},
    steps::Steps,
    strict::{PRIVILEGED, RESTRICTED},
};
use crate::paths;

/// Values that select all DPUs by DPF's label, including the tainted one.
const ON_DPUS: &str = "\
serviceDaemonSet:
  nodeSelector:
    nodeSelectorTerms: [{matchExpressions: [{key: provisioning.dpu.nvidia.com/host, operator: Exists}]}]
tolerations: [{key: dpu, operator: Exists, effect: NoSchedule}]
";
const DPUS: &[&str] = &["dpu-1", "dpu-2", "dpu-3"];
const DISKS: &str = include_str!("disks.yaml");

fn chart<'a>(cluster: &'a Cluster, name: &'a str, namespace: &'a str) -> Result<Release<'a>> {
    let folder = paths::root().join("bluefield/chart");
    Release::new(cluster, name, namespace, &folder)
}

/// Installs, upgrades, rolls back and uninstalls a release, in a namespace that enforces the
/// restricted Pod Security Standard.
///
/// # Errors
/// A step fails that later steps need. The step is counted as failed.
pub(super) fn restricted(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    let it = chart(cluster, "pierhead", RESTRICTED)?;
    steps.note("install", it.upgrade(ON_DPUS, &[]))?;
    steps.note("pods on exactly the DPUs", it.runs_on(DPUS))?;
    let first = it.daemon_set()?;
    steps.note("memory of bluefield2", memory(&first, "1Gi"))?;
    steps.note("traffic stays on its node", local(cluster, &it))?;
    steps.note("helm test", it.test())?;
    steps.note("it ran beside a pierhead", tested(cluster, DPUS))?;

    steps.note(
        "upgrade",
        it.upgrade(&format!("{ON_DPUS}profile: bluefield3\n"), &[]),
    )?;
    steps.note("all pods are of the new revision", current(cluster, &it))?;
    let second = it.daemon_set()?;
    steps.note("memory of bluefield3", memory(&second, "2Gi"))?;

    let wrong = it.upgrade(&format!("{ON_DPUS}profil: small\n"), &[]);
    steps.note("a wrong key is refused", refused(wrong, "profil"))?;
    let template = |it: &Value| it["spec"]["template"].clone();
    let same = template(&it.daemon_set()?) == template(&second);
    steps.note("and changes nothing", holds(same, "the DaemonSet changed"))?;

    let forbidden = it.upgrade(
        &format!("{ON_DPUS}network: {{hostNetwork: true}}\n"),
        &["--timeout=15s"],
    );
    steps.note(
        "an upgrade that the namespace forbids fails",
        refused(forbidden, "exceeded"),
    )?;
    steps.note("rollback", it.rollback("1"))?;
    steps.note("pods of the first revision", current(cluster, &it))?;
    let back = template(&it.daemon_set()?) == template(&first);
    steps.note("it is as it was", holds(back, "the DaemonSet differs"))?;
    it.runs_on(DPUS)?;
    steps.note("uninstall leaves nothing", it.uninstall())
}

/// Installs a release with all kinds of objects and with the values of DPF. After the installation,
/// a node becomes a DPU, and later stops being one.
///
/// # Errors
/// As [`restricted`].
pub(super) fn everything(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    let folder = paths::root().join("bluefield/chart/ci");
    let files = [
        "access-tls",
        "network-service",
        "installer-dpf",
        "profile-bluefield3",
        "storage-hostpath",
        "tier-pmem",
        "prometheus-servicemonitor",
    ];
    let files: Vec<_> = files
        .iter()
        .map(|it| format!("--values={}", folder.join(format!("{it}.yaml")).display()))
        .collect();
    let mut words: Vec<&str> = files.iter().map(String::as_str).collect();
    words.push("--set=metrics.rules.enabled=true");
    let it = chart(cluster, "with-all", PRIVILEGED)?;
    steps.note("install", it.upgrade("{}\n", &words))?;
    // DPF selects nodes with dpu-enabled=true, or the node dpu-1. The values also require arm64.
    steps.note("pods where DPF and values agree", it.runs_on(&["dpu-1"]))?;
    for (kind, some) in [
        ("services", 3),
        ("configmaps", 2),
        ("networkpolicies", 1),
        ("servicemonitors", 1),
        ("prometheusrules", 1),
    ] {
        let there = it.list(kind)?.len();
        let right = holds(there == some, &format!("{there} and not {some}"));
        steps.note(kind, right)?;
    }
    let label = ["label", "node", "arm-1"];
    let key = "feature.node.kubernetes.io/dpu-enabled";
    cluster
        .client
        .kubectl(label.into_iter().chain([format!("{key}=true").as_str()]))?;
    steps.note("a new DPU has its pod", it.runs_on(&["arm-1", "dpu-1"]))?;
    cluster
        .client
        .kubectl(label.into_iter().chain([format!("{key}-").as_str()]))?;
    steps.note("and has none any more", it.runs_on(&["dpu-1"]))?;
    steps.note("uninstall leaves nothing", it.uninstall())
}

/// Installs a release whose pods each have a volume on a local disk.
///
/// # Errors
/// As [`restricted`].
pub(super) fn local_volumes(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    cluster.client.apply(DISKS)?;
    let it = chart(cluster, "pierhead", RESTRICTED)?;
    let values = "{nodeSelector: {kubernetes.io/arch: arm64, provisioning.dpu.nvidia.com/host: host-1}, \
        storage: {mode: ephemeral, size: 60Gi, ephemeral: {storageClassName: local-disks}}}\n";
    steps.note("install", it.upgrade(values, &[]))?;
    steps.note("its pod", it.runs_on(&["dpu-1"]))?;
    let claim = it.only("persistentvolumeclaims")?;
    let volume = &claim["spec"]["volumeName"];
    let own = holds(
        *volume == "disk-of-dpu-1",
        &format!("its volume is {volume}"),
    );
    steps.note("it has the disk of its node", own)?;
    steps.note("uninstall leaves nothing", it.uninstall())
}

/// Installs a release without DPF, on nodes with a label.
///
/// # Errors
/// As [`restricted`].
pub(super) fn by_label(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    let it = chart(cluster, "pierhead", PRIVILEGED)?;
    let values = "{nodeSelector: {kubernetes.io/arch: arm64}, network: {hostNetwork: true}, \
        priorityClassName: system-node-critical}\n";
    steps.note("install", it.upgrade(values, &[]))?;
    // dpu-3 has a taint.
    steps.note(
        "pods by label and taint",
        it.runs_on(&["arm-1", "dpu-1", "dpu-2"]),
    )?;
    let pods = it.pods()?;
    let outranks = |pod: &Value| pod["spec"]["priority"].as_i64() > Some(1_000_000_000);
    let right = holds(
        pods.iter().all(outranks),
        "their priority is not of the class",
    );
    steps.note("priority of the class", right)?;
    let at_home = |pod: &Value| pod["status"]["podIP"] == pod["status"]["hostIP"];
    let right = holds(
        pods.iter().all(at_home),
        "an address that is not the node's",
    );
    steps.note("at the address of the node", right)?;
    steps.note("uninstall leaves nothing", it.uninstall())
}

pub(super) fn holds(it: bool, otherwise: &str) -> Result<()> {
    ensure!(it, "{otherwise}");
    Ok(())
}

/// Checks the memory limit of the container in a DaemonSet.
fn memory(daemon_set: &Value, wanted: &str) -> Result<()> {
    let container = &daemon_set["spec"]["template"]["spec"]["containers"][0];
    let limit = &container["resources"]["limits"]["memory"];
    ensure!(*limit == wanted, "it is {limit}");
    Ok(())
}

/// Checks that the Service keeps traffic on the node, and has an endpoint on each node with a pod.
fn local(cluster: &Cluster, it: &Release<'_>) -> Result<()> {
    let policy = it.only("services")?["spec"]["internalTrafficPolicy"].clone();
    ensure!(policy == "Local", "internalTrafficPolicy is {policy}");
    cluster.until("endpoints", || {
        let slice = it.only("endpointslices")?;
        let endpoints = slice["endpoints"].as_array().context("no endpoint")?;
        let mut nodes: Vec<_> = endpoints
            .iter()
            .filter(|it| it["conditions"]["ready"] == json!(true))
            .filter_map(|it| it["nodeName"].as_str())
            .collect();
        nodes.sort_unstable();
        ensure!(nodes == DPUS, "endpoints on {nodes:?}");
        Ok(())
    })
}

/// Checks that the pod of `helm test` was bound to one of `nodes`. The pod is deleted, but its
/// event remains.
fn tested(cluster: &Cluster, nodes: &[&str]) -> Result<()> {
    let words = [
        "events",
        "--namespace",
        RESTRICTED,
        "--field-selector=reason=Scheduled,involvedObject.name=pierhead-test-pull",
    ];
    let events = cluster.client.get(words)?;
    let message = events["items"][0]["message"]
        .as_str()
        .context("the test's pod was never bound")?;
    let bound = nodes
        .iter()
        .any(|it| message.ends_with(&format!(" to {it}")));
    ensure!(bound, "{message}");
    Ok(())
}

/// Waits until every pod has the current template of the DaemonSet, and each DPU has a pod.
fn current(cluster: &Cluster, it: &Release<'_>) -> Result<()> {
    let hash = "checksum/config";
    cluster.until("pods of this revision", || {
        let wanted = it.daemon_set()?["spec"]["template"]["metadata"]["annotations"][hash].clone();
        let pods = it.pods()?;
        if let Some(old) = pods
            .iter()
            .find(|pod| pod["metadata"]["annotations"][hash] != wanted)
        {
            bail!("the pod on {} has another configuration", node(old));
        }
        ensure!(pods.len() == DPUS.len(), "{} pods", pods.len());
        Ok(())
    })
}

/// Checks that `outcome` is an error that contains `wanted`.
pub(super) fn refused(outcome: Result<()>, wanted: &str) -> Result<()> {
    match outcome {
        Ok(()) => bail!("it was taken"),
        Err(error) if format!("{error:#}").contains(wanted) => Ok(()),
        Err(error) => Err(error.context(format!("it does not say {wanted:?}"))),
    }
}
