//! End-to-end tests of an upstream outage: circuit breaker, log lines, negative cache.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pierhead_testkit::{
    images::Image,
    registry::{FakeRegistry, Fault},
};
use pierhead_tests::{
    pierhead::{Options, Pierhead},
    wait,
};

use crate::requests::{get, get_until_ok, pull, start_in_front};

/// The sum of all metric lines that begin with `name`.
fn metric(pierhead: &Pierhead, name: &str) -> Result<u64> {
    let response = get(pierhead.admin(), "/metrics")?;
    let text = std::str::from_utf8(&response.body)?;
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values: Vec<u64> = lines
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    ensure!(!values.is_empty(), "no {name} in {text}");
    Ok(values.iter().sum())
}

const STATE: &str = "pierhead_remote_upstream_state{";

#[test]
fn the_circuit_opens_in_an_outage_and_closes_after_it() -> Result<()> {
    let options = Options::new().config("[tags]\nttl = \"0s\"");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let image = Image::random(1, &[1000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(metric(&pierhead, STATE)?, 0);

    hub.inject(Fault::Reset.on("*").before_auth());
    let tag = "/v2/library/app/manifests/1";
    wait::try_until("an open breaker", || {
        assert_eq!(get(pierhead.address(), tag)?.status, 200, "no stale copy");
        Ok((metric(&pierhead, STATE)? == 2).then_some(()))
    })?;
    // While the circuit is open, only probes reach the upstream, with at least a second between two
    // probes.
    hub.clear_requests();
    let started = Instant::now();
    for nth in 0..100 {
        let path = format!("/v2/library/none/manifests/{nth}");
        let status = get(pierhead.address(), &path)?.status;
        assert_eq!(status, 503, "{path}");
    }
    let probes = 1 + started.elapsed().as_secs();
    let requested = hub.count(|_| true) as u64;
    // A failed probe is one request and its retries.
    assert!(
        requested <= 4 * probes,
        "{requested} requests to a dead upstream"
    );
    assert_eq!(pierhead.log().matches("upstream unhealthy").count(), 1);

    hub.clear_faults();
    wait::try_until("a closed breaker", || {
        get(pierhead.address(), tag)?;
        Ok((metric(&pierhead, STATE)? == 0).then_some(()))
    })?;
    let log = pierhead.log();
    for line in ["upstream unhealthy", "upstream healthy again"] {
        assert_eq!(log.matches(line).count(), 1, "{line}:\n{log}");
    }
    assert_eq!(get(pierhead.address(), tag)?.header("x-cache"), Some("HIT"));
    Ok(())
}

/// A client requests an image before the image is pushed, and gets it soon after the push.
#[test]
fn a_pushed_image_is_visible_within_seconds_after_a_404() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let image = Image::random(2, &[1000]);
    let blob = format!("/v2/library/app/blobs/{}", image.blobs[1].digest);
    for path in ["/v2/library/app/manifests/1", &blob] {
        for _ in 0..20 {
            assert_eq!(get(pierhead.address(), path)?.status, 404);
        }
    }
    // pierhead sends each request to the upstream once, and retries the request once.
    let requested = hub.count(|_| true);
    assert!(requested <= 4, "{requested} requests for a missing image");
    hub.push("library/app", "1", &image);
    let pushed = Instant::now();
    for path in ["/v2/library/app/manifests/1", &blob] {
        get_until_ok(pierhead.address(), path)?;
    }
    let took = pushed.elapsed();
    // pierhead caches a 404 for five seconds. The rest of the time limit is for a busy machine.
    assert!(took < Duration::from_secs(15), "seen after {took:?}");
    Ok(())
}
