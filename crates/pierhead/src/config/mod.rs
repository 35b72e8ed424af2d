//! The configuration of the daemon. One TOML file overrides the defaults, and the command line
//! overrides the file.
//!
//! [`parse`] turns text into a [`Config`] without I/O. [`load()`] reads the configuration file, and
//! [`files`] reads the files that the configuration names. pierhead reads and checks all of these
//! before it opens the cache or a listener.

pub(crate) mod crate_configs;
mod defaults;
pub(crate) mod environment;
pub(crate) mod files;
mod key_locations;
pub(crate) mod keys;
mod kind;
mod load;
mod parse;
mod problem;
mod profile;
mod request_log_file;
mod secret;
mod self_loop;
mod settings;
mod show;
mod size;
mod suggestion;
#[cfg(test)]
mod tests;
mod tier_file;
mod upstream;
mod validate;
mod value;
mod warnings;

pub(crate) use key_locations::KeyLocations;
#[cfg(test)]
pub(crate) use keys::paths;
pub(crate) use keys::{IDENTITY_TOKEN_USER, MANAGEMENT, check_level};
pub(crate) use load::{
    InvalidConfig, Overrides, Reloaded, check_rereadable, load, load_for_reload, load_shown,
    parse_upstream,
};
pub(crate) use problem::{Fault, Problem};
pub(crate) use profile::profile_named;
pub(crate) use request_log_file::check_request_log_file;
pub(crate) use secret::Secret;
pub(crate) use settings::{
    Auth, AuthMode, Bundle, Cache, Config, DefaultSources, Eviction, Limits, Log, LogFormat,
    Network, RequestLog, Tags, Tier, TierKind, Tls,
};
pub(crate) use show::{changes, keep_until_restart, show};
pub(crate) use size::Size;
pub(crate) use upstream::Upstream;
pub(crate) use validate::{auth, open_proxy};
pub(crate) use value::{parse_address, parse_admin, registry_name};
pub(crate) use warnings::{size_above_disk, warnings};
