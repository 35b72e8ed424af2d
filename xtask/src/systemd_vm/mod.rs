//! `cargo xtask systemd-vm`: tests the Debian package and its systemd unit under a real systemd, in
//! a virtual machine.
//!
//! The guest mounts the root folder of this machine read-only, with a writable overlay in memory,
//! and boots its systemd. A separate disk for pierhead's data is mounted at `/var/lib/pierhead`
//! before pierhead starts, like the NVMe disk of a DPU.

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
    install, paths,
};
use machine::Machine;

/// Folder of the machine's files, below xtask's folder for virtual machines.
const FOLDER: &str = "systemd-vm";

/// Flags of `cargo xtask systemd-vm`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install this package (default: a package with a development build).
    #[arg(long, value_name = "FILE")]
    package: Option<PathBuf>,
    /// Run the guest on the host's CPU by KVM instead of emulation; see `cargo xtask pmem-vm
    /// --help`.
    #[arg(long)]
    kvm: bool,
    /// Time limit of the boot with all its commands.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Command to run in the guest after the installation of the package; without a command, the
    /// test suite runs.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Boots the machine, and returns the exit status of the command or of the suite.
///
/// # Errors
/// The machine cannot be assembled, or does not finish the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let package = match &options.package {
        Some(path) => std::path::absolute(path)?,
        None => {
            install::for_dist(false)?;
            let program = programs::build_daemon()?;
            dist::trial(&[&program], &paths::dist_trial())?;
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
    guest.off(suite::POWER_OFF)?;
    // An exit status of a shell is a byte.
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

/// Required programs that this machine lacks.
fn missing() -> Vec<&'static str> {
    let mut missing = install::missing_for_machine(machine::QEMU);
    if !Path::new("/usr/lib/systemd/systemd").exists() {
        missing.push("systemd");
    }
    missing
}

/// The Debian package for this machine's architecture, which [`dist::trial`] built.
fn trial_package() -> Result<PathBuf> {
    let arch = dist::Arch::of_this_machine().context("no package is made for this machine")?;
    let packages = paths::files(&paths::dist_trial(), "deb")?;
    packages
        .into_iter()
        .find(|path| path.to_string_lossy().contains(arch.name()))
        .context("the step `dist` left no package")
}

/// Assembles the machine. Returns its temporary folder with it, which must live as long as the
/// machine.
fn machine(kvm: bool, limit: Duration) -> Result<(Machine, tempfile::TempDir)> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the guest is x86-64 and runs the host's programs: so must the host be");
    }
    let missing = missing();
    if !missing.is_empty() {
        bail!("no {}: `cargo xtask install` brings it", missing.join(", "));
    }
    let folder = paths::virtual_machine(FOLDER)?;
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
