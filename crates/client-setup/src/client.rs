//! The client programs whose configuration files `pierhead setup` can change.

use std::fmt;

/// A program that pulls images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// dockerd. Its file is `daemon.json`.
    Docker,
    /// containerd 1.x and 2.x. Its files are `config.toml` (or a drop-in) and `hosts.toml`.
    Containerd,
    /// podman, buildah and skopeo. Their files are in `registries.conf.d`.
    Podman,
    /// CRI-O. It has the same files as podman.
    Crio,
}

impl Client {
    /// All clients.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Containerd, Self::Podman, Self::Crio];

    /// The name of the program, in lower case.
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
