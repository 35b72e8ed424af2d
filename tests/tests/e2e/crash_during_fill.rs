//! Kills pierhead by SIGKILL while it downloads blobs into the cache (fills). Checks that the
//! downloads resume and cached blobs stay correct.

use std::thread;

use anyhow::Result;
use pierhead_testkit::{
    http::End,
    images::{Image, random_bytes},
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{pierhead::Options, wait};

use crate::requests::{bytes_below, get, pull, start_in_front, wait_for_commit};

const SIZE: usize = 8 << 20;
/// Offset at which the upstream pauses until the test releases it.
const HALF: u64 = 4 << 20;

/// After a kill during a fill, pierhead uses the staged bytes again, and never serves them as a
/// complete blob.
#[test]
fn a_killed_fill_is_resumed() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, SIZE);
    let digest = hub.put_blob("library/app", bytes.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    let gate = Gate::new();
    let injected = hub.inject(Fault::GateBody(HALF, gate.clone()).on_blob(&digest));
    thread::scope(|scope| -> Result<()> {
        let (address, path) = (pierhead.address(), &path);
        let client = scope.spawn(move || get(address, path));
        hub.wait(async |_| gate.reached(1).await);
        // pierhead writes received bytes to disk within a short time.
        wait::try_until("staged bytes", || {
            Ok(
                (bytes_below(&pierhead.data().join("staging"))? >= HALF - (256 << 10))
                    .then_some(()),
            )
        })?;
        pierhead.kill()?;
        let response = client.join().expect("no panic");
        assert!(
            response.is_err() || response.is_ok_and(|it| it.end == End::Cut),
            "a body is complete despite the crash"
        );
        Ok(())
    })?;
    gate.release();
    injected.remove();
    hub.clear_requests();

    pierhead.restart()?;
    assert!(
        !pierhead.blob(&digest.to_string()).exists(),
        "a partial blob was committed"
    );
    let response = get(pierhead.address(), &path)?;
    assert_eq!((response.status, response.end), (200, End::Clean));
    assert_eq!(response.body, bytes);
    let requests: Vec<_> = hub
        .requests()
        .into_iter()
        .filter(|it| it.path.contains("/blobs/"))
        .collect();
    assert_eq!(requests.len(), 1, "{requests:#?}");
    let range = requests[0].header("range").unwrap_or_default();
    let from: u64 = range
        .trim_start_matches("bytes=")
        .trim_end_matches('-')
        .parse()
        .unwrap_or(0);
    assert!(
        from > 0,
        "the fill restarted from the beginning: {requests:#?}"
    );
    Ok(())
}

/// After each of many kills during pulls, pierhead starts and serves correct bytes. At the end,
/// pulls need no upstream.
#[test]
fn repeated_kills_lose_no_committed_blob() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let image = Image::random(7, &[300_000, 2_000_000, 70_000]);
    hub.push("library/app", "1", &image);
    for round in 0..image.blobs.len() {
        for blob in &image.blobs[..=round] {
            let gate = Gate::new();
            let injected = hub.inject(
                Fault::GateBody(blob.bytes.len() as u64 / 2, gate.clone()).on_blob(&blob.digest),
            );
            thread::scope(|scope| -> Result<()> {
                let address = pierhead.address();
                let path = format!("/v2/library/app/blobs/{}", blob.digest);
                let cached = pierhead.blob(&blob.digest.to_string()).exists();
                let client = scope.spawn(move || get(address, &path));
                if cached {
                    assert_eq!(client.join().expect("no panic")?.body, blob.bytes);
                } else {
                    hub.wait(async |_| gate.reached(1).await);
                    pierhead.kill()?;
                    let _ = client.join();
                }
                Ok(())
            })?;
            gate.release();
            injected.remove();
            pierhead.restart()?;
        }
        let blob = &image.blobs[round];
        let path = format!("/v2/library/app/blobs/{}", blob.digest);
        assert_eq!(get(pierhead.address(), &path)?.body, blob.bytes);
        wait_for_commit(&pierhead, &blob.digest.to_string())?;
    }
    pull(&pierhead, "library/app", &image)?;
    pierhead.kill()?;
    hub.stop();
    pierhead.restart()?;
    pull(&pierhead, "library/app", &image)
}
