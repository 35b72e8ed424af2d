//! Tests of the placement with a fast tier: which tier each layer of a pulled image goes to, also
//! after a restart, and the statistics of the fast tier.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::{AMPLE_CAPACITY, blob, lead, open_with, read_all, store};
use pierhead_cache::Placement;
use pierhead_cache::tier::{DiskTier, Options, Tier};
use pierhead_cache::{BlobReader, Cache, Config, FastTier};
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_testkit::metrics::metrics_text;
use pierhead_testkit::tier::MemoryTier;
use pierhead_testkit::wait;

const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";

fn open(folder: &Path, fast: &MemoryTier, placement: Placement) -> Cache {
    let mut config = Config::new(folder, AMPLE_CAPACITY);
    config.fast = Some(FastTier {
        tier: Arc::new(fast.clone()),
        options: Options::new(8 << 20),
        placement,
        class: "volatile",
        capacity: 16 << 20,
    });
    open_with(config)
}

struct Image {
    manifest: (Digest, Bytes),
    layers: Vec<(Digest, Bytes)>,
}

/// Returns an image with layers of these sizes, lowest layer first.
fn image(lengths: &[usize]) -> Image {
    let layers: Vec<_> = (1_u64..)
        .zip(lengths)
        .map(|(seed, len)| blob(seed, *len))
        .collect();
    let steps = [
        "ADD file:1 in /",
        "RUN apt-get install netbase",
        "RUN pip install flask",
    ];
    let history: Vec<_> = steps
        .iter()
        .map(|step| serde_json::json!({ "created_by": step }))
        .collect();
    let config = serde_json::json!({
        "history": history,
        "config": { "Cmd": ["flask", "run"], "Env": null },
    });
    let config = Bytes::from(config.to_string());
    let part = |media_type: &str, digest: &Digest, size: usize| serde_json::json!({ "mediaType": media_type, "digest": digest.to_string(), "size": size });
    let of = |content: &Bytes| Digest::of(Algorithm::Sha256, content);
    let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
    let all: Vec<_> = layers
        .iter()
        .map(|(digest, content)| part(layer, digest, content.len()))
        .collect();
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "config": part("application/vnd.oci.image.config.v1+json", &of(&config), config.len()),
        "layers": all,
    });
    let manifest = Bytes::from(manifest.to_string());
    Image {
        manifest: (of(&manifest), manifest),
        layers,
    }
}

async fn put_manifest(cache: &Cache, image: &Image) {
    let (digest, content) = &image.manifest;
    let media_type = MediaType::new(IMAGE).unwrap();
    cache
        .put(digest, &media_type, content.clone())
        .await
        .unwrap();
}

fn on(tier: &dyn Tier, image: &Image) -> Vec<bool> {
    let there = |(digest, _): &(Digest, Bytes)| tier.open(digest).unwrap().is_some();
    image.layers.iter().map(there).collect()
}

#[tokio::test]
async fn the_last_layer_and_those_above_go_to_the_fast_tier() {
    let (folder, fast) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let cache = open(folder.path(), &fast, Placement::LayerAware);
    let image = image(&[10_000, 400_000, 20_000]);
    put_manifest(&cache, &image).await;
    for (digest, content) in &image.layers {
        store(&cache, digest, content).await;
    }
    assert_eq!(on(&fast, &image), [false, true, true]);
    for (digest, content) in &image.layers {
        let object = cache.get(digest).await.unwrap().unwrap();
        assert_eq!(
            read_all(&BlobReader::Stored(object)).await.unwrap(),
            content
        );
    }
    // Layers of an unknown image go to the disk.
    let (digest, content) = blob(77, 100_000);
    store(&cache, &digest, &content).await;
    assert!(fast.open(&digest).unwrap().is_none());
    cache.close().await;
}

#[tokio::test]
async fn the_progress_of_fills_changes_the_expected_last_layer() {
    let (folder, fast) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let cache = open(folder.path(), &fast, Placement::LayerAware);
    let image = image(&[200_000, 400_000, 20_000]);
    put_manifest(&cache, &image).await;
    // Nearly all of the large layer has arrived before the fill of the lowest layer starts.
    let (digest, content) = &image.layers[1];
    let (mut fill, tail) = lead(&cache, digest).await;
    fill.begin(Some(400_000)).await.unwrap();
    fill.write(content.slice(..390_000)).await.unwrap();
    while tail.read_at(320_000, 1).await.unwrap().is_empty() {}
    store(&cache, &image.layers[0].0, &image.layers[0].1).await;
    fill.write(content.slice(390_000..)).await.unwrap();
    fill.finish().await.unwrap();
    store(&cache, &image.layers[2].0, &image.layers[2].1).await;
    assert_eq!(on(&fast, &image), [true, true, true]);
    cache.close().await;
}

#[tokio::test]
async fn a_restart_finds_all_blobs_and_the_tier_is_counted_once() {
    let (folder, fast) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let image = image(&[10_000, 400_000, 20_000]);
    let before = {
        let cache = open(folder.path(), &fast, Placement::LayerAware);
        put_manifest(&cache, &image).await;
        for (digest, content) in &image.layers {
            store(&cache, digest, content).await;
        }
        let before = cache.stat();
        cache.close().await;
        before
    };
    let cache = open(folder.path(), &fast, Placement::LayerAware);
    assert_eq!(cache.stat().used, before.used, "each is counted once");
    for (digest, content) in &image.layers {
        let object = cache.get(digest).await.unwrap().unwrap();
        assert_eq!(
            read_all(&BlobReader::Stored(object)).await.unwrap(),
            content
        );
    }
    let stat = cache.tier().unwrap();
    assert_eq!(
        (stat.class, stat.capacity, stat.fast.blobs),
        // The manifest and two layers are on the fast tier.
        ("volatile", 16 << 20, 3)
    );
    assert!(stat.fast.used >= 420_000);
    let text = metrics_text(|registry| cache.register(registry));
    for line in [
        "tier_info{class=\"volatile\"} 1",
        "tier_capacity_bytes 16777216",
        "tier_limit_bytes 8388608",
        "tier_blobs 3",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(text.contains("tier_hits_total{on=\"fast\"} 2"), "{text}");
    assert!(cache.set_tier_limit(0).await);
    // Dirty blobs are evicted after their write-back.
    wait::until_async("an empty tier", || cache.tier().unwrap().fast.blobs == 0).await;
    assert_eq!(on(&fast, &image), [false; 3]);
    assert_eq!(
        on(&DiskTier::new(folder.path()).unwrap(), &image),
        [true; 3]
    );
    cache.close().await;
}

#[tokio::test]
async fn without_a_fast_tier_there_are_no_tier_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let cache = common::open(folder.path());
    assert!(cache.tier().is_none() && !cache.set_tier_limit(1).await);
    let text = metrics_text(|registry| cache.register(registry));
    assert!(!text.contains("tier_"), "{text}");
}
