//! `cargo xtask dist`: builds the programs, the container image and the Debian packages of a
//! release, reproducibly.

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

use crate::{apt::Apt, console::say, exec, install, paths};
pub(crate) use arch::Arch;
use licenses::Licenses;
use linked::LinkedCrates;
pub(crate) use oci::PORT;
use program::{DAEMON, Program, Programs, SIMULATOR};
pub(crate) use rootfs::{DATA, PROGRAM};

/// Flags of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write the release into this folder instead of `target/dist`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Package this daemon, and the file `pierhead-replay` beside it if there is one, instead of
    /// building both for each platform. Give the flag once per platform. With this flag, `dist`
    /// checks neither the glibc version nor the size of the image.
    #[arg(long = "program", value_name = "FILE")]
    programs: Vec<PathBuf>,
}

/// Description of pierhead in the package and in the image.
const DESCRIPTION: &str = "pull-through proxy and cache for container images";

/// Builds a release.
///
/// # Errors
/// When something cannot be built or fetched, or the result fails a check.
pub(crate) fn run(options: &Options) -> Result<()> {
    install::for_dist(options.programs.is_empty())?;
    let mut programs = Vec::new();
    for path in &options.programs {
        programs.push(Programs::open(path)?);
    }
    let trial = !programs.is_empty();
    if !trial {
        for arch in Arch::ALL {
            say!("cargo zigbuild --release --target {}", arch.target());
            programs.push(Programs::build(arch)?);
        }
    }
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| paths::target().join("dist"));
    let bounded: &[Arch] = if trial { &[] } else { &Arch::ALL };
    assemble(programs, &out, bounded, oci::MAX_RELEASE)
}

/// Packages test builds, as `cargo xtask dist --program` does. One of the daemons must be for the
/// architecture of this machine.
///
/// # Errors
/// As [`run`].
pub(crate) fn trial(daemons: &[&Path], out: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let (mut all, mut stripped_archs) = (Vec::new(), Vec::new());
    for path in daemons {
        let mut programs = Programs::open(path)?;
        for program in programs.iter() {
            program.would_run_on_oldest()?;
        }
        // Two thirds of an unoptimised program are names and lines of functions that the release
        // inlines. Without these names and lines, the size shows the growth of the code itself.
        if Some(programs.arch()) == Arch::of_this_machine() {
            let stripped = scratch.path().join("stripped");
            if strip(path, &stripped) {
                programs.daemon = Program::open(&stripped)?;
                // The release is smaller: its code is optimised.
                stripped_archs.push(programs.arch());
            }
            let simulator = path.with_file_name(SIMULATOR);
            if programs.simulator.is_some() && strip(&simulator, &stripped) {
                programs.simulator = Some(Program::open(&stripped)?);
            }
        }
        all.push(programs);
    }
    assemble(all, out, &stripped_archs, oci::MAX_UNOPTIMISED)
}

/// Writes a copy of a program without symbols. Returns `false` if `strip` fails or is missing.
fn strip(program: &Path, out: &Path) -> bool {
    let mut strip = Command::new("strip");
    strip.arg("--strip-all").arg("-o").arg(out).arg(program);
    exec::output(&mut strip).is_ok()
}

/// The programs that [`trial`] needs and that this machine lacks.
pub(crate) fn missing_for_trial() -> Vec<&'static str> {
    let mut missing: Vec<_> = ["apt-get", "dpkg", "dpkg-deb"]
        .into_iter()
        .filter(|program| paths::find(program).is_none())
        .collect();
    if !paths::tools().join(install::CYCLONEDX.0).exists() {
        missing.push(install::CYCLONEDX.0);
    }
    missing
}

/// Name of the image's folder in the output of [`trial`] and [`run`].
pub(crate) const IMAGE: &str = "image";

/// Writes a release. The image of each platform in `bounded` must have fewer than `max` compressed
/// bytes.
#[expect(
    clippy::disallowed_methods,
    reason = "a build artifact, which the next run makes again after a crash"
)]
fn assemble(mut programs: Vec<Programs>, out: &Path, bounded: &[Arch], max: u64) -> Result<()> {
    programs.sort_by_key(Programs::arch);
    ensure!(
        programs.windows(2).all(|it| it[0].arch() != it[1].arch()),
        "two daemons for one platform: give one --program per platform"
    );
    let version = env!("CARGO_PKG_VERSION");
    let partial = out.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    let apt = Apt::prepare(&paths::downloads().join("apt"), &Arch::ALL.map(Arch::name))
        .context("get the lists of Debian's packages")?;
    let common = deb::Common {
        version: version.to_owned(),
        manual: output_of_daemon(&programs, &partial, &["man"])?,
        completions: output_of_daemon(&programs, &partial, &["completions", "bash"])?,
    };
    let mut roots = Vec::new();
    let mut bills = Vec::new();
    for of_arch in &programs {
        let arch = of_arch.arch();
        let path = |program: &str, extension: &str| {
            let arch = arch.name();
            partial.join(format!("{program}_{version}_{arch}{extension}"))
        };
        let mut write = |name: &str, program: &Program, parts: &[rootfs::Part]| {
            let linked = LinkedCrates::of(arch, name)?;
            let licenses = Licenses::of(&linked)?;
            let bill = sbom::of(&linked, arch, &program.bytes, parts)?;
            let bill = format!("{bill:#}\n").into_bytes();
            bills.push(path(name, ".cdx.json"));
            fs::write(path(name, ".cdx.json"), &bill)?;
            fs::write(path(name, ".licenses.txt"), &licenses.crates)?;
            executable(&path(name, ""), &program.bytes)?;
            anyhow::Ok((licenses, bill))
        };
        let rootfs = rootfs::of(&apt, &of_arch.daemon)?;
        let (licenses, bill) = write(DAEMON, &of_arch.daemon, &rootfs.parts)?;
        let rootfs = rootfs.with_licenses(&licenses);
        let simulator = match &of_arch.simulator {
            Some(program) => {
                let (licenses, bill) = write(SIMULATOR, program, &[])?;
                Some(deb::Simulator {
                    program,
                    licenses,
                    bill,
                })
            }
            None => None,
        };
        let package = path(DAEMON, ".deb");
        let bytes = deb::package(
            &common,
            &of_arch.daemon,
            &bill,
            &licenses,
            simulator.as_ref(),
        )?;
        fs::write(&package, bytes)?;
        deb::examine(&package, arch, simulator.is_some())
            .with_context(|| package.display().to_string())?;
        roots.push(rootfs);
    }
    sbom::examine(&bills.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    let platforms: Vec<_> = programs
        .iter()
        .zip(&roots)
        .map(|(of_arch, rootfs)| oci::Platform {
            arch: of_arch.arch().name(),
            rootfs,
        })
        .collect();
    let sizes = oci::write(&partial.join(IMAGE), version, &platforms)?;
    oci::examine(&partial.join(IMAGE), platforms.len())?;
    for (of_arch, size) in programs.iter().zip(sizes) {
        let arch = of_arch.arch();
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
            "{} is not the output of cargo xtask dist: it is not overwritten",
            out.display()
        );
        fs::remove_dir_all(out)?;
    }
    fs::rename(&partial, out)?;
    say!("{}", out.display());
    Ok(())
}

/// Runs the daemon for this machine and returns its output.
fn output_of_daemon(programs: &[Programs], scratch: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let here = programs
        .iter()
        .find(|it| Some(it.arch()) == Arch::of_this_machine())
        .context("no daemon is for this machine; the daemon prints its manual page")?;
    let path = scratch.join("daemon");
    executable(&path, &here.daemon.bytes)?;
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

/// Writes the checksums of all files of a folder, as `sha256sum --check` reads them.
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
