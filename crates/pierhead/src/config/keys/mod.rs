//! The key table: name, help, type, range and reload of every key. Parser, `config show`, reload, reference page and
//! JSON schema derive from it; no other place states these facts.

mod cache;
mod general;
mod kind;
mod limits;
mod network;
mod security;
mod tier;
mod upstream;

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::Config;
use super::value::Value;

pub(crate) use general::check_level;
pub(crate) use kind::Kind;
pub(crate) use network::MANAGEMENT;
pub(crate) use upstream::{IDENTITY_TOKEN_USER, UPSTREAM_KEYS};

/// One key of a `T`: the whole configuration, or one upstream.
pub(crate) struct Key<T> {
    /// Table that it stands in; empty at the top.
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    /// What it does, and when an operator changes it.
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// A TOML literal, shown behind `#` where nothing is set.
    pub(crate) example: &'static str,
    pub(crate) reload: Reload<T>,
    pub(crate) set: fn(&mut T, &Value<'_>) -> Result<(), String>,
    /// A TOML literal; `None` when unset.
    pub(crate) show: fn(&T) -> Option<String>,
}

/// What a reload does with a changed key.
pub(crate) enum Reload<T> {
    /// It takes effect at once.
    Live,
    /// It takes a restart: the function gives a new configuration the value of the old one.
    Restart(fn(new: &mut T, old: &T)),
    /// Some changes take a restart, which the help names; the function undoes these.
    SomeRestart(fn(new: &mut T, old: &T)),
}

impl<T> Key<T> {
    /// As people name it: `cache.size`.
    pub(crate) fn path(&self) -> String {
        match self.section {
            "" => self.name.to_owned(),
            section => format!("{section}.{}", self.name),
        }
    }

    /// The help, with what a change takes.
    pub(crate) fn full_help(&self) -> String {
        let restart = match self.reload {
            Reload::Restart(_) => " A change needs a restart.",
            Reload::Live | Reload::SomeRestart(_) => "",
        };
        format!("{}{restart}", self.help)
    }
}

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

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

fn quote_duration(duration: Duration) -> Option<String> {
    Some(quote(&humantime::format_duration(duration).to_string()))
}

fn quote_rate(rate: Option<u64>) -> Option<String> {
    Some(rate.map_or_else(
        || quote("off"),
        |rate| quote(&format!("{}/s", pierhead_oci::units::exact_bytes(rate))),
    ))
}

/// `None` when there are none.
fn quote_list<T: Display>(items: &[T]) -> Option<String> {
    let items: Vec<_> = items.iter().map(|item| quote(&item.to_string())).collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}

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
