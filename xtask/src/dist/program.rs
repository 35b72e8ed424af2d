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
