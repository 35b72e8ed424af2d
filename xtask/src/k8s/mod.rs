//! `cargo xtask k8s`: installs the charts in a real Kubernetes control plane with simulated nodes.
//!
//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the programs of real
//! clusters. These servers admit, schedule and bind pods, and delete unused objects. kwok reports
//! each node as ready and each pod as running, but no container runs.

mod binaries;
mod client;
mod cluster;
mod crds;
mod dpf;
mod hosts;
mod lifecycle;
mod pod_process;
mod release;
mod server;
mod settings;
mod steps;
mod strict;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};

use crate::{
    chart,
    check::{programs, test_count::TestCount},
    install,
};
use binaries::Binaries;
use cluster::Cluster;
use steps::Steps;

/// Name of the suite's part that renders every combination of values.
const VALUES: &str = "values";

/// Flags of `cargo xtask k8s`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Do not install missing programs. A missing program is an error.
    #[arg(long)]
    no_install: bool,
    /// Run only these parts of the suite (repeatable): values, dpf, restricted, everything, disks,
    /// labels, hosts, commands.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Use this pierhead for the tests of the host chart, instead of building one.
    #[arg(long, value_name = "FILE")]
    daemon: Option<PathBuf>,
    /// Command to run with KUBECONFIG set and kubectl on the PATH; without a command, the test
    /// suite runs.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Starts the control plane, and runs the command or the suite.
///
/// # Errors
/// When the control plane cannot be built or started.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if !options.no_install {
        install::cluster()?;
    }
    let binaries = Binaries::prepare()?;
    if let Some((program, words)) = options.command.split_first() {
        let cluster = Cluster::start(&binaries)?;
        let status = cluster.client.command(program).args(words).status();
        let status = status.with_context(|| format!("start {program}"))?;
        let code = status.code().and_then(|it| u8::try_from(it).ok());
        return Ok(ExitCode::from(code.unwrap_or(u8::MAX)));
    }
    let daemon = match &options.daemon {
        Some(daemon) => std::path::absolute(daemon)?,
        None => programs::build_daemon()?,
    };
    let cluster = Cluster::start(&binaries)?;
    let count = suite(&binaries, &cluster, &daemon, &options.only)?;
    for failure in &count.failures {
        println!("failed: {failure}");
    }
    println!("{} passed, {} failed", count.passed, count.failed);
    Ok(ExitCode::from(u8::from(count.failed > 0)))
}

/// A part of the suite.
type Part<'a> = dyn Fn(&Cluster, &mut Steps<'_>) -> Result<()> + 'a;

fn suite(
    binaries: &Binaries,
    cluster: &Cluster,
    daemon: &Path,
    only: &[String],
) -> Result<TestCount> {
    let carried_out = |cluster: &Cluster, steps: &mut Steps<'_>| {
        hosts::carried_out(cluster, binaries, daemon, steps)
    };
    let parts: [(&str, &Part<'_>); 7] = [
        ("dpf", &dpf::samples),
        ("restricted", &lifecycle::restricted),
        ("everything", &lifecycle::everything),
        ("disks", &lifecycle::local_volumes),
        ("labels", &lifecycle::by_label),
        ("hosts", &hosts::paired),
        ("commands", &carried_out),
    ];
    let chosen = |name: &str| only.is_empty() || only.iter().any(|it| it == name);
    let known = |name: &String| name == VALUES || parts.iter().any(|(part, _)| part == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        bail!("no part is called {unknown}");
    }
    let mut count = TestCount::default();
    ready(cluster)?;
    if chosen(VALUES) {
        let manifests = tempfile::tempdir_in(cluster.folder())?;
        chart::render(&binaries.helm, manifests.path(), &mut count)?;
        strict::run(&cluster.client, manifests.path(), &mut count)?;
        println!(
            "  {} passed, {} failed: each combination of values",
            count.passed, count.failed
        );
    }
    for (name, part) in &parts {
        if chosen(name) {
            Steps::run(name, &mut count, |steps| part(cluster, steps));
        }
    }
    Ok(count)
}

/// Creates the namespaces and resource definitions that the parts need.
fn ready(cluster: &Cluster) -> Result<()> {
    let said = cluster.client.kubectl(["get", "--raw", "/version"])?;
    let said: serde_json::Value = serde_json::from_str(&said)?;
    println!("  Kubernetes {}", said["gitVersion"]);
    cluster.client.apply(strict::NAMESPACES)?;
    dpf::define(cluster)?;
    cluster.until("namespaces have what each gets", || {
        for namespace in [strict::RESTRICTED, strict::PRIVILEGED, dpf::NAMESPACE] {
            for own in ["configmap/kube-root-ca.crt", "serviceaccount/default"] {
                let words = ["get", own, "--namespace", namespace];
                cluster.client.kubectl(words)?;
            }
        }
        Ok(())
    })
}
