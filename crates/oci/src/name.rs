//! Registry names, repository names and tags: validated once, cheap to clone.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::ParseError;

/// A registry as clients name it: `docker.io`, `ghcr.io`, `localhost:5000`, `[::1]:5000`.
///
/// Always lower case; Docker Hub's aliases (`index.docker.io`, `registry-1.docker.io`,
/// `registry.hub.docker.com`) parse to `docker.io`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Registry(Arc<str>);

/// A repository inside a registry: `library/redis`. At most 255 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository(Arc<str>);

/// A tag: at most 128 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Arc<str>);

impl Registry {
    /// The name of Docker Hub.
    pub const DOCKER_HUB: &'static str = "docker.io";

    /// Host without the port (brackets of IPv6 kept).
    pub fn host(&self) -> &str {
        todo!()
    }

    /// The port, when one is named.
    pub fn port(&self) -> Option<u16> {
        todo!()
    }

    /// Whether a first path segment is a registry rather than part of a repository name:
    /// it has a dot or a port, or is `localhost` (the rule of the reference grammar).
    pub fn looks_like(segment: &str) -> bool {
        segment == "localhost" || segment.contains(['.', ':'])
    }
}

impl FromStr for Registry {
    type Err = ParseError;
    fn from_str(_text: &str) -> Result<Self, ParseError> {
        todo!()
    }
}

impl FromStr for Repository {
    type Err = ParseError;
    fn from_str(_text: &str) -> Result<Self, ParseError> {
        todo!()
    }
}

impl FromStr for Tag {
    type Err = ParseError;
    fn from_str(_text: &str) -> Result<Self, ParseError> {
        todo!()
    }
}

macro_rules! text {
    ($($name:ident),*) => {$(
        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
text!(Registry, Repository, Tag);
