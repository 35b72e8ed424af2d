//! Builds a program for release, with zig as its linker so that an old glibc suffices, and checks
//! its ELF header.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{
    arch::Arch,
    elf::{Elf, Glibc},
};
use crate::{exec, install, paths};

/// The glibc of Ubuntu 20.04, the oldest system that BlueField ships with.
pub(crate) const OLDEST_GLIBC: Glibc = (2, 31);

/// Symbols that glibc 2.31 has under an older version. glibc 2.34 absorbed libpthread and libdl;
/// 2.33 turned inline functions into symbols. A test program, linked against a newer glibc,
/// requires the newer version of these symbols. A release does not.
const MOVED: &[&str] = &[
    "__libc_start_main",
    "dlsym",
    "fstat64",
    "fstatat64",
    "lstat64",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setname_np",
    "pthread_setspecific",
    "stat64",
];

/// The daemon, and the name of the workspace's crate that builds it.
pub(crate) const DAEMON: &str = "pierhead";
/// The simulator of eviction policies, and the name of the workspace's crate that builds it.
pub(crate) const SIMULATOR: &str = "pierhead-replay";

/// An executable for one platform.
pub(crate) struct Program {
    pub(crate) bytes: Vec<u8>,
    pub(crate) elf: Elf,
}

/// The programs of one platform.
pub(crate) struct Programs {
    pub(crate) daemon: Program,
    /// Absent if no simulator was built beside the daemon.
    pub(crate) simulator: Option<Program>,
}

impl Programs {
    /// Opens a daemon, and the simulator if the same folder has one for the same platform.
    ///
    /// # Errors
    /// When a file is not an executable of a supported platform.
    pub(crate) fn open(daemon: &Path) -> Result<Self> {
        let simulator = daemon.with_file_name(SIMULATOR);
        let simulator = match simulator.exists() {
            true => Some(Program::open(&simulator)?),
            false => None,
        };
        let daemon = Program::open(daemon)?;
        let simulator = simulator.filter(|it| it.elf.arch == daemon.elf.arch);
        Ok(Self { daemon, simulator })
    }

    /// Builds both programs for release.
    ///
    /// # Errors
    /// As [`Program::build`].
    pub(crate) fn build(arch: Arch) -> Result<Self> {
        Ok(Self {
            daemon: Program::build(arch, DAEMON)?,
            simulator: Some(Program::build(arch, SIMULATOR)?),
        })
    }

    /// The platform of both programs.
    pub(crate) fn arch(&self) -> Arch {
        self.daemon.elf.arch
    }

    /// The daemon, then the simulator.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        [&self.daemon].into_iter().chain(&self.simulator)
    }
}

impl Program {
    /// Reads an executable.
    ///
    /// # Errors
    /// When the file is not an executable of a supported platform.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let elf = Elf::read(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self { bytes, elf })
    }

    /// Builds the program `name` of the crate `name` for release. Each program is built by itself,
    /// so that cargo does not unify the features of its dependencies with another program's.
    ///
    /// # Errors
    /// When it does not compile, or requires a newer glibc than [`OLDEST_GLIBC`].
    fn build(arch: Arch, name: &str) -> Result<Self> {
        let target = arch.target();
        let tools = paths::tools().join(install::ZIG.0).join("bin");
        let path = env::var_os("PATH").unwrap_or_default();
        // cargo-zigbuild runs zig as a module of the Python in this folder.
        let path = env::join_paths([tools.clone()].into_iter().chain(env::split_paths(&path)))?;
        let root = paths::root();
        let home = env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| env::home_dir().map(|it| it.join(".cargo")));
        // Without the paths of this machine, a build elsewhere gives the same bytes.
        let mut flags = format!("--remap-path-prefix={}=/pierhead", root.display());
        if let Some(home) = home {
            flags += &format!(" --remap-path-prefix={}=/cargo", home.display());
        }
        let (major, minor) = OLDEST_GLIBC;
        let mut build = Command::new(tools.join("cargo-zigbuild"));
        build
            .current_dir(root)
            .env("PATH", path)
            .env("RUSTFLAGS", flags)
            .args(["zigbuild", "--release", "--locked", "--quiet"])
            .args(["--package", name, "--bin", name, "--target"])
            .arg(format!("{target}.{major}.{minor}"));
        // The build time in the program is that of the last commit, on every machine.
        if env::var_os("SOURCE_DATE_EPOCH").is_none() {
            let mut git = Command::new("git");
            git.current_dir(paths::root());
            let date = exec::text(git.args(["log", "-1", "--format=%ct"]));
            build.envs(
                date.ok()
                    .map(|date| ("SOURCE_DATE_EPOCH", date.trim().to_owned())),
            );
        }
        exec::output(&mut build)?;
        let program = Self::open(&paths::target().join(target).join("release").join(name))?;
        ensure!(
            program.elf.arch == arch,
            "cargo built {name} for another platform"
        );
        let needs = program
            .elf
            .glibc()
            .with_context(|| format!("{name} is static; it must be linked against glibc"))?;
        ensure!(
            needs <= OLDEST_GLIBC,
            "{name} requires glibc {}.{}; it must run with {major}.{minor}",
            needs.0,
            needs.1
        );
        Ok(program)
    }

    /// Checks the symbols of a program that is linked against this machine's glibc. A symbol that
    /// [`OLDEST_GLIBC`] lacks fails here, before a release build would fail.
    ///
    /// # Errors
    /// The symbols that [`OLDEST_GLIBC`] is not known to have.
    pub(crate) fn would_run_on_oldest(&self) -> Result<()> {
        let unknown: Vec<_> = self
            .elf
            .newer_than(OLDEST_GLIBC)
            .filter(|(name, _)| !MOVED.contains(name))
            .map(|(name, version)| format!("{name}@{version}"))
            .collect();
        let (major, minor) = OLDEST_GLIBC;
        ensure!(
            unknown.is_empty(),
            "it requires {}: if glibc {major}.{minor} has the symbol under an older version, add it to MOVED; \
             otherwise do not use it",
            unknown.join(", ")
        );
        Ok(())
    }

    /// Names of the Debian packages with the required libraries, and the lowest version if one is
    /// known.
    ///
    /// # Errors
    /// When the program requires a library that is not part of glibc.
    pub(crate) fn libraries(&self) -> Result<Vec<(&'static str, Option<Glibc>)>> {
        let mut packages = Vec::new();
        for name in &self.elf.needed {
            let package = match name.split(".so").next().unwrap_or(name) {
                "libc" | "libm" | "libpthread" | "libdl" | "librt" | "ld-linux-x86-64"
                | "ld-linux-aarch64" | "libutil" | "libresolv" => ("libc6", self.elf.glibc()),
                "libgcc_s" => ("libgcc-s1", None),
                other => anyhow::bail!("the program requires {other}, which is not part of glibc"),
            };
            if !packages.contains(&package) {
                packages.push(package);
            }
        }
        Ok(packages)
    }
}
