//! `cargo xtask pmem-vm`: a throw-away virtual machine with an emulated NVDIMM.
//!
//! The guest has no disk image: it sees the host's root, read only below a memory overlay, so that
//! every program of the host is there, and the build folder, which it may write. `/mnt/pmem` is on the
//! NVDIMM with DAX, where `MAP_SYNC` works; `/mnt/disk` is the same kind of file system without.

mod image;
mod machine;
mod modules;
mod newc;

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, bail};

use crate::{install, place};
use image::Image;
use machine::{Machine, Said, quote};

/// How to boot, and what to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run on the processor instead of QEMU's emulator: faster, where /dev/kvm works.
    ///
    /// It is not tried by itself: where the host is a virtual machine, too, a guest may hang that the
    /// host's kernel was willing to start.
    #[arg(long)]
    kvm: bool,
    /// Keep the NVDIMM in FILE, and find there what an earlier call left (default: thrown away).
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Size of a new NVDIMM.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    size: u64,
    /// How long one boot may take, with its command.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// Runs in the guest, in the current folder.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Boots the machine and says with which status the command ended.
///
/// # Errors
/// When the machine cannot be put together, or does not come to the command's end.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let scratch = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(place::virtual_machine()?)?;
    let machine = Machine {
        image: prepare()?,
        nvdimm: match &options.keep {
            Some(path) => std::path::absolute(path)?,
            None => scratch.path().join("nvdimm"),
        },
        kvm: options.kvm,
        limit: Duration::from_secs(options.limit),
        share: place::target(),
        logs: scratch.path().to_owned(),
    };
    machine.plug_in(options.size << 20)?;
    let words: Vec<_> = options.command.iter().map(|word| quote(word)).collect();
    let mut boot = machine.boot("command", &env::current_dir()?, &words.join(" "))?;
    while let Said::Line(line) = boot.listen()? {
        println!("{line}");
    }
    let ended = boot.end()?;
    eprintln!(
        "xtask: the guest was ready after {} s of its clock, off after {:.1} s",
        ended.ready,
        ended.took.as_secs_f64()
    );
    // A shell's statuses are bytes.
    Ok(ExitCode::from(
        u8::try_from(ended.status).unwrap_or(u8::MAX),
    ))
}

fn prepare() -> Result<Image> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the guest is x86-64 and runs the host's programs: so must the host be");
    }
    let missing = install::missing_for_machine();
    if !missing.is_empty() {
        bail!("no {}: `cargo xtask install` brings it", missing.join(", "));
    }
    Image::prepare(&place::virtual_machine()?)
}
