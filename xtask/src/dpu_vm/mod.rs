//! `cargo xtask dpu-vm`: boots a simulated BlueField DPU with pierhead in QEMU, and pulls images
//! from it.
//!
//! QEMU emulates the cores of a BlueField-2. The guest has only Debian's kernel, busybox and
//! pierhead. Ports of this machine's loopback interface lead to the ports of the guest. The guest
//! reaches this machine, which has the upstream registry, as 10.0.2.2.

mod machine;
mod suite;

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    check::{aarch64::Dpu, test_count::TestCount},
    exec,
    guest::{Image, Peer, quote},
    install, paths,
};
use machine::Machine;

/// Folder of the machine's files, below xtask's folder for virtual machines.
const FOLDER: &str = "dpu-vm";

/// Flags of `cargo xtask dpu-vm`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this pierhead for arm64 (default: a development build).
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Keep the disk in FILE, and use the contents that an earlier call left (default: a temporary
    /// disk).
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Time limit of one boot with its command.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Print the addresses of the machine, and run it until standard input ends.
    #[arg(long, conflicts_with = "command")]
    hold: bool,
    /// URL that the guest uses as Docker Hub; an address of 127.0.0.1 means this machine (default:
    /// the registry of the suite, or the real Docker Hub).
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Command to run in the guest while pierhead serves; without a command, the test suite runs,
    /// with two boots.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Boots the machine, and returns the exit status of the command or of the suite.
///
/// # Errors
/// The machine cannot be assembled, or does not finish the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let binary = match &options.binary {
        Some(path) => path.clone(),
        None => built()?,
    };
    let limit = Duration::from_secs(options.limit);
    let (machine, _scratch) = machine(binary, options.keep.as_deref(), limit)?;
    if !options.hold && options.command.is_empty() {
        let count = suite::run(&machine, &Peer::built()?)?;
        for failure in &count.failures {
            println!("failed: {failure}");
        }
        println!("{} passed, {} failed", count.passed, count.failed);
        return Ok(ExitCode::from(u8::from(count.failed > 0)));
    }
    let mut dpu = machine.boot("command", options.upstream.as_deref())?;
    let (ready, took) = dpu.ready();
    eprintln!(
        "xtask: it serves after {:.1} s, {ready} s of its own clock",
        took.as_secs_f64()
    );
    let mut status = 0;
    if options.hold {
        println!(
            "http://{} for clients, http://{}/metrics",
            dpu.address, dpu.admin
        );
        std::io::stdin().read_to_end(&mut Vec::new())?;
    } else {
        let words: Vec<_> = options.command.iter().map(|word| quote(word)).collect();
        let line = format!("({})", words.join(" "));
        status = dpu.shell(&line, |line| println!("{line}"))?;
    }
    dpu.off(suite::POWER_OFF)?;
    // An exit status of a shell is a byte.
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

/// Runs the suite with a pierhead for arm64 and the example program `peer`.
///
/// # Errors
/// As [`run`].
pub(crate) fn suite_of(binary: PathBuf, peer: &Path) -> Result<TestCount> {
    let (machine, _scratch) = machine(binary, None, Duration::from_secs(600))?;
    suite::run(&machine, peer)
}

/// Required programs that this machine lacks.
pub(crate) fn missing() -> Vec<&'static str> {
    install::missing_for_machine(machine::QEMU)
}

fn built() -> Result<PathBuf> {
    let dpu =
        Dpu::find().context("nothing builds for the DPU's cores: see `cargo xtask install`")?;
    exec::output(&mut dpu.cargo("build", "pierhead"))?;
    Ok(Dpu::binary())
}

/// Assembles the machine. Returns its temporary folder with it, which must live as long as the
/// machine.
fn machine(
    binary: PathBuf,
    keep: Option<&Path>,
    limit: Duration,
) -> Result<(Machine, tempfile::TempDir)> {
    let missing = missing();
    if !missing.is_empty() {
        bail!("no {}: `cargo xtask install` brings it", missing.join(", "));
    }
    let folder = paths::virtual_machine(FOLDER)?;
    let image = Image::prepare(&folder, &machine::RECIPE)?;
    let scratch = tempfile::Builder::new().prefix("run-").tempdir_in(folder)?;
    let disk = match keep {
        Some(path) => std::path::absolute(path)?,
        None => scratch.path().join("disk"),
    };
    let machine = Machine {
        image,
        binary,
        disk,
        limit,
        logs: scratch.path().to_owned(),
    };
    machine.plug_in()?;
    Ok((machine, scratch))
}
