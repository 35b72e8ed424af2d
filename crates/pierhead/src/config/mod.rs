//! The configuration: defaults, then one TOML file, then the command line.
//!
//! Parsing is pure (text to [`Config`]); [`load()`] reads the file, [`files`] what it names. All of it
//! happens before anything is opened.

mod defaults;
pub(crate) mod files;
pub(crate) mod keys;
mod load;
mod nearest;
mod parse;
mod places;
mod problem;
mod profile;
mod secret;
mod settings;
mod show;
mod size;
#[cfg(test)]
mod tests;
mod trace_file;
mod upstream;
mod validate;
mod value;

#[cfg(test)]
pub(crate) use keys::paths;
pub(crate) use keys::{IDENTITY_TOKEN_USER, MANAGEMENT, check_level};
pub(crate) use load::{Overrides, can_be_read_again, load, load_shown, load_under, parse_upstream};
pub(crate) use places::Places;
pub(crate) use problem::Problem;
pub(crate) use profile::profile_named;
pub(crate) use secret::Secret;
pub(crate) use settings::{
    Auth, AuthMode, Bundle, Cache, Config, Eviction, Limits, Log, LogFormat, Network, Origins,
    RequestLog, Tags, Tier, TierKind, Tls,
};
pub(crate) use show::{changes, keep_until_restart, show};
pub(crate) use size::Size;
pub(crate) use trace_file::trace_file;
pub(crate) use upstream::Upstream;
pub(crate) use validate::{auth, open_proxy};
pub(crate) use value::{parse_address, parse_admin};
