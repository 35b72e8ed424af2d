//! End-to-end tests of concurrent clients: the upstream sends each blob once.

use std::thread;

use anyhow::Result;
use pierhead_testkit::{
    images::write_random,
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{
    clients::{Client, Crane, Skopeo},
    image::images,
    paths,
    pierhead::{Options, Pierhead},
    registry::{self, Registry},
    tool::or_skip,
};

use crate::requests::{get_at_once, start_in_front};

/// Runs `client` twenty times in parallel. The log of the registry must show one GET per blob.
fn pull_twenty_times(client: impl Fn(&Pierhead) -> Result<()> + Sync) -> Result<()> {
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
fn twenty_skopeos_cause_one_download_per_blob() -> Result<()> {
    if or_skip(Skopeo::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    pull_twenty_times(|pierhead| {
        let skopeo = Skopeo::with_path(pierhead.address(), "docker.io")?;
        let (root, _) = skopeo.copy(&image.name(), true, &["--src-tls-verify=false"])?;
        assert_eq!(root, image.root);
        Ok(())
    })
}

#[test]
fn twenty_cranes_cause_one_download_per_blob() -> Result<()> {
    if or_skip(Crane::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    pull_twenty_times(|pierhead| {
        let pulled = Crane::with_path(pierhead.address(), "docker.io")?.pull(&image.name())?;
        assert_eq!(pulled.root, image.root);
        Ok(())
    })
}

/// All clients get their first bytes while the upstream delays the rest. A single download from the
/// upstream serves all clients.
#[test]
fn twenty_clients_stream_from_one_fetch() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let digest = hub.put_blob("library/app", vec![7; 3 << 20]);
    let gate = Gate::new();
    hub.inject(Fault::GateBody(1 << 20, gate.clone()).on_blob(&digest));
    let path = format!("/v2/docker.io/library/app/blobs/{digest}");
    let got = get_at_once(pierhead.address(), &path, 20, || gate.release())?;
    assert_eq!(got, vec![digest.to_string(); 20]);
    assert_eq!(hub.gets_of(&digest), 1);
    Ok(())
}

/// Sixteen clients pull a large uncached blob over a slow uplink. The memory of pierhead stays
/// within its limit.
#[test]
fn sixteen_clients_of_a_cold_blob_take_limited_memory() -> Result<()> {
    const SIZE: u64 = 256 << 20;
    let folder = paths::scratch("blob")?;
    let file = folder.path().join("blob");
    let digest = write_random(&file, 16, SIZE)?;
    let hub = FakeRegistry::builder().with(|settings| settings.bandwidth = Some(100_000_000));
    let (hub, pierhead) = start_in_front(hub, Options::new())?;
    hub.put_blob_file("library/app", digest, &file);
    let path = format!("/v2/library/app/blobs/{digest}");
    let got = get_at_once(pierhead.address(), &path, 16, || ())?;
    assert_eq!(got, vec![digest.to_string(); 16]);
    assert_eq!(hub.gets_of(&digest), 1);
    let (_, peak) = pierhead.memory()?;
    // The limit is 32 MB for a release build. The code of a debug build is far larger.
    let bound = if paths::is_release()? { 32 } else { 64 };
    assert!(peak <= bound * 1_000_000, "{peak} bytes at the peak");
    Ok(())
}
