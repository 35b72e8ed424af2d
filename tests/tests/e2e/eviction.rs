//! End-to-end tests of eviction: a change of the policy by SIGHUP, and the replay of a recorded
//! request log.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{images::Image, registry::FakeRegistry};
use pierhead_tests::{
    paths,
    pierhead::{Options, Pierhead},
    process, wait,
};
use serde_json::Value;

use crate::requests::{get, pull, start_in_front};

fn stat(pierhead: &Pierhead) -> Result<Value> {
    Ok(serde_json::from_str(&pierhead.cache(&["stat", "--json"])?)?)
}

/// The configuration selects the eviction policy. SIGHUP changes the policy, and all cached blobs
/// stay.
#[test]
fn sighup_changes_the_eviction_policy() -> Result<()> {
    let options = Options::new().config("[eviction]\npolicy = \"lru\"\nadmission = \"always\"");
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let image = Image::random(1, &[100_000, 3000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(stat(&pierhead)?["eviction"]["policy"], "lru");

    pierhead.reload(
        "[eviction]\npolicy = \"gdsf\"\nadmission = \"second-hit\"\n[cache]\ndaily_write_budget = \"1GiB\"",
    )?;
    wait::try_until("the new policy", || {
        Ok((stat(&pierhead)?["eviction"]["policy"] == "gdsf").then_some(()))
    })?;
    let now = stat(&pierhead)?;
    assert_eq!(now["eviction"]["admission"], "second-hit");
    assert_eq!(now["eviction"]["daily_write_budget"], 1_u64 << 30);
    assert!(
        now["eviction"]["written_today"].as_u64() >= Some(100_000),
        "{now}"
    );
    let metrics = get(pierhead.admin(), "/metrics")?;
    let metrics = std::str::from_utf8(&metrics.body)?;
    let info = "pierhead_cache_eviction_info{policy=\"gdsf\",admission=\"second-hit\"} 1";
    assert!(metrics.contains(info), "{metrics}");

    // A reload with an unknown policy changes nothing, and the log suggests the right name.
    pierhead.reload("[eviction]\npolicy = \"gdfs\"")?;
    let log = |log: &str| Ok(log.contains("did you mean \"gdsf\"?").then_some(()));
    pierhead.daemon().until("the fix in the log", log)?;
    pull(&pierhead, "library/app", &image)?;
    for blob in &image.blobs {
        assert_eq!(hub.gets_of(&blob.digest), 1, "no blob was lost");
    }
    Ok(())
}

/// `pierhead-replay` reads the request log of `serve`. The request log contains no client addresses
/// and no digests.
#[test]
fn a_recorded_request_log_is_replayed() -> Result<()> {
    let folder = paths::scratch("trace")?;
    let file = folder.path().join("pulls.trace");
    let options = Options::new().config(&format!(
        "[request_log]\nfile = {:?}",
        file.display().to_string()
    ));
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let image = Image::random(2, &[200_000, 3000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    pierhead.restart()?;
    pull(&pierhead, "library/app", &image)?;
    ensure!(pierhead.stop()?.success(), "{}", pierhead.log());

    let trace = std::fs::read_to_string(&file)?;
    for digest in image.digests() {
        assert!(!trace.contains(&digest.hex()[..16]), "{trace}");
    }
    let secret = std::fs::read(pierhead.data().join("trace-secret"))?;
    assert_eq!(secret.len(), 32);
    let lines = || trace.lines().filter(|line| !line.starts_with('#'));
    let file = file.to_str().context("UTF-8")?;
    let flags = [
        "--trace", file, "--policy", "lru", "--size", "1GiB", "--json",
    ];
    let output = process::run(Command::new(paths::pierhead_replay()?).args(flags))?;
    let output: Value = serde_json::from_str(&output)?;
    let row = &output["rows"][0];
    assert_eq!(
        row["requests"].as_u64(),
        Some(lines().count() as u64),
        "{output}\n{trace}"
    );
    // An image has a manifest, a config and two layers. Each of these four blobs has one miss and
    // one hit.
    let fetched = lines().filter(|line| line.ends_with(" miss")).count();
    assert_eq!(fetched, image.digests().count(), "{trace}");
    let missed = row["object_miss_ratio"].as_f64().context("a ratio")?;
    let expected = fetched as f64 / lines().count() as f64;
    assert!((missed - expected).abs() < 1e-6, "{output}");
    Ok(())
}
