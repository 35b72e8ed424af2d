//! The part of a chart's schema that is pierhead's own configuration, from the page that documents every key.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// What the chart sets from values of its own.
const OURS: &[&str] = &["listen", "data", "admin", "docker_config", "profile"];
/// As [`OURS`], whole sections.
const OUR_SECTIONS: &[&str] = &["network", "tls", "auth", "tier", "upstreams"];

/// The schema of the value `config`: objects with exactly the keys of the TOML in `page`.
///
/// # Errors
/// When the page has no TOML.
pub(crate) fn schema(page: &str) -> Result<Value> {
    let toml = page
        .split_once("```toml\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .context("the page has no block of TOML")?
        .0;
    let mut top = Map::new();
    let mut sections: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut section = "";
    for line in toml.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if let Some(name) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            section = name;
        } else if let Some((key, value)) = key_of(line) {
            let section_name = section.split('.').next().unwrap_or_default();
            if section.is_empty() {
                if !OURS.contains(&key) {
                    top.insert(key.to_owned(), kind(value));
                }
            } else if !OUR_SECTIONS.contains(&section_name) {
                let keys = sections.entry(section).or_default();
                keys.insert(key.to_owned(), kind(value));
            }
        }
    }
    for (name, keys) in sections {
        top.insert(name.to_owned(), object(keys));
    }
    Ok(object(top))
}

/// Takes over what somebody wrote for keys that are there still: tighter bounds than a type.
pub(crate) fn keep(schema: &mut Value, written: &Value) {
    let Some(keys) = schema["properties"].as_object_mut() else {
        return;
    };
    for (key, made) in keys {
        let Some(old) = written["properties"].get(key) else {
            continue;
        };
        if made["type"] == "object" {
            keep(made, old);
        } else {
            *made = old.clone();
        }
    }
}

fn object(properties: Map<String, Value>) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

/// `key = value`, and no sentence with an equals sign in it.
fn key_of(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(" = ")?;
    let is_key = key
        .bytes()
        .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_');
    is_key.then_some((key, value))
}

/// What a value may be, by its default or example.
fn kind(value: &str) -> Value {
    match value.bytes().next() {
        Some(b'[') => json!({"type": "array", "items": {"type": "string", "minLength": 1}}),
        Some(b'0'..=b'9') => json!({"type": "integer", "minimum": 0}),
        Some(b't' | b'f') => json!({"type": "boolean"}),
        _ => json!({"type": "string", "minLength": 1}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_stay_and_old_keys_go() {
        let text = json!({"type": "string"});
        let of = |keys: Value| json!({"type": "object", "properties": {"log": {"type": "object", "properties": keys}}});
        let mut schema = of(json!({"format": text, "level": text}));
        let bound = json!({"enum": ["text", "json"]});
        keep(&mut schema, &of(json!({"format": bound, "gone": text})));
        assert_eq!(schema, of(json!({"format": bound, "level": text})));
    }

    #[test]
    fn keys_are_those_of_the_page() {
        let page = "Text\n```toml\n# What = it is.\nlisten = [\"a\"]\nopen = false\n[cache]\n#size = \"1GiB\"\nworkers = 2\n[tls]\ncert = \"x\"\n#[upstreams.\"a.b\"]\n#url = \"u\"\n```\n";
        let text = json!({"type": "string", "minLength": 1});
        let cache = json!({"type": "object", "additionalProperties": false, "properties": {
            "size": text, "workers": {"type": "integer", "minimum": 0}}});
        assert_eq!(
            schema(page).unwrap(),
            json!({"type": "object", "additionalProperties": false, "properties": {
                "open": {"type": "boolean"}, "cache": cache}})
        );
    }
}
