//! Names of registries, such as `docker.io` and `localhost:5000`. Different spellings of one
//! registry become one name.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use crate::{ParseError, Repository};

/// The name of a registry: `docker.io`, `ghcr.io`, `localhost:5000`, `[::1]:5000`.
///
/// The name is in lower case. Docker Hub's aliases (`index.docker.io`, `registry-1.docker.io`,
/// `registry.hub.docker.com`) become `docker.io`, and `:443` is removed. A host that ends in a
/// number must be an IPv4 address in four decimal parts. System resolvers also accept `127.1` and
/// `0x7f.1` as addresses, which a check of private addresses by name would miss.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Registry(pub(crate) Arc<str>);

impl Registry {
    /// The name of Docker Hub.
    pub const DOCKER_HUB: &'static str = "docker.io";

    /// Returns the host without the port. An IPv6 address keeps its brackets.
    pub fn host(&self) -> &str {
        split_port(&self.0).0
    }

    /// Returns the port, if the name has one.
    pub fn port(&self) -> Option<u16> {
        split_port(&self.0).1.and_then(|port| port.parse().ok())
    }

    /// Whether this registry is Docker Hub.
    pub fn is_docker_hub(&self) -> bool {
        &*self.0 == Self::DOCKER_HUB
    }

    /// Returns the full repository of a name in this registry. On Docker Hub, a name of one segment
    /// is an official image and gets the prefix `library/`. If the prefix is already there, nothing
    /// changes.
    pub fn qualify(&self, repository: Repository) -> Repository {
        if !self.is_docker_hub() || repository.as_str().contains('/') {
            return repository;
        }
        // If the name with the prefix is too long, no such image exists, and the name is returned
        // without the prefix.
        format!("library/{repository}")
            .parse()
            .unwrap_or(repository)
    }

    /// Whether the first segment of a path is a registry and not a part of a repository name. By
    /// the rule of the reference grammar, a registry has a dot or a port, or is `localhost`.
    pub fn looks_like(segment: &str) -> bool {
        segment.contains(['.', ':']) || segment.eq_ignore_ascii_case("localhost")
    }
}

impl FromStr for Registry {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        // A host has at most 253 bytes, and a port at most 5.
        if text.len() > 253 + 1 + 5 {
            return Err(ParseError::Registry("longer than a host and a port can be"));
        }
        let (host, port) = split_port(text);
        let mut name = match host.strip_prefix('[') {
            Some(rest) => ipv6(rest)?,
            None => hostname(host)?,
        };
        if let Some(port) = port {
            // `parse` alone would accept a plus sign in front of the number.
            if !port.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ParseError::Registry("the port is not a number"));
            }
            match port.parse::<u16>() {
                // 443 is the default port. The port 443 is removed: otherwise access rules and the
                // cache would treat two names of one registry as two registries. A host that is
                // recognizable as a registry only by its port keeps the port.
                Ok(443) if Self::looks_like(&name) => {}
                Ok(port) if port > 0 => {
                    let _ = write!(name, ":{port}");
                }
                _ => return Err(ParseError::Registry("the port is not within 1 to 65535")),
            }
        }
        if matches!(
            &*name,
            "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com"
        ) {
            return Ok(Self(Self::DOCKER_HUB.into()));
        }
        Ok(Self(name.into()))
    }
}

/// Splits the text at the last colon that is outside of brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Parses an IPv6 address. `rest` is the text behind the opening bracket.
fn ipv6(rest: &str) -> Result<String, ParseError> {
    let address = rest
        .strip_suffix(']')
        .and_then(|inner| inner.parse::<Ipv6Addr>().ok());
    address
        .map(|address| format!("[{address}]"))
        .ok_or(ParseError::Registry("not an IPv6 address in brackets"))
}

fn hostname(host: &str) -> Result<String, ParseError> {
    if host.is_empty() || host.len() > 253 {
        return Err(ParseError::Registry(
            "the host is empty or longer than 253 bytes",
        ));
    }
    for label in host.split('.') {
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        if bytes.len() > 63 || !edge(bytes.first()) || !edge(bytes.last()) {
            return Err(ParseError::Registry(
                "each part of a host has 1 to 63 bytes and starts and ends with a letter or digit",
            ));
        }
        if !bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || *b == b'-')
        {
            return Err(ParseError::Registry(
                "a host has letters, digits, '-' and '.' only",
            ));
        }
    }
    let last = host.rsplit('.').next().unwrap_or(host);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let numeric = last.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if numeric && host.parse::<Ipv4Addr>().is_err() {
        return Err(ParseError::Registry(
            "a host that ends in a number must be an IPv4 address in four decimal parts",
        ));
    }
    Ok(host.to_ascii_lowercase())
}
