//! SIGKILL in the middle of fills, and what is left of them afterwards.

use std::thread;

use anyhow::Result;
use pierhead_testkit::{
    http::End,
    images::{Image, random_bytes},
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{pierhead::Options, wait};

use crate::ask::{behind, bytes_below, get, kept, pull};

const SIZE: usize = 8 << 20;
/// Where the upstream stops until it is told to go on.
const HALF: u64 = 4 << 20;

/// What a killed pierhead had of a blob is not lost, and never taken for the blob.
#[test]
fn a_killed_fill_is_resumed() -> Result<()> {
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, SIZE);
    let digest = hub.put_blob("library/app", bytes.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    let gate = Gate::new();
    let injected = hub.inject(Fault::GateBody(HALF, gate.clone()).on_blob(&digest));
    thread::scope(|scope| -> Result<()> {
        let (address, path) = (pierhead.address(), &path);
        let client = scope.spawn(move || get(address, path));
        hub.wait(async |_| gate.reached(1).await);
        // What the upstream has sent is on the disk soon after.
        wait::until("staged bytes", || {
            Ok(
                (bytes_below(&pierhead.data().join("staging"))? >= HALF - (256 << 10))
                    .then_some(()),
            )
        })?;
        pierhead.kill()?;
        let answer = client.join().expect("no panic");
        assert!(
            answer.is_err() || answer.is_ok_and(|it| it.end == End::Cut),
            "a body ended well in a crash"
        );
        Ok(())
    })?;
    gate.release();
    injected.remove();
    hub.clear_requests();

    pierhead.restart()?;
    assert!(
        !pierhead.blob(&digest.to_string()).exists(),
        "a part became the whole"
    );
    let answer = get(pierhead.address(), &path)?;
    assert_eq!((answer.status, answer.end), (200, End::Clean));
    assert_eq!(answer.body, bytes);
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
    assert!(from > 0, "the fill began anew: {requests:#?}");
    Ok(())
}

/// Killed over and over in the middle of pulls: it always starts, always gives the right bytes, and in
/// the end needs no upstream.
#[test]
fn killed_again_and_again() -> Result<()> {
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), Options::new())?;
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
        kept(&pierhead, &blob.digest.to_string())?;
    }
    pull(&pierhead, "library/app", &image)?;
    pierhead.kill()?;
    hub.stop();
    pierhead.restart()?;
    pull(&pierhead, "library/app", &image)
}
