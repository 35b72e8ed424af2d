//! `cargo xtask pmem-vm`: boots a temporary virtual machine with an emulated NVDIMM (persistent
//! memory).
//!
//! The guest has no disk image: it sees the host's root, read only below a memory overlay, so that
//! every program of the host is there, and the build folder, which it may write. `/mnt/pmem` is on the
//! NVDIMM with DAX, where `MAP_SYNC` works; `/mnt/disk` is the same kind of file system without.

mod machine;
mod suite;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Result, bail};

use crate::{
    check::{
        count::Count,
        programs::{self, Program},
    },
    exec,
    guest::{Image, Said, quote},
    install, place,
};
use machine::Machine;

/// Whose tests run in the guest, all of them.
const PACKAGE: &str = "pierhead-pmem";
/// Of other packages: the tier on a region, and the daemon with one.
const ALSO: [(&str, &str); 2] = [
    ("pierhead-cache", "region"),
    (suite::STAGED.0, suite::STAGED.1),
];

/// What it keeps lies there.
const FOLDER: &str = "pmem-vm";

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
    /// Kill the suite's second boot after so many commits.
    #[arg(long, value_name = "COMMITS", default_value_t = 150)]
    cut: u64,
    /// Runs in the guest, in the current folder; without it the suite runs, three boots of it.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kvm: false,
            keep: None,
            size: 512,
            limit: 300,
            cut: 150,
            command: Vec::new(),
        }
    }
}

/// Boots the machine and says with which status the command, or the suite, ended.
///
/// # Errors
/// When the machine cannot be put together, or does not come to the command's end.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.command.is_empty() {
        let mut programs = programs::build_of(&[PACKAGE])?;
        for (package, test) in ALSO {
            programs.extend(programs::build_one(package, test)?);
        }
        let daemon = daemon()?;
        let count = suite(options, &programs, &daemon, &survivor()?)?;
        for failure in &count.failures {
            println!("failed: {failure}");
        }
        println!("{} passed, {} failed", count.passed, count.failed);
        return Ok(ExitCode::from(u8::from(count.failed > 0)));
    }
    let (machine, _scratch) = machine(options)?;
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

/// `PIERHEAD_BIN`, as the tests take it, or what cargo builds.
fn daemon() -> Result<PathBuf> {
    if let Some(path) = env::var_os("PIERHEAD_BIN") {
        return Ok(std::path::absolute(path)?);
    }
    let mut build = Command::new("cargo");
    exec::output(
        build
            .current_dir(place::root())
            .args(["build", "--package", "pierhead"]),
    )?;
    Ok(place::target().join("debug/pierhead"))
}

/// The example program that writes and finds changes.
fn survivor() -> Result<PathBuf> {
    exec::output(Command::new("cargo").current_dir(place::root()).args([
        "build",
        "--package",
        PACKAGE,
        "--example",
        "survivor",
    ]))?;
    Ok(place::target().join("debug/examples/survivor"))
}

/// Runs the suite with those of `programs` that belong in the guest; `survivor` is the example of that name.
///
/// # Errors
/// As [`run`].
pub(crate) fn suite_of(programs: &[Program], daemon: &Path, survivor: &Path) -> Result<Count> {
    suite(&Options::default(), programs, daemon, survivor)
}

fn suite(options: &Options, programs: &[Program], daemon: &Path, survivor: &Path) -> Result<Count> {
    let also = |it: &Program| {
        let mut also = ALSO.iter();
        also.any(|(package, test)| it.name == format!("{package}::{test}"))
    };
    let wanted: Vec<_> = programs
        .iter()
        .filter(|it| it.package == PACKAGE || also(it))
        .collect();
    for (package, _) in ALSO.into_iter().chain([(PACKAGE, "")]) {
        if !wanted.iter().any(|it| it.package == package) {
            bail!("there is no test program of {package}");
        }
    }
    let (machine, _scratch) = machine(options)?;
    suite::run(&machine, &wanted, (survivor, daemon), options.cut)
}

/// The machine, and the folder that goes with it.
fn machine(options: &Options) -> Result<(Machine, tempfile::TempDir)> {
    let image = prepare()?;
    let scratch = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(place::virtual_machine(FOLDER)?)?;
    let nvdimm = match &options.keep {
        Some(path) => std::path::absolute(path)?,
        None => scratch.path().join("nvdimm"),
    };
    let machine = Machine {
        image,
        kvm: options.kvm,
        limit: Duration::from_secs(options.limit),
        share: place::target(),
        logs: scratch.path().to_owned(),
        disk: scratch.path().join("disk"),
        nvdimm,
    };
    machine.plug_in(options.size << 20)?;
    Ok((machine, scratch))
}

/// The programs that it takes and that are not here.
pub(crate) fn missing() -> Vec<&'static str> {
    install::missing_for_machine(machine::QEMU)
}

fn prepare() -> Result<Image> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the guest is x86-64 and runs the host's programs: so must the host be");
    }
    let missing = missing();
    if !missing.is_empty() {
        bail!("no {}: `cargo xtask install` brings it", missing.join(", "));
    }
    Image::prepare(&place::virtual_machine(FOLDER)?, &machine::RECIPE)
}
