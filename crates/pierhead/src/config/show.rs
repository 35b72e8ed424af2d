//! Prints a configuration as a commented TOML file, and compares configurations. The printed file
//! parses to the same configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::keys::{Key, Reload, SECTIONS, UPSTREAM_KEYS, UPSTREAMS, UPSTREAMS_HELP, keys};
use super::{Config, Upstream};

/// Returns the text with all keys. The text has no secrets, since secrets are in separate files.
pub(crate) fn show(config: &Config) -> String {
    let mut text = String::from(
        "# The configuration of pierhead, with the value of every key. A key behind # is not set.\n",
    );
    if !config.default_sources.is_empty() {
        text.push_str("# A comment after a value names its source, if it is neither the file nor the built-in default.\n");
    }
    section(&mut text, "", config);
    for (name, doc) in SECTIONS {
        text.push('\n');
        comment(&mut text, doc);
        let _ = writeln!(text, "[{name}]");
        section(&mut text, name, config);
    }
    text.push('\n');
    comment(&mut text, UPSTREAMS_HELP);
    if config.upstreams.is_empty() {
        let _ = writeln!(text, "#[{UPSTREAMS}.\"registry.example\"]");
        upstream(&mut text, &Upstream::default());
    }
    for (registry, keys) in &config.upstreams {
        let _ = writeln!(text, "[{UPSTREAMS}.\"{registry}\"]");
        upstream(&mut text, keys);
    }
    text
}

/// Returns the keys whose values differ, each as `OLD -> NEW`. For upstreams, returns only the
/// names of the upstreams that differ.
pub(crate) fn changes(old: &Config, new: &Config) -> Vec<(String, String)> {
    let text = |value: Option<String>| {
        let value = value.unwrap_or_else(|| "unset".to_owned());
        value.trim_matches('"').to_owned()
    };
    let mut changes: Vec<_> = keys()
        .map(|key| (key.path(), (key.show)(old), (key.show)(new)))
        .filter(|(_, old, new)| old != new)
        .map(|(path, old, new)| (path, format!("{} -> {}", text(old), text(new))))
        .collect();
    let upstreams = |config: &Config| {
        let text = |keys: &Upstream| {
            let mut text = String::new();
            upstream(&mut text, keys);
            text
        };
        let all = config.upstreams.iter();
        all.map(|(registry, keys)| (registry.clone(), text(keys)))
            .collect::<BTreeMap<_, _>>()
    };
    let (old, new) = (upstreams(old), upstreams(new));
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for name in names {
        let change = match (old.get(name), new.get(name)) {
            (Some(old), Some(new)) if old == new => continue,
            (Some(_), Some(_)) => "changed",
            (None, _) => "added",
            (_, None) => "removed",
        };
        changes.push((format!("{UPSTREAMS}.\"{name}\""), change.to_owned()));
    }
    changes
}

fn section(text: &mut String, name: &str, config: &Config) {
    for key in keys().filter(|key| key.section == name) {
        entry(text, key, config);
        let path = key.path();
        if let Some((_, of)) = config.default_sources.iter().find(|(key, _)| *key == path)
            && text.pop().is_some()
        {
            let _ = writeln!(text, " # {of}");
        }
    }
}

fn upstream(text: &mut String, upstream: &Upstream) {
    for key in UPSTREAM_KEYS {
        entry(text, key, upstream);
    }
}

fn entry<T>(text: &mut String, key: &Key<T>, of: &T) {
    comment(text, &key.full_help());
    let _ = match (key.show)(of) {
        Some(value) => writeln!(text, "{} = {value}", key.name),
        None => writeln!(text, "#{} = {}", key.name, key.example),
    };
}

/// Adds help as a TOML comment, wrapped to the width of a page.
fn comment(text: &mut String, help: &str) {
    /// Maximum width of a comment in the output of `config show`, in columns.
    const MAX_COLUMNS: usize = 98;
    let mut line = String::from("#");
    for word in help.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > MAX_COLUMNS {
            let _ = writeln!(text, "{line}");
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

/// Gives `new` the values of `old` for keys whose change needs a restart. Returns these keys.
/// `after_restart` is the configuration that a restart would read from the same file.
pub(crate) fn keep_until_restart(
    old: &Config,
    after_restart: &Config,
    new: &mut Config,
) -> Vec<String> {
    let mut changed_keys = Vec::new();
    let same_profile = old.profile == after_restart.profile;
    for key in keys() {
        let (Reload::Restart(keep) | Reload::RestartWithProfile(keep) | Reload::SomeRestart(keep)) =
            key.reload
        else {
            continue;
        };
        let requested = (key.show)(new);
        keep(new, old);
        let changed = match key.reload {
            Reload::RestartWithProfile(_) => {
                same_profile && (key.show)(old) != (key.show)(after_restart)
            }
            _ => requested != (key.show)(new),
        };
        if changed {
            changed_keys.push(key.path());
        }
    }
    changed_keys
}
