//! `cargo xtask systemd-vm`: tests the Debian package and its systemd unit under a real systemd, in
//! a virtual machine.
//!
//! The guest sees the root of this machine, read only below an overlay in memory, and boots its systemd. pierhead's
//! data lie on a disk that is mounted at `/var/lib/pierhead` before, as on a card whose NVMe is for the cache.

mod machine;
mod suite;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    check::programs,
    dist,
    guest::{Image, Peer, quote},
    install, place,
};
use machine::Machine;

/// What it keeps lies there.
const FOLDER: &str = "systemd-vm";

/// How to boot, and what to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install this package (default: one of the program as it is built for development).
    #[arg(long, value_name = "FILE")]
    package: Option<PathBuf>,
    /// Run on the processor instead of QEMU's emulator; see `cargo xtask pmem-vm --help`.
    #[arg(long)]
    kvm: bool,
    /// How long the boot may take, with what is done in it.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Runs in the guest, with the package installed; without it the suite runs.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Boots the machine and says with which status the command, or the suite, ended.
///
/// # Errors
/// When the machine cannot be put together, or does not come to the command's end.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let package = match &options.package {
        Some(path) => std::path::absolute(path)?,
        None => {
            install::for_dist(false)?;
            let program = programs::build_daemon()?;
            dist::trial(&[&program], &place::dist_trial())?;
            trial_package()?
        }
    };
    let (machine, _scratch) = machine(options.kvm, Duration::from_secs(options.limit))?;
    if options.command.is_empty() {
        let count = suite::run(&machine, &package, &Peer::built()?)?;
        println!("{} passed, {} failed", count.passed, count.failed);
        return Ok(ExitCode::from(u8::from(count.failed > 0)));
    }
    let mut guest = machine.boot()?;
    let print = |line: &str| println!("{line}");
    suite::install(&mut guest, &package)?;
    let words: Vec<_> = options.command.iter().map(|word| quote(word)).collect();
    let status = guest.shell(&words.join(" "), print)?;
    guest.off(suite::OFF)?;
    // A shell's statuses are bytes.
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

/// The programs that it takes and that are not here.
fn missing() -> Vec<&'static str> {
    let mut missing = install::missing_for_machine(machine::QEMU);
    if !Path::new("/usr/lib/systemd/systemd").exists() {
        missing.push("systemd");
    }
    missing
}

/// Of this machine's architecture, as [`dist::trial`] left it.
fn trial_package() -> Result<PathBuf> {
    let arch = dist::Arch::here().context("no package is made for this machine")?;
    let packages = place::files(&place::dist_trial(), "deb")?;
    packages
        .into_iter()
        .find(|path| path.to_string_lossy().contains(arch.name()))
        .context("the step `dist` left no package")
}

/// The machine, and the folder that goes with it.
fn machine(kvm: bool, limit: Duration) -> Result<(Machine, tempfile::TempDir)> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the guest is x86-64 and runs the host's programs: so must the host be");
    }
    let missing = missing();
    if !missing.is_empty() {
        bail!("no {}: `cargo xtask install` brings it", missing.join(", "));
    }
    let folder = place::virtual_machine(FOLDER)?;
    let image = Image::prepare(&folder, &machine::RECIPE)?;
    let scratch = tempfile::Builder::new().prefix("run-").tempdir_in(folder)?;
    let machine = Machine {
        image,
        kvm,
        limit,
        folder: scratch.path().to_owned(),
    };
    Ok((machine, scratch))
}
