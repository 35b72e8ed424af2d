//! Runs the release image with the settings of the Helm charts' pods: as a user other than root, or
//! as root without capabilities, and with a read-only root file system.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
};

use anyhow::{Context as _, Result, ensure};
use pierhead_testkit::registry::FakeRegistry;
use pierhead_tests::{
    chart::Chart,
    clients::{Client, Podman},
    image::{GREETING, images},
    namespace::Network,
    pod::{self, Pod},
    tool::or_skip,
    wait,
};
use serde_json::json;

use crate::{certificates::Files, requests::get, tls::get as get_tls};

/// Asserts the security settings of every pod, as the kernel reports them.
fn assert_confined(pod: &Pod, user: u32) -> Result<()> {
    for (key, value) in [
        ("Uid", format!("{user} {user} {user} {user}")),
        ("Gid", format!("{user} {user} {user} {user}")),
        ("CapEff", "0".repeat(16)),
        ("CapPrm", "0".repeat(16)),
        ("CapBnd", "0".repeat(16)),
        ("CapAmb", "0".repeat(16)),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
    ] {
        let found = pod.status(key)?;
        ensure!(found == value, "{key} is {found}");
    }
    let root = pod.mounted("/")?;
    ensure!(root.split(',').any(|it| it == "ro"), "the root is {root}");
    Ok(())
}

/// The address of a named port of the chart's pod.
fn port(chart: &Chart, name: &str) -> Result<SocketAddr> {
    let ports = chart.pod()?["containers"][0]["ports"].as_array();
    let port = ports.into_iter().flatten().find(|it| it["name"] == name);
    let port = port.and_then(|it| it["containerPort"].as_u64());
    let port = port.with_context(|| format!("no port {name}"))?;
    Ok(([127, 0, 0, 1], u16::try_from(port)?).into())
}

/// Waits until the readiness probe of the pod succeeds.
fn probed(chart: &Chart, pod: &Pod) -> Result<()> {
    let container = &chart.pod()?["containers"][0];
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap_or("");
        wait::try_until(probe, || {
            ensure!(pod.is_running()?, "it ended:\n{}", pod.log());
            let response = get(port(chart, "admin")?, path);
            Ok(response.is_ok_and(|it| it.status == 200).then_some(()))
        })?;
    }
    Ok(())
}

/// At its first start, pierhead allocates the whole fast tier in memory, and the kernel charges
/// this memory to the container.
#[test]
fn a_tier_in_memory_fits_the_memory_limit() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    Network::new()?.inside(|| {
        let tier = json!({"kind": "file", "size": "384Mi"});
        let chart = Chart::render("chart", &json!({"profile": "small", "tier": tier}))?;
        let pod = Pod::start(&chart, &[])?;
        let check = pod.config_check();
        ensure!(check.is_some_and(|it| it.is_ok()), "{check:?}");
        probed(&chart, &pod)?;
        assert_eq!(pod.stop()?, 0, "{}", pod.log());
        Ok(())
    })
}

/// While a Secret is missing, pierhead exits with code 66. Once the Secret exists, pierhead starts.
#[test]
fn a_missing_secret_is_reported_and_used_once_it_exists() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    Network::new()?.inside(|| {
        let chart = Chart::render("chart", &json!({"tls": {"secretName": "late"}}))?;
        let pod = Pod::start(&chart, &[])?;
        assert_eq!(pod.wait_for_exit()?, 66, "{}", pod.log());
        let log = pod.log();
        ensure!(log.contains("/etc/pierhead/tls/tls.crt"), "{log}");
        let check = pod.config_check().context("no init container")?;
        let refused = check.is_err_and(|error| error.contains("/etc/pierhead/tls/tls.crt"));
        ensure!(refused, "{check:?}");

        for (from, to) in [("server.cert", "tls.crt"), ("server.key", "tls.key")] {
            let to = pod.volume("tls").join(to);
            fs::copy(files.path(from), &to)?;
            fs::set_permissions(&to, Permissions::from_mode(0o644))?;
        }
        pod.restart()?;
        probed(&chart, &pod)?;
        let response = get_tls(port(&chart, "registry")?, "/v2/", files.ca())?;
        assert_eq!(response.status, 200);
        assert_eq!(pod.stop()?, 0, "{}", pod.log());
        Ok(())
    })
}

#[test]
fn the_daemonset_serves_a_pull() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    Network::new()?.inside(|| {
        let hub = FakeRegistry::builder().start_in_background();
        hub.push_layout(image.layout().folder())?;
        let upstreams = json!({"docker.io": {"addresses": hub.url()}});
        // `min_free` of 0 allows the test to run on a machine with little free disk space.
        let config = json!({"cache": {"min_free": "0"}});
        let values = json!({"upstreams": upstreams, "config": config});
        let chart = Chart::render("chart", &values)?;
        let pod = Pod::start(&chart, &[])?;
        let check = pod.config_check();
        ensure!(check.is_some_and(|it| it.is_ok()), "{check:?}");
        probed(&chart, &pod)?;
        assert_confined(&pod, 65532)?;

        let client = Podman::with_mirror("docker.io", port(&chart, "registry")?)?;
        for _ in 0..2 {
            assert_eq!(client.pull(&image.name())?.root, image.root);
            assert_eq!(client.run(&image.name(), &[])?.as_deref(), Some(GREETING));
            client.empty()?;
            // The second pull comes from the cache, because the registry is stopped.
            hub.stop();
        }
        ensure!(
            pod.volume("data").join("cache/blobs").exists(),
            "kept elsewhere"
        );
        assert_eq!(pod.stop()?, 0, "{}", pod.log());
        Ok(())
    })
}

#[test]
fn the_host_chart_configures_a_runtime_and_undoes_it() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    Network::new()?.inside(|| {
        let address = "http://$(NODE_NAME)-dpu.example:5000";
        let chart = Chart::render("chart-host", &json!({"address": address}))?;
        let pod = Pod::start(&chart, &[("NODE_NAME", "host-1"), ("HOST_IP", "192.0.2.7")])?;
        let hosts = pod.volume("runtime").join("certs.d/_default/hosts.toml");
        let text = wait::try_until("hosts.toml", || {
            ensure!(pod.is_running()?, "it ended:\n{}", pod.log());
            let text = std::fs::read_to_string(&hosts).unwrap_or_default();
            Ok(text.contains("capabilities").then_some(text))
        })?;
        ensure!(text.contains("http://host-1-dpu.example:5000"), "{text}");
        let ready = &chart.pod()?["containers"][0]["readinessProbe"]["exec"]["command"];
        wait::try_until("the readiness probe", || Ok(pod.exec(ready)?.then_some(())))?;
        assert_confined(&pod, 0)?;
        assert_eq!(pod.stop()?, 0, "{}", pod.log());
        ensure!(!hosts.exists(), "the file still exists");
        Ok(())
    })
}
