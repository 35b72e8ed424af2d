//! The client programs whose configuration files `pierhead setup` can change.

use std::fmt;

/// A container client: a program that pulls images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// dockerd, whose configuration file is `daemon.json`.
    Docker,
    /// containerd 1.x and 2.x, whose configuration files are `config.toml` (or a drop-in file) and
    /// `hosts.toml`.
    Containerd,
    /// podman, buildah and skopeo, whose configuration files are in `registries.conf.d`.
    Podman,
    /// CRI-O, which has the same configuration files as podman.
    Crio,
}

impl Client {
    /// All clients that setup supports.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Containerd, Self::Podman, Self::Crio];

    /// Returns the name of the program, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Podman => "podman",
            Self::Crio => "crio",
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
