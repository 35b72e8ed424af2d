//! End-to-end tests of region files (the storage of the fast tier) that pierhead cannot use:
//! pierhead logs the reason, serves from disk, and does not change the file.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    process::Command,
};

use anyhow::{Result, ensure};
use pierhead_testkit::registry::FakeRegistry;
use pierhead_tests::{
    namespace, paths,
    pierhead::{Options, Pierhead},
    process,
    tool::or_skip,
};

use super::{
    diagnosis, image, memory_folder, region, section, stat, wait_for_write_back, with_tier,
};
use crate::requests::{get, pull, start_in_front};

/// Starts pierhead. Asserts that it runs without a tier, and that the log, `cache tier` and doctor
/// give the reason.
fn serves_without(options: Options, why: &str) -> Result<Pierhead> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let log = pierhead.log();
    ensure!(
        log.contains("pierhead starts without the fast tier") && log.contains(why),
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
        let text = format!("{refused:#}");
        ensure!(text.contains("tier.kind"), "{text}");
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

/// Starts a daemon that writes an image through a new region file, and stops the daemon. The region
/// file stays.
fn create_region_file(folder: &Path) -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), with_tier(folder, ""))?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    wait_for_write_back(&pierhead)?;
    pierhead.stop()?;
    Ok(())
}

fn of_size(folder: &Path, size: &str) -> Options {
    Options::new().config(&section(&region(folder), size, ""))
}

#[test]
fn a_region_of_another_size_is_refused() -> Result<()> {
    let folder = memory_folder()?;
    create_region_file(folder.path())?;
    let before = fs::read(region(folder.path()))?;
    serves_without(of_size(folder.path(), "128MiB"), "remove it")?;
    serves_without(
        of_size(folder.path(), "32MiB"),
        "its header says 67108864 bytes",
    )?;
    ensure!(
        fs::read(region(folder.path()))? == before,
        "the region was changed"
    );
    Ok(())
}

#[test]
fn a_region_of_another_version_or_with_damaged_headers_is_refused() -> Result<()> {
    let folder = memory_folder()?;
    create_region_file(folder.path())?;
    let whole = fs::read(region(folder.path()))?;
    let file = File::options().write(true).open(region(folder.path()))?;
    for at in [0, 4096] {
        let mut head = whole[at..at + 64].to_vec();
        head[8] = 2;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&[0; 8]), &head[..60]);
        head[60..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&head, at as u64)?;
    }
    let options = || with_tier(folder.path(), "");
    serves_without(
        options(),
        "it has version 2, but this pierhead supports version 3",
    )?;
    for at in [3, 4096 + 20] {
        file.write_all_at(b"?", at)?;
    }
    serves_without(options(), "both its headers are damaged")?;
    // All other bytes of the region file are unchanged.
    let now = fs::read(region(folder.path()))?;
    ensure!(now[8192..] == whole[8192..], "the region was changed");
    Ok(())
}

#[test]
fn a_region_without_space_or_folder_is_refused() -> Result<()> {
    let folder = paths::scratch("tier")?;
    let nowhere = folder.path().join("missing");
    serves_without(of_size(&nowhere, "64MiB"), "No such file")?;
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    // Uses a separate tmpfs, because the free memory of the machine varies.
    let shown = folder.path().display();
    let small = format!("mount -t tmpfs -o size=32m tmpfs {shown}");
    let options = of_size(folder.path(), "64MiB").inside(namespace::mounted(&small));
    let mut pierhead = serves_without(options, "No space left")?;
    let seen = format!("/proc/{}/root/{shown}", pierhead.daemon().pid());
    assert_eq!(fs::read_dir(seen)?.count(), 0, "no file remains");
    Ok(())
}

#[test]
fn a_region_in_use_is_refused() -> Result<()> {
    let folder = memory_folder()?;
    let (hub, first) = start_in_front(FakeRegistry::builder(), with_tier(folder.path(), ""))?;
    let image = image(1);
    hub.push("library/app", "1", &image);
    pull(&first, "library/app", &image)?;
    serves_without(with_tier(folder.path(), ""), "in use by another process")?;
    // The first daemon, which uses the region, still has all blobs.
    assert_eq!(wait_for_write_back(&first)?["blobs"], 3);
    pull(&first, "library/app", &image)
}

#[test]
fn invalid_tier_commands_are_refused() -> Result<()> {
    let folder = memory_folder()?;
    let (_hub, pierhead) = start_in_front(FakeRegistry::builder(), with_tier(folder.path(), ""))?;
    let limit = stat(&pierhead)?["limit"].clone();
    for (words, text) in [
        (&["tier", "set-limit", "much"][..], "much"),
        (&["tier", "set-limit"], "<SIZE>"),
        (&["tier"], "set-limit"),
    ] {
        let (status, said) = process::output(
            Command::new(paths::pierhead()?)
                .args(["cache", "--admin", &format!("http://{}", pierhead.admin())])
                .args(words),
        )?;
        ensure!(
            status.code() == Some(2) && said.contains(text),
            "{words:?}: {status}: {said}"
        );
    }
    assert_eq!(stat(&pierhead)?["limit"], limit);
    Ok(())
}

#[test]
fn tier_commands_need_a_daemon() -> Result<()> {
    let (status, said) = process::output(Command::new(paths::pierhead()?).args([
        "cache",
        "--admin",
        "http://127.0.0.1:1",
        "tier",
        "stat",
    ]))?;
    ensure!(!status.success() && said.contains("127.0.0.1:1"), "{said}");
    Ok(())
}
