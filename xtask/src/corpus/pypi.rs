//! Installs Python packages from PyPI into a folder with pip, for the Python version of a corpus
//! image.

use std::{fs, path::Path, process::Command};

use anyhow::Result;

use crate::exec;

/// Installs exactly the packages `pins` (`name==version`) into `folder`. Only wheels: pip builds
/// nothing, runs no code of the packages, and installs no dependencies.
///
/// # Errors
/// pip is missing, or PyPI has no wheel for this version of Python.
pub(crate) fn install(folder: &Path, python: &str, machine: &str, pins: &[&str]) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    exec::output(
        Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--no-deps", "--no-compile", "--only-binary=:all:"])
            .args(["--disable-pip-version-check", "--root-user-action=ignore"])
            .args(["--implementation", "cp", "--python-version", python])
            .args(["--platform", &format!("manylinux2014_{machine}")])
            .args(["--platform", &format!("manylinux_2_28_{machine}")])
            .arg("--target")
            .arg(folder)
            .args(pins),
    )?;
    Ok(())
}
