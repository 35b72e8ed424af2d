//! Many clients at once: each blob crosses the uplink once.

use std::thread;

use anyhow::Result;
use pierhead_testkit::{
    images::write_random,
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{
    clients::{Client, Crane, Skopeo},
    image::images,
    pierhead::{Options, Pierhead},
    place,
    registry::{self, Registry},
    tool::or_skip,
};

use crate::ask::{behind, get_at_once};

/// Twenty times `client` at once pulls an image; the registry's log must show one GET a blob.
fn twenty(client: impl Fn(&Pierhead) -> Result<()> + Sync) -> Result<()> {
    let image = images()?.small;
    let mut registry = Registry::start(&[&image])?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    thread::scope(|scope| -> Result<()> {
        let pulls: Vec<_> = (0..20).map(|_| scope.spawn(|| client(&pierhead))).collect();
        for pull in pulls {
            pull.join().expect("a client does not panic")?;
        }
        Ok(())
    })?;
    for (blob, count) in registry.blob_gets_of(&image.blobs())? {
        assert_eq!(count, 1, "{blob}");
    }
    Ok(())
}

#[test]
fn twenty_skopeos() -> Result<()> {
    if or_skip(Skopeo::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    twenty(|pierhead| {
        let skopeo = Skopeo::with_path(pierhead.address(), "docker.io")?;
        let (root, _) = skopeo.copy(&image.name(), true, &["--src-tls-verify=false"])?;
        assert_eq!(root, image.root);
        Ok(())
    })
}

#[test]
fn twenty_cranes() -> Result<()> {
    if or_skip(Crane::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    twenty(|pierhead| {
        let pulled = Crane::with_path(pierhead.address(), "docker.io")?.pull(&image.name())?;
        assert_eq!(pulled.root, image.root);
        Ok(())
    })
}

/// All of them have their first bytes while the upstream still holds the rest back, and the one fetch
/// is for all.
#[test]
fn twenty_tail_one_fetch() -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    let digest = hub.put_blob("library/app", vec![7; 3 << 20]);
    let gate = Gate::new();
    hub.inject(Fault::GateBody(1 << 20, gate.clone()).on_blob(&digest));
    let path = format!("/v2/docker.io/library/app/blobs/{digest}");
    let got = get_at_once(pierhead.address(), &path, 20, || gate.release())?;
    assert_eq!(got, vec![digest.to_string(); 20]);
    assert_eq!(hub.gets_of(&digest), 1);
    Ok(())
}

/// A large cold blob over a slow uplink, in bounded memory.
#[test]
fn sixteen_on_a_cold_blob() -> Result<()> {
    const SIZE: u64 = 256 << 20;
    let folder = place::scratch("blob")?;
    let file = folder.path().join("blob");
    let digest = write_random(&file, 16, SIZE)?;
    let hub = FakeRegistry::builder().with(|settings| settings.bandwidth = Some(100_000_000));
    let (hub, pierhead) = behind(hub, Options::new())?;
    hub.put_blob_file("library/app", digest, &file);
    let path = format!("/v2/library/app/blobs/{digest}");
    let got = get_at_once(pierhead.address(), &path, 16, || ())?;
    assert_eq!(got, vec![digest.to_string(); 16]);
    assert_eq!(hub.gets_of(&digest), 1);
    let (_, peak) = pierhead.memory()?;
    // What is promised is 32 MB, for the release profile: a debug build's own code is far larger.
    let bound = if place::is_release()? { 32 } else { 64 };
    assert!(peak <= bound * 1_000_000, "{peak} bytes at the peak");
    Ok(())
}
