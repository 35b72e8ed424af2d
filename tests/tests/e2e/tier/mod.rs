//! A fast tier in front of the disk, in a daemon: what a client sees of it (nothing), a restart, a crash, an operator.

mod lent;
mod machine;
mod refused;
mod running;
mod survives;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::images::Image;
use pierhead_tests::{
    pierhead::{Options, Pierhead},
    place, wait,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::doctor::{doctor, one};

/// The layer that comes last is the large one, and the rules put it on the tier with what lies above it: two of three.
const LAYERS: [usize; 3] = [200_000, 900_000, 300_000];

fn image(seed: u64) -> Image {
    Image::random(seed, &LAYERS)
}

/// A folder whose files a power cut takes away, with room for the regions of all tests that run at once.
fn memory() -> Result<TempDir> {
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

/// A folder whose files stay, as far as tests have one; `None` in a container's overlay.
fn lasting() -> Result<TempDir> {
    place::scratch("tier")
}

/// A tier of 64 MiB in `folder`, with more lines of its section.
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

/// Nothing of a blob of a test reaches the disk behind before somebody waits for it.
const NEVER_DRAINED: &str = "write_back_rate = \"1B/s\"";

/// What `pierhead cache tier stat` says.
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

/// Waits until the disk has all.
fn drained(pierhead: &Pierhead) -> Result<Value> {
    wait::until("a drained tier", || {
        let stat = stat(pierhead)?;
        Ok((number(&stat, "queue")? == 0 && number(&stat, "dirty")? == 0).then_some(stat))
    })
}

/// What doctor says of the tier: how bad, and in which words.
fn diagnosis(pierhead: &Pierhead) -> Result<(String, String)> {
    let (_, findings) = doctor(&["--offline", "--admin", &pierhead.admin().to_string()])?;
    let (level, what) = one(&findings, "tier");
    Ok((level.to_owned(), what.to_owned()))
}
