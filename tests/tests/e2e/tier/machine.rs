//! The tier on persistent memory, over three starts of a machine, the second of which loses its power.
//!
//! In a guest of `cargo xtask pmem-vm -- …` it runs one boot a call: `PIERHEAD_PMEM_BOOT` says which, `PIERHEAD_PMEM_DIR`
//! names the folder that lasts, and the last boot gets in `PIERHEAD_PMEM_LAST` what the second said last. Elsewhere all
//! three run on what this machine has, and the daemon is killed in place of the machine.

use std::{env, fs, path::Path};

use anyhow::{Result, ensure};
use pierhead_testkit::{
    images::Image,
    registry::{Background, FakeRegistry},
};
use pierhead_tests::pierhead::{Options, Pierhead};

use super::{NEVER_DRAINED, diagnosis, image, lasting, number, region, section, stat};
use crate::ask::{behind, pull};

/// Of the second boot: more than one segment of the log each, so that the cut comes in the middle of one.
fn later(number: u64) -> Image {
    Image::random(1000 + number, &[70_000, 2_500_000, 150_000])
}

#[test]
fn over_three_boots() -> Result<()> {
    let Some(folder) = env::var_os("PIERHEAD_PMEM_DIR") else {
        let folder = lasting()?;
        first(folder.path(), "file")?;
        let last = second(folder.path(), "file", 3)?;
        return third(folder.path(), "file", last);
    };
    let folder = Path::new(&folder);
    match env::var("PIERHEAD_PMEM_BOOT")?.as_str() {
        "1" => first(folder, "pmem"),
        "2" => second(folder, "pmem", u64::MAX).map(drop),
        _ => third(folder, "pmem", env::var("PIERHEAD_PMEM_LAST")?.parse()?),
    }
}

fn start(folder: &Path, kind: &str) -> Result<(Background, Pierhead)> {
    let section = section(&region(folder), "64MiB", NEVER_DRAINED);
    let section = section.replace("\"file\"", &format!("{kind:?}"));
    let options = Options::new().config(&section).data(&folder.join("data"));
    behind(FakeRegistry::builder(), options)
}

/// Nothing of it is asked of the upstream.
fn found(hub: &Background, pierhead: &Pierhead, name: &str, image: &Image) -> Result<()> {
    hub.push(name, "1", image);
    pull(pierhead, name, image)?;
    for blob in &image.blobs {
        ensure!(hub.gets_of(&blob.digest) == 0, "{name} was fetched again");
    }
    Ok(())
}

/// Pulls, and is killed before anything is drained.
fn first(folder: &Path, kind: &str) -> Result<()> {
    let (hub, mut pierhead) = start(folder, kind)?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    let stat = stat(&pierhead)?;
    assert_eq!(number(&stat, "queue")?, 3, "{stat}");
    if kind == "pmem" {
        assert_eq!(stat["class"], "pmem");
        assert_eq!(diagnosis(&pierhead)?, ("ok".into(), "in use, pmem".into()));
    }
    pierhead.kill()
}

/// Finds that, and pulls more until it is killed, or `most`: the number of the last that it said.
fn second(folder: &Path, kind: &str, most: u64) -> Result<u64> {
    let (hub, mut pierhead) = start(folder, kind)?;
    let lasts = stat(&pierhead)?["class"] != "volatile";
    if lasts {
        found(&hub, &pierhead, "library/app", &image(1))?;
        ensure!(number(&stat(&pierhead)?, "hits")? >= 2, "from elsewhere");
    }
    println!();
    for number in 0..most {
        let (name, image) = (format!("library/later{number}"), later(number));
        hub.push(&name, "1", &image);
        pull(&pierhead, &name, &image)?;
        println!("pulled {number}");
        fs::write(folder.join("pulling"), "")?;
    }
    pierhead.kill()?;
    Ok(most - 1)
}

fn third(folder: &Path, kind: &str, last: u64) -> Result<()> {
    let (hub, pierhead) = start(folder, kind)?;
    if stat(&pierhead)?["class"] == "volatile" {
        println!("skipped: {} is no disk", folder.display());
        return Ok(());
    }
    ensure!(
        number(&stat(&pierhead)?, "damaged")? == 0,
        "a cut is no damage"
    );
    found(&hub, &pierhead, "library/app", &image(1))?;
    // Each would take an emulated machine minutes.
    let step = usize::try_from(last / 5)?.max(1);
    for number in (0..last).step_by(step).chain([last]) {
        found(
            &hub,
            &pierhead,
            &format!("library/later{number}"),
            &later(number),
        )?;
    }
    // What was being written when the power went: the whole of it, or none.
    let (name, image) = (format!("library/later{}", last + 1), later(last + 1));
    hub.push(&name, "1", &image);
    pull(&pierhead, &name, &image)
}
