//! What the cache had rather not keep is passed on: by one request, shared where it is asked for at once.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pierhead_cache::Eviction;
use pierhead_eviction::{Access, Admission, Lru, PersistentState, StateError};
use pierhead_oci::Digest;
use pierhead_testkit::http::{End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::registry::{Fault, Gate};
use stage::{Plan, Stage, blob_path, eventually, from, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Lets in what is asked for the second time.
#[derive(Default)]
struct Second(HashSet<Digest>);

impl Admission<Digest> for Second {
    fn admit(&mut self, access: &Access<Digest>) -> bool {
        !self.0.insert(access.key)
    }
}

impl PersistentState for Second {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}

/// Lets in nothing, however many ask for it.
struct Closed;

impl Admission<Digest> for Closed {
    fn admit(&mut self, _: &Access<Digest>) -> bool {
        false
    }
}

impl PersistentState for Closed {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}

async fn open() -> Stage {
    behind(Second::default(), Stage::open().await).await
}

async fn open_closed() -> Stage {
    behind(Closed, Stage::open().await).await
}

/// Each client has one fetch at a time, and nothing is let in.
async fn open_by_turns() -> Stage {
    let plan = Plan::default().config(|config| {
        config.limits.downloads_per_client = 1;
        config.response_timeout = Duration::from_secs(60);
    });
    behind(Closed, plan.open().await).await
}

async fn behind(admission: impl Admission<Digest> + 'static, stage: Stage) -> Stage {
    let eviction = Eviction {
        admission_name: "of the test".into(),
        admission: Some(Box::new(admission)),
        ..Eviction::from(Box::new(Lru::default()))
    };
    stage.cache.set_eviction(eviction).await;
    stage
}

#[track_caller]
fn right(got: &Response, bytes: &[u8]) {
    assert_eq!((got.status, &got.end), (200, &End::Clean));
    assert!(got.body == bytes);
}

#[tokio::test]
async fn what_is_not_let_in_costs_one_request_and_is_whole() {
    let stage = open().await;
    let bytes = random_bytes(1, 3 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    right(&stage.get(&blob_path(&digest)).await, &bytes);
    assert_eq!(stage.upstream.gets_of(&digest), 1);
    assert!(!stage.cache.contains(&digest));
    assert_eq!(
        (stage.cache.stat().reserved, stage.cache.eviction().refused),
        (0, 1)
    );
    right(&stage.get(&blob_path(&digest)).await, &bytes);
    stage.committed(&digest).await;
    right(&stage.get(&blob_path(&digest)).await, &bytes);
    assert_eq!(stage.upstream.gets_of(&digest), 2);
}

#[tokio::test]
async fn a_part_of_what_is_not_let_in_is_right_and_costs_one_request() {
    let stage = open_by_turns().await;
    let bytes = random_bytes(2, 3 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let request = Request::get(blob_path(&digest)).header("range", "bytes=1000000-2000000");
    let got = stage.ask(request).await;
    assert_eq!(got.status, 206);
    assert!(got.body == bytes[1_000_000..=2_000_000]);
    assert_eq!(stage.upstream.gets_of(&digest), 1);
}

/// It is asked for by a second request: what is before it would be more than what is wanted.
#[tokio::test]
async fn a_late_part_of_what_is_not_let_in_does_not_wait_for_its_own_turn() {
    let stage = open_by_turns().await;
    let bytes = random_bytes(6, 10 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let request = Request::get(blob_path(&digest)).header("range", "bytes=9000000-9999999");
    let got = stage.ask(request).await;
    assert_eq!(got.status, 206);
    assert!(got.body == bytes[9_000_000..=9_999_999]);
    assert_eq!(stage.upstream.gets_of(&digest), 2);
}

#[tokio::test]
async fn those_who_ask_at_once_are_two_requests_and_share_one_fetch() {
    let stage = open().await;
    let bytes = random_bytes(3, 3 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_blob(&digest));
    let path = blob_path(&digest);
    let open = async {
        // Both are there before the upstream says how long it is.
        eventually(async || joins(&stage) == 1).await;
        gate.release();
    };
    let (one, other, ()) = tokio::join!(stage.get(&path), stage.get(&path), open);
    right(&one, &bytes);
    right(&other, &bytes);
    stage.committed(&digest).await;
    assert_eq!(stage.upstream.gets_of(&digest), 1);
}

fn joins(stage: &Stage) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    stage.cache.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("coalesced_total "));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn small_ones_and_what_somebody_warms_are_kept() {
    let stage = open().await;
    let image = Image::random(4, &[60_000, 500_000]);
    stage.upstream.push("app", "1", &image);
    stage.pull(&image).await;
    let large = image
        .blobs
        .iter()
        .find(|blob| blob.bytes.len() == 500_000)
        .unwrap();
    assert!(!stage.cache.contains(&large.digest));
    for blob in &image.blobs {
        if blob.digest != large.digest {
            stage.committed(&blob.digest).await;
        }
    }
    let other = Image::random(5, &[700_000]);
    stage.upstream.push("app", "2", &other);
    let reference = stage.reference(":2");
    stage.proxy.warm(&reference, &[], |_| ()).await.unwrap();
    for blob in &other.blobs {
        assert!(stage.cache.contains(&blob.digest));
    }
}

async fn send(mut stream: TcpStream, digest: &Digest) -> TcpStream {
    let path = blob_path(digest);
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    answer
}

/// What began for one may use the turn of another, and then is passed on to nobody.
#[tokio::test]
async fn a_slow_reader_does_not_read_in_the_turn_of_another_client() {
    let stage = open_by_turns().await;
    let gate = Gate::new();
    let first = stage.upstream.put_blob("app", random_bytes(7, 300_000));
    let held = Fault::GateBody(200_000, gate.clone());
    stage.upstream.inject(held.on_blob(&first));
    let bytes = random_bytes(8, 16 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let busy = send(from(&stage, 2).await, &first).await;
    gate.reached(1).await;
    eventually(async || stage.cache.stat().fills == 0).await;
    // It waits for its only turn, and does not read.
    let slow = send(from(&stage, 2).await, &digest).await;
    eventually(async || stage.cache.stat().fills == 1).await;
    let other = rest(send(from(&stage, 3).await, &digest).await).await;
    assert!(other.ends_with(&bytes), "{} bytes", other.len());
    gate.release();
    drop(busy);
    assert!(rest(slow).await.ends_with(&bytes));
}

#[tokio::test]
async fn what_is_warmed_while_a_client_pulls_it_is_kept_too() {
    let stage = open_closed().await;
    let image = Image::random(9, &[700_000]);
    stage.upstream.push("app", "1", &image);
    let layer = image.blobs.iter().find(|it| it.bytes.len() == 700_000);
    let digest = layer.unwrap().digest;
    let gate = Gate::new();
    let held = Fault::GateHead(gate.clone());
    stage.upstream.inject(held.on_blob(&digest));
    let (path, reference) = (blob_path(&digest), stage.reference(":1"));
    let open = async {
        gate.reached(1).await;
        eventually(async || joins(&stage) == 1).await;
        gate.release();
    };
    let warm = async {
        gate.reached(1).await;
        stage.proxy.warm(&reference, &[], |_| ()).await
    };
    let (pulled, warmed, ()) = tokio::join!(stage.get(&path), warm, open);
    warmed.unwrap();
    assert_eq!((pulled.status, pulled.end), (200, End::Clean));
    assert!(stage.cache.contains(&digest));
}

/// The first fill ends with what was left wrong before it, the second one is as wanted as that.
#[tokio::test]
async fn what_is_warmed_anew_after_wrong_leftovers_is_kept_too() {
    let stage = open_closed().await;
    let image = Image::random(10, &[700_000]);
    stage.upstream.push("app", "1", &image);
    let layer = image.blobs.iter().find(|it| it.bytes.len() == 700_000);
    let digest = layer.unwrap().digest;
    let gate = Gate::new();
    for fault in [Fault::Corrupt(5), Fault::GateBody(400_000, gate)] {
        stage.upstream.inject(fault.on_blob(&digest).times(1));
    }
    let arrived = Arc::new(AtomicU64::new(0));
    let cut = tokio::spawn({
        let (proxy, reference) = (stage.proxy.clone(), stage.reference(":1"));
        let arrived = arrived.clone();
        async move {
            let report = |progress: pierhead_proxy::Progress| {
                arrived.store(progress.bytes_done, Ordering::Relaxed);
            };
            proxy.warm(&reference, &[], report).await
        }
    });
    eventually(async || arrived.load(Ordering::Relaxed) >= 400_000).await;
    cut.abort();
    eventually(async || stage.cache.stat().fills == 0).await;
    let reference = stage.reference(":1");
    stage.proxy.warm(&reference, &[], |_| ()).await.unwrap();
    assert!(stage.cache.contains(&digest));
    let resumed = stage
        .upstream
        .count(|request| request.header("range").is_some());
    assert_eq!(resumed, 1);
}
