//! Installs Python packages from PyPI into a folder with pip, for the Python version of a corpus
//! image.

use std::{fs, path::Path, process::Command};

use anyhow::Result;

use crate::exec;

/// Puts exactly `pins` (`name==version`) into `folder`, wheels only: nothing is built, nothing of
/// theirs runs here, and nothing else is pulled in.
///
/// # Errors
/// When there is no pip, or PyPI lacks a wheel for that Python.
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
