//! `cargo xtask dist`: what is released, put together without a daemon, the same bytes from the same parts.

mod arch;
mod deb;
mod elf;
mod licenses;
mod linked;
mod oci;
mod program;
mod rootfs;
mod sbom;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::{apt::Apt, console::say, exec, install, place};
pub(crate) use arch::Arch;
use licenses::Licenses;
use linked::Linked;
pub(crate) use oci::PORT;
use program::Program;
pub(crate) use rootfs::{DATA, PROGRAM};

/// What is released.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where to put it, instead of `dist` in the build folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Package this program instead of building one for each platform (repeatable, one a platform). It is held
    /// neither against the old glibc nor against the size of the image.
    #[arg(long = "program", value_name = "FILE")]
    programs: Vec<PathBuf>,
}

/// One line about pierhead, for whoever lists packages.
const DESCRIPTION: &str = "pull-through proxy and cache for container images";

/// Builds all of it.
///
/// # Errors
/// When something cannot be built or fetched, or what came out is not what is promised of it.
pub(crate) fn run(options: &Options) -> Result<()> {
    install::for_dist(options.programs.is_empty())?;
    let mut programs = Vec::new();
    for path in &options.programs {
        programs.push(Program::open(path)?);
    }
    let trial = !programs.is_empty();
    if !trial {
        for arch in Arch::ALL {
            say!("cargo zigbuild --release --target {}", arch.target());
            programs.push(Program::build(arch)?);
        }
    }
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| place::target().join("dist"));
    let bounded: &[Arch] = if trial { &[] } else { &Arch::ALL };
    assemble(programs, &out, bounded, oci::MAX_RELEASE)
}

/// As `cargo xtask dist --program`, for tests: of programs of which one was built for this machine.
///
/// # Errors
/// As [`run`].
pub(crate) fn trial(programs: &[&Path], out: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut stripped, mut stripped_archs) = (Vec::new(), Vec::new());
    for path in programs {
        let program = Program::open(path)?;
        program.would_run_on_oldest()?;
        // Two thirds of an unoptimised program are names and lines of functions that the release inlines. Without them
        // the growth of the code itself is seen.
        let file = scratch.path().join("program");
        let mut strip = Command::new("strip");
        strip.arg("--strip-all").arg("-o").arg(&file).arg(path);
        if Some(program.elf.arch) == Arch::here() && exec::output(&mut strip).is_ok() {
            // The release is smaller: its code is optimised.
            stripped_archs.push(program.elf.arch);
            stripped.push(Program::open(&file)?);
        } else {
            stripped.push(program);
        }
    }
    assemble(stripped, out, &stripped_archs, oci::MAX_UNOPTIMISED)
}

/// What [`trial`] needs and is not here.
pub(crate) fn missing_for_trial() -> Vec<&'static str> {
    let mut missing: Vec<_> = ["apt-get", "dpkg", "dpkg-deb"]
        .into_iter()
        .filter(|program| place::find(program).is_none())
        .collect();
    if !place::tools().join(install::CYCLONEDX.0).exists() {
        missing.push(install::CYCLONEDX.0);
    }
    missing
}

/// Where [`trial`] and [`run`] put the image in their folder.
pub(crate) const IMAGE: &str = "image";

/// `bounded`: the platforms whose image must have less than `max` compressed bytes.
fn assemble(mut programs: Vec<Program>, out: &Path, bounded: &[Arch], max: u64) -> Result<()> {
    programs.sort_by_key(|it| it.elf.arch);
    ensure!(
        programs
            .windows(2)
            .all(|it| it[0].elf.arch != it[1].elf.arch),
        "two programs for one platform"
    );
    let version = env!("CARGO_PKG_VERSION");
    let partial = out.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    let apt = Apt::prepare(&place::downloads().join("apt"), &Arch::ALL.map(Arch::name))
        .context("ask Debian for its packages")?;
    let common = deb::Common {
        version: version.to_owned(),
        manual: said(&programs, &partial, &["man"])?,
        completions: said(&programs, &partial, &["completions", "bash"])?,
    };
    let mut roots = Vec::new();
    let mut bills = Vec::new();
    for program in &programs {
        let arch = program.elf.arch;
        let name = arch.name();
        let linked = Linked::of(arch)?;
        let licenses = Licenses::of(&linked)?;
        let rootfs = rootfs::of(&apt, program, &licenses)?;
        let bill = sbom::of(&linked, arch, &program.bytes, &rootfs.parts)?;
        let bill = format!("{bill:#}\n").into_bytes();
        let path = partial.join(format!("pierhead_{version}_{name}.cdx.json"));
        fs::write(&path, &bill)?;
        bills.push(path);
        let package = partial.join(format!("pierhead_{version}_{name}.deb"));
        fs::write(&package, deb::package(&common, program, &bill, &licenses)?)?;
        deb::examine(&package, arch).with_context(|| package.display().to_string())?;
        let path = partial.join(format!("pierhead_{version}_{name}.licenses.txt"));
        fs::write(path, &licenses.crates)?;
        executable(
            &partial.join(format!("pierhead_{version}_{name}")),
            &program.bytes,
        )?;
        roots.push(rootfs);
    }
    sbom::examine(&bills.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    let platforms: Vec<_> = programs
        .iter()
        .zip(&roots)
        .map(|(program, rootfs)| oci::Platform {
            arch: program.elf.arch.name(),
            rootfs,
        })
        .collect();
    let sizes = oci::write(&partial.join(IMAGE), version, &platforms)?;
    oci::examine(&partial.join(IMAGE), platforms.len())?;
    for (program, size) in programs.iter().zip(sizes) {
        let arch = program.elf.arch;
        say!("{}: an image of {size} bytes", arch.name());
        if bounded.contains(&arch) && size >= max {
            bail!(
                "the image for {} has {size} bytes; it must have fewer than {max}",
                arch.name()
            );
        }
    }
    sums(&partial)?;
    if out.exists() {
        ensure!(
            out.join(SUMS).exists(),
            "{} is something else: it will not be overwritten",
            out.display()
        );
        fs::remove_dir_all(out)?;
    }
    fs::rename(&partial, out)?;
    say!("{}", out.display());
    Ok(())
}

/// What the program for this machine prints.
fn said(programs: &[Program], scratch: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let here = programs
        .iter()
        .find(|it| Some(it.elf.arch) == Arch::here())
        .context("none of the programs runs here, and its manual is printed by itself")?;
    let path = scratch.join("pierhead");
    executable(&path, &here.bytes)?;
    let output = exec::output(Command::new(&path).args(arguments));
    fs::remove_file(path)?;
    output
}

fn executable(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

const SUMS: &str = "SHA256SUMS";

/// Writes what `sha256sum --check` reads, over every file of a folder.
fn sums(folder: &Path) -> Result<()> {
    let (mut lines, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(inner) = folders.pop() {
        for entry in inner.read_dir()? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let hash = hex(&Sha256::digest(fs::read(&path)?));
            let name = path.strip_prefix(folder)?.to_string_lossy();
            lines.push((name.into_owned(), hash));
        }
    }
    lines.sort();
    let text: String = lines
        .iter()
        .map(|(name, hash)| format!("{hash}  {name}\n"))
        .collect();
    Ok(fs::write(folder.join(SUMS), text)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
