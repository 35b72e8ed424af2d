//! The key table: name, help, type, range and reload of every key. Parser, `config show`, reload, reference page and
//! JSON schema derive from it; no other place states these facts.

mod cache;
mod general;
mod key;
mod kind;
mod limits;
mod network;
mod security;
mod tier;
mod upstream;

use super::settings::Config;

pub(crate) use general::check_level;
pub(crate) use key::{Key, Reload};
pub(crate) use kind::Kind;
pub(crate) use network::MANAGEMENT;
pub(crate) use upstream::{IDENTITY_TOKEN_USER, UPSTREAM_KEYS};

/// What stands above each table in `config show`.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "network",
        "The network interface through which clients reach pierhead.",
    ),
    ("cache", "Disk space of the cache."),
    ("eviction", "Which blobs the cache admits and evicts."),
    (
        "request_log",
        "A log of all requests, from which `pierhead-replay` compares eviction policies.",
    ),
    (
        "bundle",
        "Delta bundles: only the file contents that a worker lacks (docs/explanation/bundles.md).",
    ),
    (
        "tier",
        "A fast tier in front of the disk: blobs become durable there first (docs/explanation/tiering.md).",
    ),
    ("tags", "Revalidation of tags."),
    (
        "access",
        "What clients may pull: patterns of REGISTRY or REGISTRY/REPOSITORY. * matches any characters but /, ** matches \
         any characters. A registry alone matches all of its repositories. A client gets a cached blob if it names the \
         digest and a repository that it may pull.",
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

/// The table of upstreams, one table each below it.
pub(crate) const UPSTREAMS: &str = "upstreams";
/// What stands above it.
pub(crate) const UPSTREAMS_HELP: &str = "Registries that need more than their name, one table each. pierhead reaches every other public registry at \
     https://NAME.";

/// All keys of the file; those of one section in the order in which they are shown.
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

/// As people name them.
#[cfg(test)]
pub(crate) fn paths() -> impl Iterator<Item = String> {
    keys().map(Key::path)
}
