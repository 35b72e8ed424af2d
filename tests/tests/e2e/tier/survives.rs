//! What is on the tier after an end in order, and after a crash in the middle.

use std::{path::Path, thread};

use anyhow::{Result, ensure};
use pierhead_testkit::{
    images::Image,
    registry::{Background, FakeRegistry, Fault, Gate},
};
use pierhead_tests::{pierhead::Pierhead, wait};

use super::{NEVER_DRAINED, diagnosis, drained, image, lasting, memory, number, stat, with_tier};
use crate::ask::{behind, committed, get, pull};

fn start(folder: &Path, more: &str) -> Result<(Background, Pierhead, Image)> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), with_tier(folder, more))?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    Ok((hub, pierhead, image))
}

/// How often the upstream was asked for each layer.
fn fetched(hub: &Background, image: &Image) -> Vec<usize> {
    let layers = &image.blobs[1..];
    layers.iter().map(|it| hub.gets_of(&it.digest)).collect()
}

#[test]
fn a_volatile_one_is_saved_at_the_end() -> Result<()> {
    let folder = memory()?;
    let (hub, mut pierhead, image) = start(folder.path(), NEVER_DRAINED)?;
    pull(&pierhead, "library/app", &image)?;
    let before = stat(&pierhead)?;
    assert_eq!(before["class"], "volatile");
    // The config is above all layers.
    assert_eq!(number(&before, "queue")?, 3, "{before}");
    assert_eq!(
        diagnosis(&pierhead)?,
        ("ok".into(), "in use, volatile".into())
    );
    let metrics = String::from_utf8(get(pierhead.admin(), "/metrics")?.body.into())?;
    ensure!(metrics.contains("pierhead_cache_tier_info{class=\"volatile\"} 1"));
    // Warm.
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
fn of_a_volatile_one_a_crash_leaves_what_the_disk_has() -> Result<()> {
    let folder = memory()?;
    let (hub, mut pierhead, image) = start(folder.path(), NEVER_DRAINED)?;
    pull(&pierhead, "library/app", &image)?;
    pierhead.kill()?;
    pierhead.restart()?;
    assert_eq!(number(&stat(&pierhead)?, "blobs")?, 0);
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(fetched(&hub, &image), [1, 2, 2]);
    Ok(())
}

#[test]
fn of_one_that_lasts_a_crash_leaves_all() -> Result<()> {
    let folder = lasting()?;
    let (hub, mut pierhead, image) = start(folder.path(), NEVER_DRAINED)?;
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

/// With half of the large layer on the tier, and nothing of it anywhere else.
#[test]
fn killed_in_the_middle_of_a_fill() -> Result<()> {
    for folder in [memory()?, lasting()?] {
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
        wait::until("half a layer on the tier", || {
            Ok((number(&stat(&pierhead)?, "staged")? >= 390_000).then_some(()))
        })?;
        pierhead.kill()?;
        let answer = client.join();
        ensure!(
            !matches!(answer, Ok(Ok(answer)) if answer.status == 200 && answer.body.len() == 900_000),
            "half a layer that ends well"
        );
        rule.remove();
        gate.release();
        pierhead.restart()?;
        ensure!(
            number(&stat(&pierhead)?, "used")? < 100_000,
            "what was cut is gone"
        );
        pull(&pierhead, "library/app", &image)?;
        drained(&pierhead)?;
        pierhead.stop()?;
        committed(pierhead.data())?;
    }
    Ok(())
}

/// With a part of the large layer copied to the disk.
#[test]
fn killed_in_the_middle_of_a_drain() -> Result<()> {
    for folder in [memory()?, lasting()?] {
        let slow = "write_back_rate = \"4KiB/s\"";
        let (hub, pierhead) = behind(FakeRegistry::builder(), with_tier(folder.path(), slow))?;
        let mut pierhead = pierhead;
        let image = Image::random(1, &[100_000, 3_000_000]);
        hub.push("library/app", "1", &image);
        pull(&pierhead, "library/app", &image)?;
        // What is small goes before it.
        wait::until("the first bytes of the large layer on the disk", || {
            Ok((number(&stat(&pierhead)?, "written_back")? > 200_000).then_some(()))
        })?;
        let before = stat(&pierhead)?;
        assert_eq!(number(&before, "queue")?, 1, "{before}");
        pierhead.kill()?;
        let whole = committed(pierhead.data())?;
        assert_eq!(whole, image.digests().count() - 1, "no half of a layer");
        pierhead.restart()?;
        pull(&pierhead, "library/app", &image)?;
        let lasts = stat(&pierhead)?["class"] != "volatile";
        let layer = &image.blobs[2].digest;
        assert_eq!(hub.gets_of(layer), if lasts { 1 } else { 2 });
        // The end hurries it, or the next start finds it.
        pierhead.stop()?;
        let there = committed(pierhead.data())?;
        assert_eq!(there, image.digests().count() - usize::from(lasts));
    }
    Ok(())
}
