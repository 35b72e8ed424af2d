//! `cargo xtask fuzz`: runs every fuzz target for a limited time.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

/// Runs the fuzz targets whose names contain `filter`, for `seconds` each.
///
/// # Errors
/// A target found an input that fails, or `cargo fuzz` cannot run.
pub(crate) fn run(filter: &str, seconds: u64) -> Result<()> {
    let root = paths::root();
    let list = exec::text(cargo_fuzz().current_dir(&root).arg("list"))
        .context("cargo fuzz needs nightly Rust, and `cargo install cargo-fuzz`")?;
    let targets: Vec<_> = list.lines().filter(|name| name.contains(filter)).collect();
    if targets.is_empty() {
        bail!("no fuzz target is called like {filter:?}");
    }
    for target in targets {
        println!("=== {target}: {seconds} s");
        // libFuzzer writes new inputs to the first folder, so the corpus in the repository stays
        // unchanged.
        let found = paths::target().join("fuzz-corpus").join(target);
        std::fs::create_dir_all(&found)?;
        let seeds = root.join("fuzz/corpus").join(target);
        let status = cargo_fuzz()
            .current_dir(&root)
            .args(["run", target])
            .arg(&found)
            .args(seeds.exists().then_some(seeds))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"))
            .status()?;
        if !status.success() {
            bail!("{target} broke: the input that did it lies in fuzz/artifacts/{target}");
        }
    }
    Ok(())
}

fn cargo_fuzz() -> Command {
    let mut command = exec::cargo();
    // The toolchain file selects stable Rust, which has no sanitizers. rustup's override takes
    // precedence.
    command.env("RUSTUP_TOOLCHAIN", "nightly").arg("fuzz");
    command
}
