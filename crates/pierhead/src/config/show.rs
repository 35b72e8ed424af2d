//! A configuration as a commented TOML file that reads back as the same configuration, but for secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::keys::{SECTIONS, UPSTREAM_KEYS, UPSTREAMS, keys};
use super::{Config, Upstream};

/// The whole file. Secrets are masked, so that it can be shown to anybody.
pub(crate) fn show(config: &Config) -> String {
    let mut text = String::from(
        "# pierhead's configuration: every key, as it is in effect. A key behind # is not set.\n",
    );
    if !config.origins.is_empty() {
        text.push_str("# What stands behind a value says where it is from, if not from the file or pierhead itself.\n");
    }
    section(&mut text, "", config);
    for (name, doc) in SECTIONS {
        let _ = write!(text, "\n# {doc}\n[{name}]\n");
        section(&mut text, name, config);
    }
    text.push_str("\n# Registries that need more than their name: one table each. Every other public registry is\n# reached at https://NAME without being named here.\n");
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

/// The keys whose values differ, with both as people write them. Masked secrets do not show; of upstreams it is
/// said which differ.
pub(crate) fn changes(old: &Config, new: &Config) -> Vec<(String, String)> {
    let said = |value: Option<String>| {
        let value = value.unwrap_or_else(|| "unset".to_owned());
        value.trim_matches('"').to_owned()
    };
    let mut changes: Vec<_> = keys()
        .map(|key| (key.path(), (key.show)(old), (key.show)(new)))
        .filter(|(_, old, new)| old != new)
        .map(|(path, old, new)| (path, format!("{} -> {}", said(old), said(new))))
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
        let what = match (old.get(name), new.get(name)) {
            (Some(old), Some(new)) if old == new => continue,
            (Some(_), Some(_)) => "changed",
            (None, _) => "added",
            (_, None) => "removed",
        };
        changes.push((format!("{UPSTREAMS}.\"{name}\""), what.to_owned()));
    }
    changes
}

fn section(text: &mut String, name: &str, config: &Config) {
    for key in keys().filter(|key| key.section == name) {
        entry(text, key.doc, key.name, key.example, (key.show)(config));
        let path = key.path();
        if let Some((_, of)) = config.origins.iter().find(|(key, _)| *key == path)
            && text.pop().is_some()
        {
            let _ = writeln!(text, " # {of}");
        }
    }
}

fn upstream(text: &mut String, upstream: &Upstream) {
    for key in UPSTREAM_KEYS {
        entry(text, key.doc, key.name, key.example, (key.show)(upstream));
    }
}

fn entry(text: &mut String, doc: &str, name: &str, example: &str, value: Option<String>) {
    for line in doc.lines() {
        let _ = writeln!(text, "# {line}");
    }
    let _ = match value {
        Some(value) => writeln!(text, "{name} = {value}"),
        None => writeln!(text, "#{name} = {example}"),
    };
}
