//! Fills that an engine hashes: the same blobs, whatever becomes of the engine.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::sync::Arc;

use common::{ROOMY, blob, lead, open_with, store};
use pierhead_cache::{Config, Error};
use pierhead_engine::Offload;
use pierhead_testkit::engine::{End, Frail};

fn config(folder: &std::path::Path, frail: &Frail) -> Config {
    Config {
        offload: Offload::to(Arc::new(frail.clone())).unwrap(),
        ..Config::new(folder, ROOMY)
    }
}

#[tokio::test]
async fn an_engine_that_gives_up_costs_no_fill() {
    let folder = tempfile::tempdir().unwrap();
    let frail = Frail::new(i64::MAX, End::GivesUp);
    let cache = open_with(config(folder.path(), &frail));
    // At the first piece, at a later one, at the digest; one piece and many.
    for (seed, after) in [(1, 0), (2, 3), (3, 5), (4, 1000)] {
        let (digest, content) = blob(seed, 2_000_000);
        frail.allow(after);
        let (mut fill, _) = lead(&cache, &digest).await;
        fill.begin(Some(content.len() as u64)).await.unwrap();
        for piece in content.chunks(400_000) {
            fill.write(content.slice_ref(piece)).await.unwrap();
        }
        fill.finish().await.unwrap();
        assert!(cache.verify(&digest).await.unwrap() && cache.holds(&digest));
        assert_eq!(frail.is_over(), after < 6, "{after}");
    }
    // What is wrong is wrong still.
    frail.allow(1);
    let ((digest, _), (_, other)) = (blob(5, 1000), blob(6, 1000));
    let (mut fill, _) = lead(&cache, &digest).await;
    fill.begin(Some(1000)).await.unwrap();
    fill.write(other).await.unwrap();
    let refused = fill.finish().await.err();
    assert!(
        matches!(refused, Some(Error::WrongDigest { .. })),
        "{refused:?}"
    );
    cache.close().await;
}

#[tokio::test]
async fn what_an_earlier_fill_left_is_hashed_again_by_whoever_can() {
    let folder = tempfile::tempdir().unwrap();
    let frail = Frail::new(i64::MAX, End::GivesUp);
    let cache = open_with(config(folder.path(), &frail));
    let (digest, content) = blob(1, 3_000_000);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(content.len() as u64)).await.unwrap();
    fill.write(content.slice(..2_000_000)).await.unwrap();
    tail.read_at(1_500_000, 1).await.unwrap();
    fill.abandon("a test");
    assert!(tail.committed().await.is_err());
    frail.allow(1);
    let (mut fill, _) = lead(&cache, &digest).await;
    let left = usize::try_from(fill.offset()).unwrap();
    assert!(left > 0);
    fill.begin(Some(content.len() as u64)).await.unwrap();
    fill.write(content.slice(left..)).await.unwrap();
    fill.finish().await.unwrap();
    assert!(frail.is_over() && cache.verify(&digest).await.unwrap());
    cache.close().await;
}

#[tokio::test]
async fn an_engine_that_is_wrong_stores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let frail = Frail::new(i64::MAX, End::IsWrong);
    let cache = open_with(config(folder.path(), &frail));
    let (digest, content) = blob(1, 1000);
    store(&cache, &digest, &content).await;
    frail.allow(0);
    let (digest, content) = blob(2, 1000);
    let refused = common::try_store(&cache, &digest, &content).await;
    assert!(matches!(refused, Err(Error::WrongDigest { .. })));
    assert!(!cache.holds(&digest));
    cache.close().await;
}
