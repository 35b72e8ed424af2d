//! End-to-end tests of operation: shutdown, reload, cache commands, size limit, upstream failures,
//! metrics.

use std::thread;

use anyhow::{Context, Result};
use bytes::Bytes;
use pierhead_testkit::{
    http::{Connection, End, Request},
    images::{Image, random_bytes},
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{
    paths,
    pierhead::{Options, Pierhead},
    wait,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::requests::{bytes_below, get, pull, start_in_front, wait_for_commit};

const MIB: usize = 1 << 20;

/// Stores a blob of 4 MiB in the registry, which sends 1 MiB of it and the rest after the gate is
/// released. Returns the path of the blob, its bytes and the gate.
fn gated_blob(hub: &FakeRegistry, seed: u64) -> (String, Bytes, Gate) {
    let bytes = random_bytes(seed, 4 * MIB);
    let digest = hub.put_blob("library/app", bytes.clone());
    let gate = Gate::new();
    hub.inject(Fault::GateBody(MIB as u64, gate.clone()).on_blob(&digest));
    (format!("/v2/library/app/blobs/{digest}"), bytes, gate)
}

/// After SIGTERM during a download, pierhead completes the response, refuses new connections, and
/// exits with code 0.
#[test]
fn running_responses_complete_at_shutdown() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let address = pierhead.address();
    let (path, bytes, gate) = gated_blob(&hub, 1);
    thread::scope(|scope| -> Result<()> {
        let client = scope.spawn(|| get(address, &path));
        hub.wait(async |_| gate.reached(1).await);
        pierhead.daemon().signal(Signal::TERM)?;
        wait::try_until("no new connections", || {
            Ok(get(address, "/v2/").is_err().then_some(()))
        })?;
        gate.release();
        let response = client.join().expect("no panic")?;
        assert_eq!((response.status, response.end), (200, End::Clean));
        assert_eq!(response.body, bytes);
        Ok(())
    })?;
    let status = pierhead.daemon().wait(wait::TIME_LIMIT)?;
    assert!(status.success(), "{status}");
    Ok(())
}

/// SIGHUP adds an upstream, and does not interrupt a running download.
#[test]
fn sighup_reloads_the_configuration() -> Result<()> {
    let more = FakeRegistry::builder().start_in_background();
    let image = Image::random(2, &[1000]);
    more.push("team/app", "1", &image);
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let address = pierhead.address();
    let (path, bytes, gate) = gated_blob(&hub, 2);
    let other = "/v2/registry.example/team/app/manifests/1";
    assert_ne!(get(address, other)?.status, 200);
    thread::scope(|scope| -> Result<()> {
        let client = scope.spawn(|| get(address, &path));
        hub.wait(async |_| gate.reached(1).await);
        pierhead.reload(&format!(
            "[upstreams.\"registry.example\"]\naddresses = {:?}",
            more.url()
        ))?;
        wait::try_until("the new upstream", || {
            Ok((get(address, other)?.status == 200).then_some(()))
        })?;
        // A reload with an invalid configuration changes nothing.
        pierhead.reload("no_such_key = 1")?;
        let log = |log: &str| Ok(log.contains("no_such_key").then_some(()));
        pierhead.daemon().until("a refusal in the log", log)?;
        assert_eq!(get(address, other)?.status, 200);
        gate.release();
        let response = client.join().expect("no panic")?;
        assert_eq!((response.status, response.end), (200, End::Clean));
        assert_eq!(response.body, bytes);
        Ok(())
    })
}

/// The `cache` commands against a running daemon: list, pin, prune, verify, remove.
#[test]
fn cache_commands_manage_a_running_daemon() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let pinned = Image::random(3, &[100_000, 200_000]);
    let other = Image::random(4, &[300_000]);
    hub.push("library/pinned", "1", &pinned);
    hub.push("library/other", "1", &other);

    pierhead.cache(&[
        "warm",
        "docker.io/library/pinned:1",
        "docker.io/library/other:1",
    ])?;
    for blob in pinned.blobs.iter().chain(&other.blobs) {
        assert_eq!(hub.gets_of(&blob.digest), 1);
    }
    let listed = |more: &[&str]| pierhead.cache(&[&["ls", "--json"], more].concat());
    let list = listed(&[])?;
    for digest in pinned.digests().chain(other.digests()) {
        assert!(
            list.contains(&digest.to_string()),
            "{digest} is missing in {list}"
        );
    }
    let stat: Value = serde_json::from_str(&pierhead.cache(&["stat", "--json"])?)?;
    assert!(stat["used"].as_u64().context("used")? >= 600_000, "{stat}");

    pierhead.cache(&["pin", "docker.io/library/pinned:1"])?;
    assert!(listed(&["--pins"])?.contains("library/pinned"));
    pierhead.cache(&["prune", "--all"])?;
    let list = listed(&[])?;
    for digest in pinned.digests() {
        assert!(
            list.contains(&digest.to_string()),
            "the pinned {digest} was pruned"
        );
    }
    for blob in &other.blobs {
        assert!(!list.contains(&blob.digest.to_string()), "not pruned");
    }
    hub.stop();
    assert_eq!(
        get(pierhead.address(), "/v2/library/pinned/manifests/1")?.status,
        200
    );
    for blob in &pinned.blobs {
        let response = get(
            pierhead.address(),
            &format!("/v2/library/pinned/blobs/{}", blob.digest),
        )?;
        assert_eq!((response.status, &response.body), (200, &blob.bytes));
    }

    pierhead.cache(&["verify"])?;
    crate::disk_damage::flip(&pierhead.blob(&pinned.blobs[1].digest.to_string()), 5)?;
    let found = pierhead
        .cache(&["verify"])
        .expect_err("a flipped bit")
        .to_string();
    assert!(found.contains("failed"), "{found}");
    assert!(
        !listed(&[])?.contains(&pinned.blobs[1].digest.to_string()),
        "the damaged blob stayed"
    );

    pierhead.cache(&["unpin", "docker.io/library/pinned:1"])?;
    pierhead.cache(&["prune", "--all"])?;
    let stat: Value = serde_json::from_str(&pierhead.cache(&["stat", "--json"])?)?;
    assert_eq!(stat["used"], 0, "{stat}");
    Ok(())
}

/// The data folder stays within the size limit. pierhead streams a blob larger than the limit
/// without storing it.
#[test]
fn the_cache_size_is_limited() -> Result<()> {
    const BOUND: u64 = 8 << 20;
    let options = Options::new().argument("--cache-size").argument("8MiB");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let pull = |seed: u64, size: usize| -> Result<String> {
        let bytes = random_bytes(seed, size);
        let digest = hub.put_blob("library/app", bytes.clone());
        let response = get(
            pierhead.address(),
            &format!("/v2/library/app/blobs/{digest}"),
        )?;
        assert_eq!((response.status, response.end), (200, End::Clean));
        assert_eq!(response.body, bytes);
        // The folders are read in this order, so that a file that pierhead moves meanwhile is
        // counted at most once.
        let held = bytes_below(&pierhead.data().join("blobs"))?
            + bytes_below(&pierhead.data().join("staging"))?;
        assert!(held <= BOUND, "{held} bytes are stored after {size} more");
        Ok(digest.to_string())
    };
    for seed in 0..12 {
        pull(seed, 2 * MIB)?;
    }
    wait_for_commit(&pierhead, &pull(20, 2 * MIB)?)?;
    let used = bytes_below(&pierhead.data().join("blobs"))?;
    assert!(used >= BOUND / 2, "{used} bytes: the limit is hardly used");
    pull(21, 20 * MIB)?;
    wait_for_commit(&pierhead, &pull(22, 2 * MIB)?)?;
    Ok(())
}

/// Without any upstream, pierhead starts and serves cached images. Requests for other images get a
/// 503 within the time limit.
#[test]
fn cached_images_are_served_when_pierhead_starts_without_upstream() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(
        FakeRegistry::builder(),
        Options::new().config("[tags]\nttl = \"0s\""),
    )?;
    let image = Image::random(5, &[1000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    pierhead.stop()?;
    hub.stop();
    pierhead.restart()?;
    assert_eq!(get(pierhead.address(), "/v2/")?.status, 200);
    let response = get(pierhead.address(), "/v2/library/app/manifests/1")?;
    assert_eq!(
        (response.status, response.header("x-cache")),
        (200, Some("STALE"))
    );
    assert_eq!(
        get(pierhead.address(), "/v2/library/other/manifests/1")?.status,
        503
    );
    assert_eq!(get(pierhead.admin(), "/readyz")?.status, 200);
    Ok(())
}

/// An upstream accepts connections and never responds. Clients get the stale copy or a 503 within
/// the time limit.
#[test]
fn a_silent_upstream_delays_no_response_beyond_the_limit() -> Result<()> {
    let options =
        Options::new().config("[tags]\nttl = \"0s\"\n[limits]\nresponse_timeout = \"1s\"");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let image = Image::random(6, &[1000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    hub.inject(Fault::HangHead.on("*").before_auth());
    let response = get(pierhead.address(), "/v2/library/app/manifests/1")?;
    assert_eq!(
        (response.status, response.header("x-cache")),
        (200, Some("STALE"))
    );
    assert_eq!(
        get(pierhead.address(), "/v2/library/other/manifests/1")?.status,
        503
    );
    let digest = format!("sha256:{}", "a".repeat(64));
    assert_eq!(
        get(
            pierhead.address(),
            &format!("/v2/library/app/blobs/{digest}")
        )?
        .status,
        503
    );
    Ok(())
}

/// Clients select one of several registries by the path and by the parameter `?ns=`.
#[test]
fn several_upstreams_are_selected_by_path_and_ns() -> Result<()> {
    let (first, second) = (
        FakeRegistry::builder().start_in_background(),
        FakeRegistry::builder().start_in_background(),
    );
    let options = Options::new()
        .upstream("docker.io", &first.url())
        .upstream("registry.example:5000", &second.url());
    let pierhead = Pierhead::start(options)?;
    let (ours, theirs) = (Image::random(7, &[1000]), Image::random(8, &[1000]));
    first.push("library/app", "1", &ours);
    second.push("library/app", "1", &theirs);
    for (path, image) in [
        ("/v2/library/app/manifests/1", &ours),
        ("/v2/docker.io/library/app/manifests/1", &ours),
        ("/v2/docker.io/app/manifests/1", &ours),
        ("/v2/library/app/manifests/1?ns=docker.io", &ours),
        ("/v2/registry.example:5000/library/app/manifests/1", &theirs),
        (
            "/v2/library/app/manifests/1?ns=registry.example:5000",
            &theirs,
        ),
    ] {
        let response = get(pierhead.address(), path)?;
        assert_eq!(
            (response.status, &response.body),
            (200, &image.root_document().bytes),
            "{path}"
        );
    }
    Ok(())
}

/// The endpoints of the admin address, for operators.
#[test]
fn metrics_and_health() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let digest = hub.put_blob("library/app", random_bytes(9, 100_000));
    for _ in 0..2 {
        assert_eq!(
            get(
                pierhead.address(),
                &format!("/v2/library/app/blobs/{digest}")
            )?
            .status,
            200
        );
    }
    assert_eq!(get(pierhead.admin(), "/livez")?.status, 200);
    assert_eq!(get(pierhead.admin(), "/readyz")?.status, 200);
    let metrics = get(pierhead.admin(), "/metrics")?;
    let text = std::str::from_utf8(&metrics.body)?;
    for prefix in ["pierhead_cache_", "pierhead_remote_", "pierhead_proxy_"] {
        assert!(text.contains(prefix), "no {prefix} in {text}");
    }
    assert!(
        !text.contains(&digest.hex()),
        "a metric has a digest as a label"
    );
    // The registry API is not served on the admin address.
    assert_ne!(get(pierhead.address(), "/v1/stat")?.status, 200);
    Ok(())
}

/// A keep-alive connection still serves requests after each error.
#[test]
fn a_connection_survives_error_responses() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let digest = hub.put_blob("library/app", random_bytes(10, 1000));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut connection = Connection::open(pierhead.address()).await?;
        for (path, status) in [
            ("/v2/".to_owned(), 200),
            ("/v2/library/none/manifests/1".to_owned(), 404),
            (format!("/v2/library/app/blobs/{digest}"), 200),
            ("/v2/library/../x/manifests/1".to_owned(), 400),
            ("/nothing".to_owned(), 404),
            (format!("/v2/library/app/blobs/{digest}"), 200),
        ] {
            let response = connection.exchange(&Request::get(path.clone())).await?;
            // An invalid path may get status 400 or 404.
            let told = if response.status == 404 && status == 400 {
                400
            } else {
                response.status
            };
            assert_eq!(told, status, "{path}");
        }
        Ok(())
    })
}

/// The resident memory of an idle daemon stays within its limit.
#[test]
fn the_idle_memory_is_limited() -> Result<()> {
    let pierhead = Pierhead::start(Options::new())?;
    assert_eq!(get(pierhead.address(), "/v2/")?.status, 200);
    let (now, _) = pierhead.memory()?;
    // The limit is 12 MB for a release build. The code of a debug build is far larger.
    let bound = if paths::is_release()? { 12 } else { 48 };
    assert!(now <= bound << 20, "{now} bytes");
    Ok(())
}
