//! The image that is released, run with the very settings of the charts' pods: without root or without any of its
//! powers, on a root that cannot be written to.

use anyhow::{Result, ensure};
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

use crate::ask::get;

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

#[test]
fn the_daemonset_serves_a_pull() -> Result<()> {
    if or_skip(pod::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    Network::new()?.inside(|| {
        let hub = FakeRegistry::builder().start_in_background();
        hub.push_layout(image.layout().folder())?;
        let upstreams = json!({"docker.io": {"url": hub.url()}});
        let chart = Chart::render("chart", &json!({"upstreams": upstreams}))?;
        let container = &chart.pod()?["containers"][0];
        let pod = Pod::start(&chart, &[])?;
        // Where the probes and the Service of the chart look.
        let port = |name: &str| {
            let ports = container["ports"].as_array().into_iter().flatten();
            let port = ports.clone().find(|it| it["name"] == name);
            let port = port
                .and_then(|it| it["containerPort"].as_u64())
                .unwrap_or(0);
            ([127, 0, 0, 1], u16::try_from(port).unwrap_or(0)).into()
        };
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let path = container[probe]["httpGet"]["path"].as_str().unwrap_or("");
            wait::until(probe, || {
                ensure!(pod.runs()?, "it ended:\n{}", pod.log());
                let answer = get(port("admin"), path);
                Ok(answer.is_ok_and(|it| it.status == 200).then_some(()))
            })?;
        }
        confined(&pod, 65532)?;

        let client = Podman::with_mirror("docker.io", port("registry"))?;
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
        confined(&pod, 0)?;
        assert_eq!(pod.stop()?, 0, "{}", pod.log());
        ensure!(!hosts.exists(), "it is still there");
        Ok(())
    })
}
