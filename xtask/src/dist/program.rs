//! The program for a platform: built with zig as its linker, so that an old glibc will do, and looked at.

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
use crate::{exec, install, place};

/// Of Ubuntu 20.04, the oldest system that comes with a BlueField.
pub(crate) const OLDEST: Glibc = (2, 31);

/// What glibc 2.31 has too, under an older version: 2.34 took libpthread and libdl in, 2.33 made functions of what were
/// inline ones. A program that is linked against a newer glibc (as tests are; the release is not) asks for the new one.
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

/// What is packaged for a platform.
pub(crate) struct Program {
    pub(crate) bytes: Vec<u8>,
    pub(crate) elf: Elf,
}

impl Program {
    /// One that was built.
    ///
    /// # Errors
    /// When it is no program.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let elf = Elf::read(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self { bytes, elf })
    }

    /// Builds it for release, and holds it against [`OLDEST`].
    ///
    /// # Errors
    /// When it does not compile, or asks for a newer glibc.
    pub(crate) fn build(arch: Arch) -> Result<Self> {
        let target = arch.target();
        let tools = place::tools().join(install::ZIG.0).join("bin");
        let path = env::var_os("PATH").unwrap_or_default();
        // zig is a module of that Python.
        let path = env::join_paths([tools.clone()].into_iter().chain(env::split_paths(&path)))?;
        let root = place::root();
        let home = env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| env::home_dir().map(|it| it.join(".cargo")));
        // Where it was built is nobody's business, and would make it another program elsewhere.
        let mut flags = format!("--remap-path-prefix={}=/pierhead", root.display());
        if let Some(home) = home {
            flags += &format!(" --remap-path-prefix={}=/cargo", home.display());
        }
        let (major, minor) = OLDEST;
        let mut build = Command::new(tools.join("cargo-zigbuild"));
        build
            .current_dir(root)
            .env("PATH", path)
            .env("RUSTFLAGS", flags)
            .args(["zigbuild", "--release", "--locked", "--quiet"])
            .args(["--package", "pierhead", "--bin", "pierhead", "--target"])
            .arg(format!("{target}.{major}.{minor}"));
        // By a clock before the sources it is wrong for certain.
        if env::var_os("SOURCE_DATE_EPOCH").is_none() {
            let mut git = Command::new("git");
            git.current_dir(place::root());
            let date = exec::text(git.args(["log", "-1", "--format=%ct"]));
            build.envs(
                date.ok()
                    .map(|date| ("SOURCE_DATE_EPOCH", date.trim().to_owned())),
            );
        }
        exec::output(&mut build)?;
        let program = Self::open(&place::target().join(target).join("release/pierhead"))?;
        ensure!(
            program.elf.arch == arch,
            "cargo built it for something else"
        );
        let needs = program
            .elf
            .glibc()
            .context("it needs no glibc, yet is not meant to be static")?;
        ensure!(
            needs <= OLDEST,
            "it needs glibc {}.{}, and must run on {major}.{minor}",
            needs.0,
            needs.1
        );
        Ok(program)
    }

    /// Holds one that was linked against this machine's glibc against [`OLDEST`], as far as names can tell: what
    /// only newer ones have must not wait for the day of a release.
    ///
    /// # Errors
    /// What it needs and 2.31 is not known to have.
    pub(crate) fn would_run_on_oldest(&self) -> Result<()> {
        let unknown: Vec<_> = self
            .elf
            .newer_than(OLDEST)
            .filter(|(name, _)| !MOVED.contains(name))
            .map(|(name, version)| format!("{name}@{version}"))
            .collect();
        let (major, minor) = OLDEST;
        ensure!(
            unknown.is_empty(),
            "it needs {}: if glibc {major}.{minor} has that under an older version, say so in MOVED, else do without",
            unknown.join(", ")
        );
        Ok(())
    }

    /// Names of the Debian packages with the libraries that it needs, with a version where one is known.
    ///
    /// # Errors
    /// A library of none that pierhead is meant to need.
    pub(crate) fn libraries(&self) -> Result<Vec<(&'static str, Option<Glibc>)>> {
        let mut packages = Vec::new();
        for name in &self.elf.needed {
            let package = match name.split(".so").next().unwrap_or(name) {
                "libc" | "libm" | "libpthread" | "libdl" | "librt" | "ld-linux-x86-64"
                | "ld-linux-aarch64" | "libutil" | "libresolv" => ("libc6", self.elf.glibc()),
                "libgcc_s" => ("libgcc-s1", None),
                other => anyhow::bail!("it needs {other}, which is no part of glibc"),
            };
            if !packages.contains(&package) {
                packages.push(package);
            }
        }
        Ok(packages)
    }
}
