//! What the cache had rather not keep is passed on: by one request, shared where it is asked for at once.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::collections::HashSet;

use pierhead_cache::Eviction;
use pierhead_eviction::{Access, Admission, Lru, StateError};
use pierhead_oci::Digest;
use pierhead_testkit::http::{End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::registry::{Fault, Gate};
use stage::{Stage, blob_path, eventually};

/// Lets in what is asked for the second time.
#[derive(Default)]
struct Second(HashSet<Digest>);

impl Admission<Digest> for Second {
    fn admit(&mut self, access: &Access<Digest>) -> bool {
        !self.0.insert(access.key)
    }
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), StateError> {
        Ok(())
    }
}

async fn open() -> Stage {
    let stage = Stage::open().await;
    let eviction = Eviction {
        admission_name: "second".into(),
        admission: Some(Box::new(Second::default())),
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
async fn a_part_of_what_is_not_let_in_is_right_too() {
    let stage = open().await;
    let bytes = random_bytes(2, 3 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let request = Request::get(blob_path(&digest)).header("range", "bytes=1000000-2000000");
    let got = stage.ask(request).await;
    assert_eq!(got.status, 206);
    assert!(got.body == bytes[1_000_000..=2_000_000]);
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
        .find_map(|line| line.strip_prefix("joins_total "));
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
