//! Regions that cannot be used: one line says why, all is served from the disk, and the file stays as it is.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    process::Command,
};

use anyhow::{Result, ensure};
use pierhead_testkit::registry::FakeRegistry;
use pierhead_tests::{
    namespace,
    pierhead::{Options, Pierhead},
    place, process,
    tool::or_skip,
};

use super::{diagnosis, drained, image, memory, region, section, stat, with_tier};
use crate::ask::{behind, get, pull};

/// Without a tier, and says so: in the log, to `cache tier`, and to doctor.
fn serves_without(options: Options, why: &str) -> Result<Pierhead> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), options)?;
    let log = pierhead.log();
    ensure!(
        log.contains("there is no fast tier") && log.contains(why),
        "{why:?} is missing in: {log}"
    );
    let image = image(7);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    for words in [["tier", "stat", ""], ["tier", "set-limit", "1MiB"]] {
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let Err(refused) = pierhead.cache(&words) else {
            anyhow::bail!("{words:?} works without a tier");
        };
        let told = format!("{refused:#}");
        ensure!(told.contains("tier.kind"), "{told}");
    }
    let (level, what) = diagnosis(&pierhead)?;
    ensure!(
        level == "fail" && what.contains("without"),
        "{level}: {what}"
    );
    let metrics = String::from_utf8(get(pierhead.admin(), "/metrics")?.body.into())?;
    ensure!(!metrics.contains("pierhead_cache_tier_"), "{metrics}");
    Ok(pierhead)
}

/// A region with an image in it, whose daemon has ended.
fn made(folder: &Path) -> Result<()> {
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), with_tier(folder, ""))?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    drained(&pierhead)?;
    pierhead.stop()?;
    Ok(())
}

fn of_size(folder: &Path, size: &str) -> Options {
    Options::new().config(&section(&region(folder), size, ""))
}

#[test]
fn of_another_size() -> Result<()> {
    let folder = memory()?;
    made(folder.path())?;
    let before = fs::read(region(folder.path()))?;
    serves_without(of_size(folder.path(), "128MiB"), "remove it")?;
    serves_without(
        of_size(folder.path(), "32MiB"),
        "its header says 67108864 bytes",
    )?;
    ensure!(
        fs::read(region(folder.path()))? == before,
        "it was written to"
    );
    Ok(())
}

#[test]
fn of_another_version_or_damaged_in_both_headers() -> Result<()> {
    let folder = memory()?;
    made(folder.path())?;
    let whole = fs::read(region(folder.path()))?;
    let file = File::options().write(true).open(region(folder.path()))?;
    for at in [0, 4096] {
        let mut head = whole[at..at + 64].to_vec();
        head[8] = 3;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&[0; 8]), &head[..60]);
        head[60..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&head, at as u64)?;
    }
    let options = || with_tier(folder.path(), "");
    serves_without(
        options(),
        "it has version 3, but this pierhead supports version 2",
    )?;
    for at in [3, 4096 + 20] {
        file.write_all_at(b"?", at)?;
    }
    serves_without(options(), "both its headers are damaged")?;
    // Nothing else in it was touched.
    let now = fs::read(region(folder.path()))?;
    ensure!(now[8192..] == whole[8192..], "it was written to");
    Ok(())
}

#[test]
fn where_there_is_no_room_or_no_folder() -> Result<()> {
    let folder = place::scratch("tier")?;
    let nowhere = folder.path().join("missing");
    serves_without(of_size(&nowhere, "64MiB"), "No such file")?;
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    // A memory of its own: how much the machine's would give is the machine's.
    let shown = folder.path().display();
    let small = format!("mount -t tmpfs -o size=32m tmpfs {shown}");
    let options = of_size(folder.path(), "64MiB").inside(namespace::mounted(&small));
    let mut pierhead = serves_without(options, "No space left")?;
    let seen = format!("/proc/{}/root/{shown}", pierhead.daemon().pid());
    assert_eq!(fs::read_dir(seen)?.count(), 0, "nothing is left");
    Ok(())
}

#[test]
fn in_use_by_another_daemon() -> Result<()> {
    let folder = memory()?;
    let (hub, first) = behind(FakeRegistry::builder(), with_tier(folder.path(), ""))?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    pull(&first, "library/app", &image)?;
    serves_without(with_tier(folder.path(), ""), "in use by another process")?;
    // The first one has lost nothing by it.
    assert_eq!(drained(&first)?["blobs"], 3);
    pull(&first, "library/app", &image)
}

#[test]
fn words_that_cannot_be_understood() -> Result<()> {
    let folder = memory()?;
    let (_hub, pierhead) = behind(FakeRegistry::builder(), with_tier(folder.path(), ""))?;
    let limit = stat(&pierhead)?["limit"].clone();
    for (words, told) in [
        (&["tier", "set-limit", "much"][..], "much"),
        (&["tier", "set-limit"], "<SIZE>"),
        (&["tier"], "set-limit"),
    ] {
        let (status, said) = process::output(
            Command::new(place::pierhead()?)
                .args(["cache", "--admin", &format!("http://{}", pierhead.admin())])
                .args(words),
        )?;
        ensure!(
            status.code() == Some(2) && said.contains(told),
            "{words:?}: {status}: {said}"
        );
    }
    assert_eq!(stat(&pierhead)?["limit"], limit);
    Ok(())
}

#[test]
fn where_nobody_listens() -> Result<()> {
    let (status, said) = process::output(Command::new(place::pierhead()?).args([
        "cache",
        "--admin",
        "http://127.0.0.1:1",
        "tier",
        "stat",
    ]))?;
    ensure!(!status.success() && said.contains("127.0.0.1:1"), "{said}");
    Ok(())
}
