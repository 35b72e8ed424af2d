//! End-to-end tests of the fast tier: restart, crash, power loss, unusable regions, memory, and
//! operator commands.

mod limit_and_failure;
mod memory;
mod power_loss;
mod restart;
mod unusable_regions;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::images::Image;
use pierhead_tests::{
    paths,
    pierhead::{Options, Pierhead},
    wait,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::doctor::{doctor, one};

/// Sizes of the layers in bytes, lowest layer first. The second layer is the largest, so it arrives
/// last. The layer-aware placement puts this layer and the third layer on the tier.
const LAYERS: [usize; 3] = [200_000, 900_000, 300_000];

fn image(seed: u64) -> Image {
    Image::random(seed, &LAYERS)
}

/// A volatile folder (tmpfs) with space for the region files of all concurrent tests. (A region
/// file stores the blobs of the tier.)
fn memory_folder() -> Result<TempDir> {
    const NEEDED: u64 = 512 << 20;
    let stat = rustix::fs::statvfs("/dev/shm")?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    ensure!(
        free >= NEEDED,
        "/dev/shm has {} MiB free, and these tests need 512: `mount -o remount,size=1G /dev/shm` (docker: --shm-size)",
        free >> 20
    );
    Ok(tempfile::Builder::new()
        .prefix("pierhead-tier-")
        .tempdir_in("/dev/shm")?)
}

/// A folder on disk, which survives a reboot.
fn disk_folder() -> Result<TempDir> {
    paths::scratch("tier")
}

/// Options with a tier of 64 MiB in `folder`, and additional lines for its section.
fn with_tier(folder: &Path, more: &str) -> Options {
    Options::new().config(&section(&region(folder), "64MiB", more))
}

fn section(path: &Path, size: &str, more: &str) -> String {
    format!(
        "[tier]\nkind = \"file\"\npath = {path:?}\nsize = {size:?}\nplacement = \"layer-aware\"\n{more}"
    )
}

fn region(folder: &Path) -> PathBuf {
    folder.join("region")
}

/// A write-back rate so low that no blob reaches the disk during a test.
const NO_WRITE_BACK: &str = "write_back_rate = \"1B/s\"";

/// The output of `pierhead cache tier stat`.
fn stat(pierhead: &Pierhead) -> Result<Value> {
    Ok(serde_json::from_str(
        &pierhead.cache(&["--json", "tier", "stat"])?,
    )?)
}

fn number(stat: &Value, key: &str) -> Result<u64> {
    stat[key]
        .as_u64()
        .with_context(|| format!("{key} in {stat}"))
}

/// Waits until pierhead has written all blobs of the tier back to the disk.
fn wait_for_write_back(pierhead: &Pierhead) -> Result<Value> {
    wait::try_until("the write-back of the tier", || {
        let stat = stat(pierhead)?;
        Ok((number(&stat, "queue")? == 0 && number(&stat, "dirty")? == 0).then_some(stat))
    })
}

/// The level and the text of doctor's finding about the tier.
fn diagnosis(pierhead: &Pierhead) -> Result<(String, String)> {
    let (_, findings) = doctor(&["--offline", "--admin", &pierhead.admin().to_string()])?;
    let (level, what) = one(&findings, "tier");
    Ok((level.to_owned(), what.to_owned()))
}
