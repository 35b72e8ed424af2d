//! `cargo xtask corpus`: builds realistic test images from Debian and Python packages, without a
//! container daemon or root.
//!
//! The result is an OCI image layout. Two builds from the same packages have the same digests:
//! entries are sorted, times are fixed, and compressed streams contain no data of this machine.

mod images;
mod pypi;

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{apt, console::say, image::layout, paths};
use images::Builder;
pub(crate) use images::missing_tools;

/// File in a complete corpus with the recipe that built it.
const STAMP: &str = "recipe";

/// Everything besides the packages that determines the corpus. After a change, the corpus is built
/// again.
const RECIPE: &[&str] = &[
    include_str!("../apt.rs"),
    include_str!("images.rs"),
    include_str!("../image/layer.rs"),
    include_str!("../image/layout.rs"),
    include_str!("pypi.rs"),
];

/// Builds the corpus into `out`, unless it exists.
///
/// # Errors
/// A package cannot be downloaded, or `out` contains something else.
#[expect(
    clippy::disallowed_methods,
    reason = "a build artifact, which the next run makes again after a crash"
)]
pub(crate) fn build(out: &Path, anew: bool) -> Result<()> {
    let stamp = recipe();
    let found = fs::read_to_string(out.join(STAMP)).ok();
    if found.as_deref() == Some(stamp.as_str()) && !anew {
        say!("{}: complete", out.display());
        return Ok(());
    }
    if out.exists() && found.is_none() && out.read_dir()?.next().is_some() {
        bail!(
            "{} is not a corpus: it will not be overwritten",
            out.display()
        );
    }
    let missing = missing_tools();
    if !missing.is_empty() {
        bail!("missing {missing:?}: a Debian with python3-pip builds the corpus");
    }
    let started = Instant::now();
    let downloads = paths::downloads();
    let apt = apt::Apt::prepare(&downloads.join("apt"), &images::ARCHS)
        .context("ask Debian for its packages")?;
    // The build uses a separate folder, which is renamed when it is complete. Therefore an
    // interrupted build is never used.
    let partial = out.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let mut layout = layout::Layout::create(&partial)?;
    Builder::new(&mut layout, &apt, &downloads).all()?;
    layout.finish()?;
    fs::write(partial.join(STAMP), stamp)?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::rename(&partial, out)?;
    say!(
        "{}: built in {:.1} s",
        out.display(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn recipe() -> String {
    let mut hash = Sha256::new();
    for part in RECIPE {
        hash.update(part.as_bytes());
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
