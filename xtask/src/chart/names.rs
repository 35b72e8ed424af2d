//! Checks that each configuration key with named values accepts the same names in the chart's
//! schema and in pierhead.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::check::test_count::TestCount;

/// A value that no enumeration contains.
const UNKNOWN_NAME: &str = "?";

/// Lets `daemon` check a wrong value for each enumeration in the schema of `config`, and compares
/// the names in its error with the schema. Includes keys whose value is a list of names.
///
/// # Errors
/// The schema has no enumeration, or the daemon cannot be started.
pub(crate) fn check(daemon: &Path, config: &Value, count: &mut TestCount) -> Result<()> {
    let found = enumerations(config);
    if found.is_empty() {
        bail!("the schema of config has no enumeration");
    }
    let folder = tempfile::tempdir()?;
    for Enumeration {
        section,
        key,
        names,
    } in found
    {
        let file = folder.path().join("pierhead.toml");
        // The schema of a list item looks like that of a word, so the test tries both. The error of
        // pierhead has the names only for the right type.
        let said = [format!("{UNKNOWN_NAME:?}"), format!("[{UNKNOWN_NAME:?}]")].map(|value| {
            fs::write(&file, format!("[{section}]\n{key} = {value}\n"))?;
            let checked = Command::new(daemon)
                .args(["config", "check"])
                .arg(&file)
                .output()?;
            anyhow::Ok(String::from_utf8_lossy(&checked.stderr).into_owned())
        });
        let [word, list] = said;
        let (word, list) = (word?, list?);
        let known = choices(&word).or_else(|| choices(&list));
        let same = known
            .with_context(|| format!("pierhead does not say what to write: {word}{list}"))
            .and_then(|known| match known == names {
                true => Ok(()),
                false => bail!("the chart takes {names:?}, pierhead {known:?}"),
            });
        count.note(&format!("config::names of {section}.{key}"), same);
    }
    Ok(())
}

struct Enumeration<'a> {
    section: &'a str,
    key: &'a str,
    names: BTreeSet<String>,
}

/// The properties in the schema of an object.
fn properties(it: &Value) -> impl Iterator<Item = (&String, &Value)> {
    it["properties"].as_object().into_iter().flatten()
}

fn enumerations(config: &Value) -> Vec<Enumeration<'_>> {
    let sections = properties(config);
    let keys = sections
        .flat_map(|(section, of)| properties(of).map(move |(key, schema)| (section, key, schema)));
    keys.filter_map(|(section, key, schema)| {
        let names = schema["enum"]
            .as_array()
            .or_else(|| schema["items"]["enum"].as_array())?;
        let names = names.iter().filter_map(Value::as_str).map(str::to_owned);
        Some(Enumeration {
            section,
            key,
            names: names.collect(),
        })
    })
    .collect()
}

/// The quoted names in pierhead's error about [`UNKNOWN_NAME`], which follow `: write `.
fn choices(said: &str) -> Option<BTreeSet<String>> {
    let (_, fix) = said
        .split_once(&format!("{UNKNOWN_NAME:?} is "))?
        .1
        .rsplit_once(": write ")?;
    let quoted = fix.split('"').skip(1).step_by(2);
    Some(quoted.map(str::to_owned).collect()).filter(|it: &BTreeSet<_>| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_what_is_offered() {
        let said =
            "x.toml:2: eviction.policy: \"?\" is no eviction policy: write \"fifo\", \"lru\"\n";
        let known = choices(said).expect("names");
        assert_eq!(known.into_iter().collect::<Vec<_>>(), ["fifo", "lru"]);
        assert!(choices("expected a list of names such as [\"a\"]").is_none());
    }

    #[test]
    fn enumerations_are_found_in_lists_too() {
        let schema = json!({"properties": {
            "log": {"properties": {"format": {"enum": ["json"]}, "level": {"type": "string"}}},
            "limits": {"properties": {"pause_under": {"items": {"enum": ["cpu", "io"]}}}},
            "open": {"type": "boolean"}}});
        let mut found = enumerations(&schema);
        found.sort_by_key(|it| it.key);
        let found = found
            .iter()
            .map(|it| (it.section, it.key, it.names.len()))
            .collect::<Vec<_>>();
        assert_eq!(found, [("log", "format", 1), ("limits", "pause_under", 2)]);
    }
}
