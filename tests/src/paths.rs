//! Paths of the build folder, the binaries under test, and scratch folders.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The folder of the running cargo profile (`target/debug`), which has the programs.
pub fn profile() -> Result<PathBuf> {
    let test = env::current_exe().context("no path of this test program")?;
    // target/<profile>/deps/<test>
    let deps = test.parent().context("a program without a folder")?;
    Ok(match deps.file_name() {
        Some(name) if name == "deps" => deps.parent().context("deps without a folder")?.to_owned(),
        _ => deps.to_owned(),
    })
}

/// The build folder.
fn target() -> Result<PathBuf> {
    let profile = profile()?;
    let target = profile
        .parent()
        .context("a profile without a target folder")?;
    Ok(target.to_owned())
}

/// The folder of the tools that `cargo xtask install` installs for tests.
pub fn tools() -> Result<PathBuf> {
    Ok(target()?.join("xtask-tools"))
}

/// A folder on disk, below the build folder, for files that later runs use again.
pub fn cache(name: &str) -> Result<PathBuf> {
    let folder = target()?.join("e2e").join(name);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// A temporary folder on disk for the data of daemons, which may be large. Dropping the value
/// deletes the folder.
///
/// The folder is on the same file system as [`cache`], so that hard links work.
pub fn scratch(name: &str) -> Result<TempDir> {
    named(name, &cache("scratch")?)
}

/// A temporary folder with a short path, because the path of a Unix socket has at most 107 bytes.
/// Dropping the value deletes the folder.
pub fn short(name: &str) -> Result<TempDir> {
    named(name, &env::temp_dir())
}

/// Whether the daemon under test is a release build. Only a release build must meet the memory
/// limits.
pub fn is_release() -> Result<bool> {
    Ok(pierhead()?
        .parent()
        .is_some_and(|it| it.ends_with("release")))
}

fn named(name: &str, at: &Path) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(at)
        .with_context(|| format!("a folder in {}", at.display()))
}

/// The path of the eviction simulator: `PIERHEAD_REPLAY_BIN`, or else the program beside this test
/// program.
pub fn pierhead_replay() -> Result<PathBuf> {
    if let Some(path) = env::var_os("PIERHEAD_REPLAY_BIN") {
        return Ok(path.into());
    }
    let path = profile()?.join("pierhead-replay");
    anyhow::ensure!(
        path.exists(),
        "{} is missing: run `cargo build -p pierhead-replay` first, or name a binary in PIERHEAD_REPLAY_BIN",
        path.display()
    );
    Ok(path)
}

/// The path of the daemon under test: `PIERHEAD_BIN`, or else the program beside this test program.
pub fn pierhead() -> Result<PathBuf> {
    if let Some(path) = env::var_os("PIERHEAD_BIN") {
        return Ok(path.into());
    }
    let path = profile()?.join("pierhead");
    anyhow::ensure!(
        path.exists(),
        "{} is missing: run `cargo build -p pierhead` first, or name a binary in PIERHEAD_BIN",
        path.display()
    );
    Ok(path)
}
