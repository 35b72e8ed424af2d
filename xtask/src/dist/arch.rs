//! The two platforms of a release, with their names in Debian, OCI and Rust.

use anyhow::{Result, bail};

/// A CPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// Both platforms, in the order of the image index.
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// The name in Debian and in OCI images.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Name of the Rust target.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The platform of an ELF file, by its machine number.
    ///
    /// # Errors
    /// When the file is for neither platform.
    pub(crate) fn of_machine(machine: u16) -> Result<Self> {
        match machine {
            62 => Ok(Self::Amd64),
            183 => Ok(Self::Arm64),
            other => bail!("a program for machine {other} of ELF's list"),
        }
    }

    /// The platform of this machine, if it is one of the two.
    pub(crate) fn of_this_machine() -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|arch| arch.target().starts_with(std::env::consts::ARCH))
    }
}
