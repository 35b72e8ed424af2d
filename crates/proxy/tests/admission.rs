//! Tests of blobs that the cache's admission policy does not admit: pierhead streams them to
//! clients without storing them, by one upstream request. Small blobs and warmed images are stored
//! in any case.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Fixture, FixtureOptions, blob_path, connect_from, eventually, in_time};
use pierhead_cache::Eviction;
use pierhead_eviction::{Access, Admission, Lru, PersistentState, StateError};
use pierhead_oci::Digest;
use pierhead_testkit::http::{End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::registry::{Fault, Gate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An admission policy that admits a blob at the second request for it.
#[derive(Default)]
struct AdmitSecond(HashSet<Digest>);

impl Admission<Digest> for AdmitSecond {
    fn admit(&mut self, access: &Access<Digest>) -> bool {
        !self.0.insert(access.key)
    }
}

impl PersistentState for AdmitSecond {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}

/// An admission policy that admits no blob.
struct AdmitNone;

impl Admission<Digest> for AdmitNone {
    fn admit(&mut self, _: &Access<Digest>) -> bool {
        false
    }
}

impl PersistentState for AdmitNone {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}

async fn start_admitting_second() -> Fixture {
    with_admission(AdmitSecond::default(), Fixture::start().await).await
}

async fn start_admitting_none() -> Fixture {
    with_admission(AdmitNone, Fixture::start().await).await
}

/// Starts a proxy that allows each client one download and admits no blob.
async fn start_with_one_download() -> Fixture {
    let options = FixtureOptions::default().config(|config| {
        config.limits.downloads_per_client = 1;
        config.response_timeout = Duration::from_secs(60);
    });
    with_admission(AdmitNone, options.start().await).await
}

async fn with_admission(admission: impl Admission<Digest> + 'static, fixture: Fixture) -> Fixture {
    let eviction = Eviction {
        admission_name: "of the test".into(),
        admission: Some(Box::new(admission)),
        ..Eviction::from(Box::new(Lru::default()))
    };
    fixture.cache.set_eviction(eviction).await;
    fixture
}

#[track_caller]
fn assert_complete(got: &Response, bytes: &[u8]) {
    assert_eq!((got.status, &got.end), (200, &End::Clean));
    assert!(got.body == bytes);
}

#[tokio::test]
async fn a_blob_that_is_not_admitted_arrives_whole_with_one_upstream_request() {
    let fixture = start_admitting_second().await;
    let bytes = random_bytes(1, 3 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    assert_complete(&fixture.get(&blob_path(&digest)).await, &bytes);
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
    assert!(!fixture.cache.contains(&digest));
    assert_eq!(
        (
            fixture.cache.stat().reserved,
            fixture.cache.eviction().refused
        ),
        (0, 1)
    );
    assert_complete(&fixture.get(&blob_path(&digest)).await, &bytes);
    fixture.wait_until_stored(&digest).await;
    assert_complete(&fixture.get(&blob_path(&digest)).await, &bytes);
    assert_eq!(fixture.upstream.gets_of(&digest), 2);
}

#[tokio::test]
async fn a_range_of_a_blob_that_is_not_admitted_needs_one_upstream_request() {
    let fixture = start_with_one_download().await;
    let bytes = random_bytes(2, 3 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let request = Request::get(blob_path(&digest)).header("range", "bytes=1000000-2000000");
    let got = fixture.send(request).await;
    assert_eq!(got.status, 206);
    assert!(got.body == bytes[1_000_000..=2_000_000]);
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
}

/// A range with a large offset needs a second upstream request, because there are more bytes before
/// the range than in it.
#[tokio::test]
async fn a_late_range_of_a_blob_that_is_not_admitted_keeps_its_download_slot() {
    let fixture = start_with_one_download().await;
    let bytes = random_bytes(6, 10 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let request = Request::get(blob_path(&digest)).header("range", "bytes=9000000-9999999");
    let got = fixture.send(request).await;
    assert_eq!(got.status, 206);
    assert!(got.body == bytes[9_000_000..=9_999_999]);
    assert_eq!(fixture.upstream.gets_of(&digest), 2);
}

#[tokio::test]
async fn two_concurrent_requests_count_for_admission_and_share_one_download() {
    let fixture = start_admitting_second().await;
    let bytes = random_bytes(3, 3 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_blob(&digest));
    let path = blob_path(&digest);
    let open = async {
        // Both requests wait for the fill before the upstream sends the length of the blob.
        eventually(async || coalesced(&fixture) == 1).await;
        gate.release();
    };
    let (one, other, ()) = tokio::join!(fixture.get(&path), fixture.get(&path), open);
    assert_complete(&one, &bytes);
    assert_complete(&other, &bytes);
    fixture.wait_until_stored(&digest).await;
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
}

fn coalesced(fixture: &Fixture) -> u64 {
    let text = pierhead_testkit::metrics::metrics_text(|registry| fixture.cache.register(registry));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("coalesced_total "));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn small_blobs_and_warmed_images_are_stored() {
    let fixture = start_admitting_second().await;
    let image = Image::random(4, &[60_000, 500_000]);
    fixture.upstream.push("app", "1", &image);
    fixture.pull(&image).await;
    let large = image
        .blobs
        .iter()
        .find(|blob| blob.bytes.len() == 500_000)
        .unwrap();
    assert!(!fixture.cache.contains(&large.digest));
    for blob in &image.blobs {
        if blob.digest != large.digest {
            fixture.wait_until_stored(&blob.digest).await;
        }
    }
    let other = Image::random(5, &[700_000]);
    fixture.upstream.push("app", "2", &other);
    let reference = fixture.reference(":2");
    fixture.proxy.warm(&reference, &[], |_| ()).await.unwrap();
    for blob in &other.blobs {
        assert!(fixture.cache.contains(&blob.digest));
    }
}

/// Requests the blob from 127.0.0.`last`. The response is not read.
async fn send(fixture: &Fixture, last: u8, digest: &Digest) -> TcpStream {
    let mut stream = connect_from(fixture, last).await;
    let path = blob_path(digest);
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut response = Vec::new();
    in_time(stream.read_to_end(&mut response)).await.unwrap();
    response
}

/// The download of one client may use the slot of another client. In that case, the upstream stream
/// of the download is not handed over to the first client.
#[tokio::test]
async fn a_slow_reader_does_not_occupy_the_download_slot_of_another_client() {
    let fixture = start_with_one_download().await;
    let gate = Gate::new();
    let first = fixture.upstream.put_blob("app", random_bytes(7, 300_000));
    let held = Fault::GateBody(200_000, gate.clone());
    fixture.upstream.inject(held.on_blob(&first));
    let bytes = random_bytes(8, 16 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let busy = send(&fixture, 2, &first).await;
    gate.reached(1).await;
    eventually(async || fixture.cache.stat().fills == 0).await;
    // This client has only one download slot, waits for it, and does not read its response.
    let slow = send(&fixture, 2, &digest).await;
    eventually(async || fixture.cache.stat().fills == 1).await;
    let other = rest(send(&fixture, 3, &digest).await).await;
    assert!(other.ends_with(&bytes), "{} bytes", other.len());
    gate.release();
    drop(busy);
    assert!(rest(slow).await.ends_with(&bytes));
}

#[tokio::test]
async fn an_image_that_is_warmed_during_a_pull_is_stored() {
    let fixture = start_admitting_none().await;
    let image = Image::random(9, &[700_000]);
    fixture.upstream.push("app", "1", &image);
    let layer = image.blobs.iter().find(|it| it.bytes.len() == 700_000);
    let digest = layer.unwrap().digest;
    let gate = Gate::new();
    let held = Fault::GateHead(gate.clone());
    fixture.upstream.inject(held.on_blob(&digest));
    let (path, reference) = (blob_path(&digest), fixture.reference(":1"));
    let open = async {
        gate.reached(1).await;
        eventually(async || coalesced(&fixture) == 1).await;
        gate.release();
    };
    let warm = async {
        gate.reached(1).await;
        fixture.proxy.warm(&reference, &[], |_| ()).await
    };
    let (pulled, warmed, ()) = tokio::join!(fixture.get(&path), warm, open);
    warmed.unwrap();
    assert_eq!((pulled.status, pulled.end), (200, End::Clean));
    assert!(fixture.cache.contains(&digest));
}

/// The first fill fails because of corrupt staged bytes. The second fill must be admitted, too.
#[tokio::test]
async fn an_image_that_is_warmed_after_corrupt_staged_bytes_is_stored() {
    let fixture = start_admitting_none().await;
    let image = Image::random(10, &[700_000]);
    fixture.upstream.push("app", "1", &image);
    let layer = image.blobs.iter().find(|it| it.bytes.len() == 700_000);
    let digest = layer.unwrap().digest;
    let gate = Gate::new();
    for fault in [Fault::Corrupt(5), Fault::GateBody(400_000, gate)] {
        fixture.upstream.inject(fault.on_blob(&digest).times(1));
    }
    let arrived = Arc::new(AtomicU64::new(0));
    let aborted = tokio::spawn({
        let (proxy, reference) = (fixture.proxy.clone(), fixture.reference(":1"));
        let arrived = arrived.clone();
        async move {
            let report = |progress: pierhead_proxy::Progress| {
                arrived.store(progress.bytes_done, Ordering::Relaxed);
            };
            proxy.warm(&reference, &[], report).await
        }
    });
    eventually(async || arrived.load(Ordering::Relaxed) >= 400_000).await;
    aborted.abort();
    eventually(async || fixture.cache.stat().fills == 0).await;
    let reference = fixture.reference(":1");
    fixture.proxy.warm(&reference, &[], |_| ()).await.unwrap();
    assert!(fixture.cache.contains(&digest));
    let resumed = fixture
        .upstream
        .count(|request| request.header("range").is_some());
    assert_eq!(resumed, 1);
}
