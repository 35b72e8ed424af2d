//! End-to-end tests of a running fast tier: a change of its size limit, and a region file that
//! another program truncates. (A region file stores the blobs of the tier.)

use std::{
    fs::File,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{http::End, images::Image, registry::FakeRegistry};
use pierhead_tests::{pierhead::Pierhead, wait};

use super::{
    diagnosis, image, memory_folder, number, region, stat, wait_for_write_back, with_tier,
};
use crate::requests::{committed, get, pull, start_in_front};

/// Requests all layers repeatedly until `over` is set. A wrong response is an error.
fn client(pierhead: &Pierhead, image: &Image, over: &AtomicBool, pulls: &AtomicU64) -> Result<()> {
    while !over.load(Ordering::SeqCst) {
        for blob in &image.blobs {
            let path = format!("/v2/library/app/blobs/{}", blob.digest);
            let response = get(pierhead.address(), &path)?;
            ensure!(
                response.status == 200 && response.end == End::Clean,
                "{path}"
            );
            ensure!(response.body == blob.bytes, "{path}: other bytes");
        }
        pulls.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[test]
fn the_limit_changes_during_pulls() -> Result<()> {
    let folder = memory_folder()?;
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), with_tier(folder.path(), ""))?;
    let hub = &hub;
    let images: Vec<_> = (0..4).map(image).collect();
    for image in &images {
        hub.push("library/app", "1", image);
        get(pierhead.address(), "/v2/library/app/manifests/1")?;
    }
    let (over, pulls) = (AtomicBool::new(false), AtomicU64::new(0));
    let (pierhead, over, pulls) = (&pierhead, &over, &pulls);
    thread::scope(|scope| {
        let clients: Vec<_> = images
            .iter()
            .map(|image| scope.spawn(move || client(pierhead, image, over, pulls)))
            .collect();
        let changed = (|| {
            for round in 1..=6 {
                let (name, new) = (format!("library/new{round}"), image(100 + round));
                hub.push(&name, "1", &new);
                pull(pierhead, &name, &new)?;
                for limit in [0, 1_500_000, 4 << 20] {
                    let output = pierhead.cache(&["tier", "set-limit", &format!("{limit}B")])?;
                    ensure!(output.contains("volatile"), "{output}");
                    let fits = || {
                        let stat = stat(pierhead)?;
                        ensure!(number(&stat, "limit")? == limit, "{stat}");
                        Ok((number(&stat, "used")? <= limit).then_some(()))
                    };
                    wait::try_until("a tier within its limit", fits)?;
                }
                let pulled = || Ok((pulls.load(Ordering::SeqCst) >= 4 * round).then_some(()));
                wait::try_until("more pulls", pulled)?;
            }
            Ok(())
        })();
        over.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().ok().context("a client panicked")??;
        }
        changed
    })?;
    let stat = stat(pierhead)?;
    ensure!(number(&stat, "staged")? > 1_000_000, "{stat}");
    let output = pierhead.cache(&["tier", "stat"])?;
    ensure!(
        output.contains("of 4.0 MiB") && output.contains("dirty "),
        "{output}"
    );
    Ok(())
}

/// Another program truncates the region file while pierhead reads blobs from it.
#[test]
fn a_truncated_region_file_stops_the_tier_and_not_the_daemon() -> Result<()> {
    let folder = memory_folder()?;
    let (hub, mut pierhead) =
        start_in_front(FakeRegistry::builder(), with_tier(folder.path(), ""))?;
    let (image, later) = (image(1), super::image(2));
    hub.push("library/app", "1", &image);
    hub.push("library/later", "1", &later);
    pull(&pierhead, "library/app", &image)?;
    wait_for_write_back(&pierhead)?;
    pull(&pierhead, "library/app", &image)?;
    File::options()
        .write(true)
        .open(region(folder.path()))?
        .set_len(4096)?;
    // pierhead may abort a running response. No complete response may have wrong bytes.
    for blob in &image.blobs {
        let path = format!("/v2/library/app/blobs/{}", blob.digest);
        wait::try_until("the disk's copy", || {
            let Ok(response) = get(pierhead.address(), &path) else {
                return Ok(None);
            };
            let whole = response.status == 200 && response.end == End::Clean;
            ensure!(!whole || response.body == blob.bytes, "{path}: other bytes");
            Ok(whole.then_some(()))
        })?;
    }
    pull(&pierhead, "library/later", &later)?;
    for blob in &image.blobs[1..] {
        assert_eq!(hub.gets_of(&blob.digest), 1, "the disk had it");
    }
    let now = stat(&pierhead)?;
    ensure!(number(&now, "damaged")? > 0, "{now}");
    ensure!(now["failed"] == true, "{now}");
    let log = pierhead.log();
    assert_eq!(log.matches("the fast tier has failed").count(), 1, "{log}");
    let (level, what) = diagnosis(&pierhead)?;
    ensure!(
        level == "fail" && what.contains("the medium failed"),
        "{level}: {what}"
    );
    pierhead.stop()?;
    assert_eq!(
        committed(pierhead.data())?,
        image.digests().count() + later.digests().count()
    );
    // After the next start, pierhead runs without the tier, and logs the reason.
    pierhead.restart()?;
    ensure!(
        pierhead.log().contains("it was truncated"),
        "{}",
        pierhead.log()
    );
    pull(&pierhead, "library/app", &image)
}
