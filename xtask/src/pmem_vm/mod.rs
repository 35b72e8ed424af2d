//! `cargo xtask pmem-vm`: boots a temporary virtual machine with an emulated NVDIMM (persistent
//! memory), and runs tests in it.
//!
//! The guest has no disk image. The guest mounts the root folder of the host read-only, with a
//! writable overlay in memory, so that it can run every program of the host. The guest also mounts
//! the build folder, and may write to it. `/mnt/pmem` is a file system on the NVDIMM with DAX,
//! where `MAP_SYNC` works. `/mnt/disk` is the same kind of file system without DAX.

mod machine;
mod suite;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, bail};

use crate::{
    check::{
        programs::{self, Program},
        test_count::TestCount,
    },
    exec,
    guest::{ConsoleOutput, Image, quote},
    install, paths,
};
use machine::Machine;

/// Package whose tests all run in the guest.
const PACKAGE: &str = "pierhead-pmem";
/// Tests of other packages that run in the guest: the fast tier on persistent memory, and the
/// daemon with such a tier.
const OTHER_TESTS: [(&str, &str); 2] = [
    ("pierhead-cache", "region"),
    (suite::THREE_BOOT_TEST.0, suite::THREE_BOOT_TEST.1),
];

/// Folder of the machine's files, below xtask's folder for virtual machines.
const FOLDER: &str = "pmem-vm";

/// Flags of `cargo xtask pmem-vm`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run the guest on the host's CPU by KVM instead of emulation, which is faster.
    ///
    /// KVM is off by default: on a host that is itself a virtual machine, a guest may start and
    /// then hang.
    #[arg(long)]
    kvm: bool,
    /// Keep the NVDIMM in FILE, and use the contents that an earlier call left (default: a
    /// temporary NVDIMM).
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Size of a new NVDIMM.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    size: u64,
    /// Time limit of one boot with its command.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Kill the second boot of the suite after this number of commits.
    #[arg(long, value_name = "COMMITS", default_value_t = 150)]
    cut: u64,
    /// Command to run in the guest, in the current folder; without a command, the test suite runs,
    /// with three boots.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kvm: false,
            keep: None,
            size: 512,
            limit: 600,
            cut: 150,
            command: Vec::new(),
        }
    }
}

/// Boots the machine, and returns the exit status of the command or of the suite.
///
/// # Errors
/// The machine cannot be assembled, or does not finish the command.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.command.is_empty() {
        let mut programs = programs::build_of(&[PACKAGE])?;
        for (package, test) in OTHER_TESTS {
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
    while let ConsoleOutput::Line(line) = boot.listen()? {
        println!("{line}");
    }
    let ended = boot.end()?;
    eprintln!(
        "xtask: the guest was ready after {} s of its clock, off after {:.1} s",
        ended.ready,
        ended.took.as_secs_f64()
    );
    // An exit status of a shell is a byte.
    Ok(ExitCode::from(
        u8::try_from(ended.status).unwrap_or(u8::MAX),
    ))
}

/// Path of the daemon: `PIERHEAD_BIN` as in the tests, or the program that cargo builds.
fn daemon() -> Result<PathBuf> {
    if let Some(path) = env::var_os("PIERHEAD_BIN") {
        return Ok(std::path::absolute(path)?);
    }
    let mut build = exec::cargo();
    exec::output(build.args(["build", "--package", "pierhead"]))?;
    Ok(paths::target().join("debug/pierhead"))
}

/// Path of the example program that writes values and verifies them after a kill.
fn survivor() -> Result<PathBuf> {
    exec::output(exec::cargo().args(["build", "--package", PACKAGE, "--example", "survivor"]))?;
    Ok(paths::target().join("debug/examples/survivor"))
}

/// Runs the suite with the test programs of `programs` that belong in the guest. `survivor` is the
/// path of the example program.
///
/// # Errors
/// As [`run`].
pub(crate) fn suite_of(programs: &[Program], daemon: &Path, survivor: &Path) -> Result<TestCount> {
    suite(&Options::default(), programs, daemon, survivor)
}

fn suite(
    options: &Options,
    programs: &[Program],
    daemon: &Path,
    survivor: &Path,
) -> Result<TestCount> {
    let is_other = |it: &Program| {
        let mut others = OTHER_TESTS.iter();
        others.any(|(package, test)| it.name == format!("{package}::{test}"))
    };
    let wanted: Vec<_> = programs
        .iter()
        .filter(|it| it.package == PACKAGE || is_other(it))
        .collect();
    for (package, _) in OTHER_TESTS.into_iter().chain([(PACKAGE, "")]) {
        if !wanted.iter().any(|it| it.package == package) {
            bail!("there is no test program of {package}");
        }
    }
    let (machine, _scratch) = machine(options)?;
    suite::run(&machine, &wanted, (survivor, daemon), options.cut)
}

/// Assembles the machine. Returns its temporary folder with it, which must live as long as the
/// machine.
fn machine(options: &Options) -> Result<(Machine, tempfile::TempDir)> {
    let image = prepare()?;
    let scratch = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(paths::virtual_machine(FOLDER)?)?;
    let nvdimm = match &options.keep {
        Some(path) => std::path::absolute(path)?,
        None => scratch.path().join("nvdimm"),
    };
    let machine = Machine {
        image,
        kvm: options.kvm,
        limit: Duration::from_secs(options.limit),
        share: paths::target(),
        logs: scratch.path().to_owned(),
        disk: scratch.path().join("disk"),
        nvdimm,
    };
    machine.plug_in(options.size << 20)?;
    Ok((machine, scratch))
}

/// Required programs that this machine lacks.
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
    Image::prepare(&paths::virtual_machine(FOLDER)?, &machine::RECIPE)
}
