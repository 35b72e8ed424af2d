//! Cross-compiles pierhead and its tests for arm64, and runs them under QEMU's user-mode emulation.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
};

use anyhow::{Result, bail};

use crate::{dist::Arch, exec, paths};

/// The CPU that QEMU emulates: the cores of a BlueField-2. QEMU's own CPU model `max` reports the
/// instruction `dc cvap`, which QEMU executes only since version 8.1.
const CPU: &str = "cortex-a72";
/// Folder of Debian's arm64 libraries.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The cross-compiler and the emulator for arm64.
pub(crate) struct Dpu {
    linker: PathBuf,
    emulator: PathBuf,
}

impl Dpu {
    /// Finds the cross-compiler and the emulator. `None` if one is not installed.
    pub(crate) fn find() -> Option<Self> {
        Some(Self {
            linker: paths::find("aarch64-linux-gnu-gcc")?,
            emulator: paths::find("qemu-aarch64-static")?,
        })
    }

    /// Runs `cargo build` or `cargo test` of a package for arm64.
    pub(crate) fn cargo(&self, command: &str, package: &str) -> Command {
        let target = Arch::Arm64.target();
        let variable = target.to_uppercase().replace('-', "_");
        let runner = format!("{} -L {LIBRARIES} -cpu {CPU}", self.emulator.display());
        let mut cargo = exec::cargo();
        cargo
            .env(format!("CARGO_TARGET_{variable}_LINKER"), &self.linker)
            .env(format!("CARGO_TARGET_{variable}_RUNNER"), runner)
            .env(format!("CC_{}", target.replace('-', "_")), &self.linker)
            .args(["--config", "profile.dev.debug=false"])
            .args([command, "--quiet", "--package", package, "--target", target]);
        cargo
    }

    /// Path of the program that `cargo("build", "pierhead")` builds.
    pub(crate) fn binary() -> PathBuf {
        paths::target()
            .join(Arch::Arm64.target())
            .join("debug/pierhead")
    }

    /// The version that the built program prints.
    ///
    /// # Errors
    /// The program does not run.
    pub(super) fn version(&self) -> Result<String> {
        let version = exec::text(Command::new(self.program()?).arg("--version"))?;
        if !version.starts_with("pierhead ") {
            bail!("pierhead --version says {version:?}");
        }
        Ok(version.trim().to_owned())
    }

    /// A script for this machine that runs the built program under emulation.
    ///
    /// # Errors
    /// The script cannot be written.
    pub(super) fn program(&self) -> Result<PathBuf> {
        let folder = paths::target().join(Arch::Arm64.target());
        let program = folder.join("pierhead-emulated");
        let text = format!(
            "#!/bin/sh\nexec '{}' -L {LIBRARIES} -cpu {CPU} '{}' \"$@\"\n",
            self.emulator.display(),
            Self::binary().display()
        );
        fs::write(&program, text)?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        Ok(program)
    }
}
