//! Cross-compiles for arm64 and runs the result under QEMU's user-mode emulation.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
};

use anyhow::{Result, bail};

use crate::{dist::Arch, exec, place};

/// The cores of a BlueField-2. Not the emulator's own processor: it claims `dc cvap`, which it knows only since 8.1.
const CPU: &str = "cortex-a72";
/// Debian's libraries for them.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// What builds and what runs.
pub(crate) struct Dpu {
    linker: PathBuf,
    emulator: PathBuf,
}

impl Dpu {
    /// Both, if they are here.
    pub(crate) fn find() -> Option<Self> {
        Some(Self {
            linker: place::find("aarch64-linux-gnu-gcc")?,
            emulator: place::find("qemu-aarch64-static")?,
        })
    }

    /// `cargo build` or `cargo test` of a package for it.
    pub(crate) fn cargo(&self, command: &str, package: &str) -> Command {
        let target = Arch::Arm64.target();
        let variable = target.to_uppercase().replace('-', "_");
        let runner = format!("{} -L {LIBRARIES} -cpu {CPU}", self.emulator.display());
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(place::root())
            .env(format!("CARGO_TARGET_{variable}_LINKER"), &self.linker)
            .env(format!("CARGO_TARGET_{variable}_RUNNER"), runner)
            .env(format!("CC_{}", target.replace('-', "_")), &self.linker)
            .args(["--config", "profile.dev.debug=false"])
            .args([command, "--quiet", "--package", package, "--target", target]);
        cargo
    }

    /// What `cargo("build", "pierhead")` makes.
    pub(crate) fn binary() -> PathBuf {
        place::target()
            .join(Arch::Arm64.target())
            .join("debug/pierhead")
    }

    /// What the built program calls itself.
    ///
    /// # Errors
    /// When it does not run.
    pub(super) fn version(&self) -> Result<String> {
        let version = exec::text(Command::new(self.program()?).arg("--version"))?;
        if !version.starts_with("pierhead ") {
            bail!("pierhead --version says {version:?}");
        }
        Ok(version.trim().to_owned())
    }

    /// A program of this machine that becomes the built one, emulated.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn program(&self) -> Result<PathBuf> {
        let folder = place::target().join(Arch::Arm64.target());
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
