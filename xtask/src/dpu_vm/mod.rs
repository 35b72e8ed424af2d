//! `cargo xtask dpu-vm`: boots a simulated BlueField DPU with pierhead in QEMU, and pulls images
//! from it.
//!
//! QEMU emulates the cores of a BlueField-2; the guest has Debian's kernel, busybox, pierhead and nothing else. Its ports are
//! forwarded to loopback ones of this machine, whose own loopback it reaches as 10.0.2.2: where its upstream is.

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
    check::{aarch64::Dpu, count::Count},
    exec,
    guest::{Image, Peer, quote},
    install, place,
};
use machine::Machine;

/// What it keeps lies there.
const FOLDER: &str = "dpu-vm";

/// How to boot, and what to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// pierhead for the DPU's cores (default: built for development).
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Keep the disk in FILE, and find there what an earlier call left (default: thrown away).
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// How long one boot may take, with its command.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Say where it can be reached, and keep it up until the standard input ends.
    #[arg(long, conflicts_with = "command")]
    hold: bool,
    /// URL of its Docker Hub; an address of 127.0.0.1 means this machine (default: the suite's own registry, or the real one).
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Runs in the guest, beside a pierhead that serves; without it the suite runs, two boots of it.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Boots the machine and says with which status the command, or the suite, ended.
///
/// # Errors
/// When the machine cannot be put together, or does not come to the command's end.
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
    dpu.off(suite::OFF)?;
    // A shell's statuses are bytes.
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

/// Runs the suite with a pierhead that was built for the DPU's cores, and with the example `peer`.
///
/// # Errors
/// As [`run`].
pub(crate) fn suite_of(binary: PathBuf, peer: &Path) -> Result<Count> {
    let (machine, _scratch) = machine(binary, None, Duration::from_secs(600))?;
    suite::run(&machine, peer)
}

/// The programs that it takes and that are not here.
pub(crate) fn missing() -> Vec<&'static str> {
    install::missing_for_machine(machine::QEMU)
}

fn built() -> Result<PathBuf> {
    let dpu =
        Dpu::find().context("nothing builds for the DPU's cores: see `cargo xtask install`")?;
    exec::output(&mut dpu.cargo("build", "pierhead"))?;
    Ok(Dpu::binary())
}

/// The machine, and the folder that goes with it.
fn machine(
    binary: PathBuf,
    keep: Option<&Path>,
    limit: Duration,
) -> Result<(Machine, tempfile::TempDir)> {
    let missing = missing();
    if !missing.is_empty() {
        bail!("no {}: `cargo xtask install` brings it", missing.join(", "));
    }
    let folder = place::virtual_machine(FOLDER)?;
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
