//! Checks that the API server accepts the DPF samples with the resource definitions of the
//! supported DPF version.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    crds,
    lifecycle::refused,
    release::Release,
    steps::Steps,
    strict::{self, PRIVILEGED},
};
use crate::paths;

/// Label that DPF gives to the pods of a service.
const SERVICE: &str = "svc.dpu.nvidia.com/service";
/// Namespace of DPF's own objects.
pub(super) const NAMESPACE: &str = "dpf-operator-system";

/// Creates the resource definitions of every kind in `bluefield/schemas`, and waits until the API
/// server serves them.
///
/// # Errors
/// The API server refuses a definition.
pub(super) fn define(cluster: &Cluster) -> Result<()> {
    for file in paths::files(&paths::root().join("bluefield/schemas"), "json")? {
        let schemas: Value = serde_json::from_slice(&fs::read(&file)?)?;
        cluster.client.apply(&crds::of(&schemas)?.to_string())?;
    }
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    cluster.client.kubectl(established)?;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    cluster.client.apply(&namespace.to_string())
}

/// Creates each sample, checks that the API server refuses invalid variants, and installs the chart
/// as DPF would.
///
/// # Errors
/// A step fails that later steps need. The step is counted as failed.
pub(super) fn samples(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    let folder = paths::root().join("bluefield/dpf");
    for file in paths::files(&folder, "yaml")? {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&file)?;
        steps.note(&format!("{stem} is served"), cluster.client.apply(&text))?;
        let wrong = text.replacen("\nspec:\n", "\nspec:\n  unheardOf: 1\n", 1);
        let outcome = strict::check_accepted(&cluster.client, NAMESPACE, &wrong);
        let what = format!("{stem} with an unknown key is refused");
        steps.note(&what, refused(outcome, "unheardOf"))?;
    }
    let text = fs::read_to_string(folder.join("dpuservice.yaml"))?;
    let wrong = text.replacen("serviceType: NodePort", "serviceType: Everywhere", 1);
    let outcome = strict::check_accepted(&cluster.client, NAMESPACE, &wrong);
    steps.note("a wrong value is refused", refused(outcome, "serviceType"))?;
    contract(cluster, steps)?;
    let kinds =
        "dpuservices,dpuservicetemplates,dpuserviceconfigurations,dpudeployments,dpuflavors";
    let words = ["delete", kinds, "--all", "--namespace", NAMESPACE];
    cluster.client.kubectl(words).map(drop)
}

/// Installs the chart with the values of the DPUService and the values that DPF adds.
fn contract(cluster: &Cluster, steps: &mut Steps<'_>) -> Result<()> {
    let words = ["dpuservice", "pierhead", "--namespace", NAMESPACE];
    let spec = cluster.client.get(words)?["spec"].clone();
    let mut values = spec["helmChart"]["values"].clone();
    let ports = spec["configPorts"]["ports"].as_array();
    let ports: Value = ports
        .into_iter()
        .flatten()
        .filter_map(|it| Some((it["name"].as_str()?.to_owned(), json!(true))))
        .collect();
    let by = json!({"dpu.nvidia.com/dpuservice-name": "pierhead", "dpu.nvidia.com/dpuservice-namespace": NAMESPACE});
    values["exposedPorts"] = json!({"ports": ports, "labels": by});
    values["serviceDaemonSet"] = spec["serviceDaemonSet"].clone();
    values["serviceDaemonSet"]["labels"][SERVICE] = spec["serviceID"].clone();
    let chart = paths::root().join("bluefield/chart");
    let it = Release::new(cluster, "of-dpf", PRIVILEGED, &chart)?;
    let installed = it.upgrade(&values.to_string(), &[]);
    steps.note("the chart takes what DPF hands over", installed)?;
    let nodes = ["arm-1", "dpu-1", "dpu-2"];
    steps.note("its nodes are those of DPF", it.runs_on(&nodes))?;
    let labels = labels(&it, &spec);
    steps.note("its pods have the labels of DPF", labels)?;
    let found = forwarded(cluster, &by, &ports);
    steps.note("DPF finds the port that it forwards", found)?;
    steps.note("uninstall leaves nothing", it.uninstall())
}

/// Checks what DPF relies on: exactly one Service has the labels, and each of its ports has a node
/// port.
fn forwarded(cluster: &Cluster, by: &Value, ports: &Value) -> Result<()> {
    let labels = by.as_object().into_iter().flatten();
    let selector: Vec<_> = labels
        .filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)))
        .collect();
    let selector = format!("--selector={}", selector.join(","));
    let words = ["services", "--all-namespaces", &selector];
    let services = cluster.client.get(words)?["items"].clone();
    ensure!(
        services.as_array().map(Vec::len) == Some(1),
        "not one Service: {services}"
    );
    let found = services[0]["spec"]["ports"].as_array();
    for (name, _) in ports.as_object().into_iter().flatten() {
        let mut found = found.into_iter().flatten();
        let port = found.find(|it| it["name"] == **name);
        let port = port.and_then(|it| it["nodePort"].as_u64());
        ensure!(port > Some(0), "{name} has no port of the node");
    }
    Ok(())
}

fn labels(it: &Release<'_>, spec: &Value) -> Result<()> {
    let mut wanted = spec["serviceDaemonSet"]["labels"].clone();
    wanted[SERVICE] = spec["serviceID"].clone();
    for pod in it.pods()? {
        for (name, value) in wanted.as_object().into_iter().flatten() {
            let found = &pod["metadata"]["labels"][name];
            ensure!(found == value, "{name} is {found} and not {value}");
        }
    }
    Ok(())
}
