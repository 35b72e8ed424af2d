//! End-to-end tests of the blobs on the fast tier: after a shutdown, and after a crash during a
//! download or a write-back to the disk.

use std::{path::Path, thread};

use anyhow::{Result, ensure};
use pierhead_testkit::{
    images::Image,
    registry::{Background, FakeRegistry, Fault, Gate},
};
use pierhead_tests::{pierhead::Pierhead, wait};

use super::{
    NO_WRITE_BACK, diagnosis, disk_folder, image, memory_folder, number, stat, wait_for_write_back,
    with_tier,
};
use crate::requests::{committed, get, pull, start_in_front};

fn start(folder: &Path, more: &str) -> Result<(Background, Pierhead, Image)> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), with_tier(folder, more))?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    Ok((hub, pierhead, image))
}

/// Number of requests to the upstream for each layer.
fn fetched(hub: &Background, image: &Image) -> Vec<usize> {
    let layers = &image.blobs[1..];
    layers.iter().map(|it| hub.gets_of(&it.digest)).collect()
}

#[test]
fn a_volatile_tier_is_written_back_at_shutdown() -> Result<()> {
    let folder = memory_folder()?;
    let (hub, mut pierhead, image) = start(folder.path(), NO_WRITE_BACK)?;
    pull(&pierhead, "library/app", &image)?;
    let before = stat(&pierhead)?;
    assert_eq!(before["class"], "volatile");
    // The placement treats the config as a layer above all layers, so the config is on the tier,
    // too.
    assert_eq!(number(&before, "queue")?, 3, "{before}");
    assert_eq!(
        diagnosis(&pierhead)?,
        ("ok".into(), "in use, volatile".into())
    );
    let metrics = String::from_utf8(get(pierhead.admin(), "/metrics")?.body.into())?;
    ensure!(metrics.contains("pierhead_cache_tier_info{class=\"volatile\"} 1"));
    // The pull finds all blobs in the cache.
    pull(&pierhead, "library/app", &image)?;
    ensure!(number(&stat(&pierhead)?, "hits")? >= 2);
    pierhead.stop()?;
    assert_eq!(committed(pierhead.data())?, image.digests().count());
    pierhead.restart()?;
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(fetched(&hub, &image), [1, 1, 1]);
    ensure!(!pierhead.log().contains("were not written back in time"));
    Ok(())
}

#[test]
fn a_crash_loses_only_unwritten_blobs_of_a_volatile_tier() -> Result<()> {
    let folder = memory_folder()?;
    let (hub, mut pierhead, image) = start(folder.path(), NO_WRITE_BACK)?;
    pull(&pierhead, "library/app", &image)?;
    pierhead.kill()?;
    pierhead.restart()?;
    assert_eq!(number(&stat(&pierhead)?, "blobs")?, 0);
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(fetched(&hub, &image), [1, 2, 2]);
    Ok(())
}

#[test]
fn a_crash_loses_no_blob_of_a_persistent_tier() -> Result<()> {
    let folder = disk_folder()?;
    let (hub, mut pierhead, image) = start(folder.path(), NO_WRITE_BACK)?;
    pull(&pierhead, "library/app", &image)?;
    let before = stat(&pierhead)?;
    if before["class"] != "emulated-file" {
        println!("skipped: {} is no disk", folder.path().display());
        return Ok(());
    }
    pierhead.kill()?;
    pierhead.restart()?;
    let after = stat(&pierhead)?;
    for key in ["blobs", "queue", "dirty", "used"] {
        assert_eq!(number(&before, key)?, number(&after, key)?, "{key}");
    }
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(fetched(&hub, &image), [1, 1, 1]);
    ensure!(number(&stat(&pierhead)?, "hits")? >= 2);
    Ok(())
}

/// pierhead is killed when half of the large layer is on the tier.
#[test]
fn a_kill_during_a_fill_keeps_the_tier_usable() -> Result<()> {
    for folder in [memory_folder()?, disk_folder()?] {
        let (hub, mut pierhead, image) = start(folder.path(), "")?;
        let large = &image.blobs[2];
        let gate = Gate::new();
        let rule = hub.inject(Fault::GateBody(450_000, gate.clone()).on_blob(&large.digest));
        get(pierhead.address(), "/v2/library/app/manifests/1")?;
        let (address, path) = (
            pierhead.address(),
            format!("/v2/library/app/blobs/{}", large.digest),
        );
        let client = thread::spawn(move || get(address, &path));
        wait::try_until("half a layer on the tier", || {
            Ok((number(&stat(&pierhead)?, "staged")? >= 390_000).then_some(()))
        })?;
        pierhead.kill()?;
        let response = client.join();
        ensure!(
            !matches!(response, Ok(Ok(response)) if response.status == 200 && response.body.len() == 900_000),
            "a partial layer in a complete response"
        );
        rule.remove();
        gate.release();
        pierhead.restart()?;
        ensure!(
            number(&stat(&pierhead)?, "used")? < 100_000,
            "the partial layer is removed"
        );
        pull(&pierhead, "library/app", &image)?;
        wait_for_write_back(&pierhead)?;
        pierhead.stop()?;
        committed(pierhead.data())?;
    }
    Ok(())
}

/// pierhead is killed when a part of the large layer is written back to the disk.
#[test]
fn a_kill_during_write_back_loses_no_blob() -> Result<()> {
    for folder in [memory_folder()?, disk_folder()?] {
        let slow = "write_back_rate = \"4KiB/s\"";
        let (hub, pierhead) =
            start_in_front(FakeRegistry::builder(), with_tier(folder.path(), slow))?;
        let mut pierhead = pierhead;
        let image = Image::random(1, &[100_000, 3_000_000]);
        hub.push("library/app", "1", &image);
        pull(&pierhead, "library/app", &image)?;
        // pierhead writes small blobs back first.
        wait::try_until("the first bytes of the large layer on the disk", || {
            Ok((number(&stat(&pierhead)?, "written_back")? > 200_000).then_some(()))
        })?;
        let before = stat(&pierhead)?;
        assert_eq!(number(&before, "queue")?, 1, "{before}");
        pierhead.kill()?;
        let whole = committed(pierhead.data())?;
        assert_eq!(
            whole,
            image.digests().count() - 1,
            "a partial layer is on the disk"
        );
        pierhead.restart()?;
        pull(&pierhead, "library/app", &image)?;
        let lasts = stat(&pierhead)?["class"] != "volatile";
        let layer = &image.blobs[2].digest;
        assert_eq!(hub.gets_of(layer), if lasts { 1 } else { 2 });
        // Either the shutdown writes the blob back, or the next start finds it on the tier.
        pierhead.stop()?;
        let there = committed(pierhead.data())?;
        assert_eq!(there, image.digests().count() - usize::from(lasts));
    }
    Ok(())
}
