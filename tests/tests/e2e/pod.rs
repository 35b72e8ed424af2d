//! The image that is released, run with the very settings of the charts' pods: without root or without any of its
//! powers, on a root that cannot be written to.

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

use crate::{ask::get, certified::Files, tls::get as get_tls};

/// Settings that hold for every pod, as the kernel sees them.
fn confined(pod: &Pod, user: u32) -> Result<()> {
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

/// Where the probes and the Service of the chart look.
fn port(chart: &Chart, name: &str) -> Result<SocketAddr> {
    let ports = chart.pod()?["containers"][0]["ports"].as_array();
    let port = ports.into_iter().flatten().find(|it| it["name"] == name);
    let port = port.and_then(|it| it["containerPort"].as_u64());
    let port = port.with_context(|| format!("no port {name}"))?;
    Ok(([127, 0, 0, 1], u16::try_from(port)?).into())
}

/// Waits until the pod would be ready.
fn probed(chart: &Chart, pod: &Pod) -> Result<()> {
    let container = &chart.pod()?["containers"][0];
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap_or("");
        wait::until(probe, || {
            ensure!(pod.runs()?, "it ended:\n{}", pod.log());
            let answer = get(port(chart, "admin")?, path);
            Ok(answer.is_ok_and(|it| it.status == 200).then_some(()))
        })?;
    }
    Ok(())
}

/// A fast tier in memory is charged to the container, whole, at its first start.
#[test]
fn a_tier_in_memory_has_room_of_its_own() -> Result<()> {
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

/// A Secret that nobody made is said by pierhead, with a code, and taken when it comes.
#[test]
fn a_secret_that_comes_late_is_asked_for() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    Network::new()?.inside(|| {
        let chart = Chart::render("chart", &json!({"tls": {"secretName": "late"}}))?;
        let pod = Pod::start(&chart, &[])?;
        assert_eq!(pod.ended()?, 66, "{}", pod.log());
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
        pod.again()?;
        probed(&chart, &pod)?;
        let answer = get_tls(port(&chart, "registry")?, "/v2/", files.ca())?;
        assert_eq!(answer.status, 200);
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
        // However little room the disk of this machine has.
        let config = json!({"cache": {"min_free": "0"}});
        let values = json!({"upstreams": upstreams, "config": config});
        let chart = Chart::render("chart", &values)?;
        let pod = Pod::start(&chart, &[])?;
        let check = pod.config_check();
        ensure!(check.is_some_and(|it| it.is_ok()), "{check:?}");
        probed(&chart, &pod)?;
        confined(&pod, 65532)?;

        let client = Podman::with_mirror("docker.io", port(&chart, "registry")?)?;
        for _ in 0..2 {
            assert_eq!(client.pull(&image.name())?.root, image.root);
            assert_eq!(client.run(&image.name(), &[])?.as_deref(), Some(GREETING));
            client.empty()?;
            // The second time there is nobody else who has it.
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
fn the_host_half_sets_a_runtime_up_and_takes_it_back() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    Network::new()?.inside(|| {
        let address = "http://$(NODE_NAME)-dpu.example:5000";
        let chart = Chart::render("chart-host", &json!({"address": address}))?;
        let pod = Pod::start(&chart, &[("NODE_NAME", "host-1"), ("HOST_IP", "192.0.2.7")])?;
        let hosts = pod.volume("runtime").join("certs.d/_default/hosts.toml");
        let text = wait::until("hosts.toml", || {
            ensure!(pod.runs()?, "it ended:\n{}", pod.log());
            let text = std::fs::read_to_string(&hosts).unwrap_or_default();
            Ok(text.contains("capabilities").then_some(text))
        })?;
        ensure!(text.contains("http://host-1-dpu.example:5000"), "{text}");
        let ready = &chart.pod()?["containers"][0]["readinessProbe"]["exec"]["command"];
        wait::until("the readiness probe", || Ok(pod.exec(ready)?.then_some(())))?;
        confined(&pod, 0)?;
        assert_eq!(pod.stop()?, 0, "{}", pod.log());
        ensure!(!hosts.exists(), "it is still there");
        Ok(())
    })
}
