//! The key table: name, help, type, range and reload behaviour of every configuration key. The
//! parser, `pierhead config show`, the reload, the reference page and the JSON schema all use this
//! table.

mod cache;
mod general;
mod key;
mod limits;
mod network;
mod security;
mod tier;
mod upstream;

use super::settings::Config;

pub(crate) use general::check_level;
pub(crate) use key::{Key, Reload};
pub(crate) use network::MANAGEMENT;
pub(crate) use upstream::{IDENTITY_TOKEN_USER, UPSTREAM_KEYS};

/// The help text of each TOML table.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "network",
        "The network interface through which clients reach pierhead.",
    ),
    ("cache", "Disk space of the cache."),
    ("eviction", "Which blobs the cache admits and evicts."),
    (
        "request_log",
        "A log of all requests, with which `pierhead-replay` compares eviction policies.",
    ),
    (
        "bundle",
        "Delta bundles, which send only the file contents that a worker does \
         not have (docs/explanation/bundles.md).",
    ),
    (
        "tier",
        "A fast tier in front of the disk: blobs become durable there first \
         (docs/explanation/tiering.md).",
    ),
    ("tags", "Revalidation of tags."),
    (
        "access",
        "The repositories that clients may pull, as patterns of REGISTRY or \
         REGISTRY/REPOSITORY. * matches any characters except /, and ** any characters. A \
         registry alone matches all of its repositories. A client that may pull a repository gets \
         any cached blob whose digest it names.",
    ),
    (
        "limits",
        "Limits that protect pierhead, the host and the uplink.",
    ),
    (
        "tls",
        "HTTPS for clients. pierhead reads the files again when they change.",
    ),
    (
        "auth",
        "How clients authenticate. pierhead accepts passwords over TLS or from this host only.",
    ),
    ("log", "The log on standard error."),
];

/// Name of the TOML table of upstreams, which contains one table per upstream.
pub(crate) const UPSTREAMS: &str = "upstreams";
/// The help text of the TOML table of upstreams.
pub(crate) const UPSTREAMS_HELP: &str = "\
     One table per registry that needs an address, credentials or a CA. pierhead connects to every \
     other public registry at https://NAME.";

/// All keys except the keys of upstreams, in the order of `config show`.
pub(crate) fn keys() -> impl Iterator<Item = &'static Key<Config>> {
    general::KEYS
        .iter()
        .chain(network::KEYS)
        .chain(cache::KEYS)
        .chain(tier::KEYS)
        .chain(limits::KEYS)
        .chain(security::KEYS)
        .chain(general::LOG_KEYS)
}

/// The paths of all keys, such as `cache.size`.
#[cfg(test)]
pub(crate) fn paths() -> impl Iterator<Item = String> {
    keys().map(Key::path)
}
