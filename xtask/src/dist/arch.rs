//! The two platforms that are released, in everybody's words.

use anyhow::{Result, bail};

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// All, in the order in which an index lists them.
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// In the words of Debian and of container images.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's target.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// By the number in the head of an ELF file.
    ///
    /// # Errors
    /// One of neither platform.
    pub(crate) fn of_machine(machine: u16) -> Result<Self> {
        match machine {
            62 => Ok(Self::Amd64),
            183 => Ok(Self::Arm64),
            other => bail!("a program for machine {other} of ELF's list"),
        }
    }

    /// Of this machine, if it is one of them.
    pub(crate) fn here() -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|arch| arch.target().starts_with(std::env::consts::ARCH))
    }
}
