//! The type of one row of the key table, and helpers that print TOML literals.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use crate::config::kind::Kind;
use crate::config::value::Value;

/// One configuration key. `T` is the struct that has the value: the whole configuration, or one
/// upstream.
pub(crate) struct Key<T> {
    /// Name of the TOML table that contains the key; empty at the top level.
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    /// The meaning of the key, and when an operator changes its value.
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// A TOML literal, which `pierhead config show` prints as a comment if the key is not set.
    pub(crate) example: &'static str,
    pub(crate) reload: Reload<T>,
    pub(crate) set: fn(&mut T, &Value<'_>) -> Result<(), String>,
    /// Returns the value of the key as a TOML literal, or `None` if the key is not set.
    pub(crate) show: fn(&T) -> Option<String>,
}

/// The effect of a reload on a changed key.
pub(crate) enum Reload<T> {
    /// A reload applies a change of this key immediately.
    Live,
    /// A change of this key needs a restart. The function copies the old value to the new
    /// configuration.
    Restart(fn(new: &mut T, old: &T)),
    /// As [`Reload::Restart`]. The default of the key follows from the profile. So if the profile
    /// changes, too, the reload reports only the change of the profile.
    RestartWithProfile(fn(new: &mut T, old: &T)),
    /// Only some changes of this key need a restart; the help of the key names them. The function
    /// undoes only these changes.
    SomeRestart(fn(new: &mut T, old: &T)),
}

impl<T> Key<T> {
    /// Returns the path of the key, such as `cache.size`.
    pub(crate) fn path(&self) -> String {
        match self.section {
            "" => self.name.to_owned(),
            section => format!("{section}.{}", self.name),
        }
    }

    /// Returns the help of the key, with a note if a change of the key needs a restart.
    pub(crate) fn full_help(&self) -> String {
        format!("{}{}", self.help, self.restart_note())
    }

    /// Returns the note that a change of the key needs a restart. Returns an empty text if a reload
    /// applies at least some changes.
    pub(crate) fn restart_note(&self) -> &'static str {
        match self.reload {
            Reload::Restart(_) | Reload::RestartWithProfile(_) => " A change needs a restart.",
            Reload::Live | Reload::SomeRestart(_) => "",
        }
    }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

pub(super) fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

pub(super) fn quote_duration(duration: Duration) -> Option<String> {
    Some(quote(&humantime::format_duration(duration).to_string()))
}

pub(super) fn quote_rate(rate: Option<u64>) -> Option<String> {
    Some(rate.map_or_else(
        || quote("off"),
        |rate| quote(&format!("{}/s", pierhead_oci::units::exact_bytes(rate))),
    ))
}

/// Formats strings as a TOML list. Returns `None` if there are none.
pub(super) fn quote_list<T: Display>(items: &[T]) -> Option<String> {
    let items: Vec<_> = items.iter().map(|item| quote(&item.to_string())).collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}
