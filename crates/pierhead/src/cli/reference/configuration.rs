//! Generates docs/reference/configuration.md and configuration.schema.json from the key table.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{check_file, check_page, wrap};
use crate::config::Config;
use crate::config::keys::{Key, SECTIONS, UPSTREAM_KEYS, UPSTREAMS, UPSTREAMS_HELP, keys};

fn describe<T>(text: &mut String, key: &Key<T>, of: &T) {
    let default = (key.show)(of);
    let default = default.map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
    let restart = key.restart_note();
    let facts = format!(
        "Value: {}. Default: {default}. Example: `{}`.{restart}",
        key.kind.phrase(),
        key.example
    );
    let _ = write!(
        text,
        "### `{}`\n\n{}\n\n{}\n\n",
        key.path(),
        wrap(key.help),
        wrap(&facts)
    );
}

#[test]
fn the_page_has_every_key() {
    let config = Config::with_data("/var/lib/pierhead".into());
    let mut text = format!(
        "There are {} keys.\n\n",
        keys().count() + UPSTREAM_KEYS.len()
    );
    text.push_str("## Top of the file\n\n");
    for section in [""].iter().chain(SECTIONS.iter().map(|(name, _)| name)) {
        if let Some((_, help)) = SECTIONS.iter().find(|(name, _)| name == section) {
            let _ = write!(text, "## `[{section}]`\n\n{}\n\n", wrap(help));
        }
        for key in keys().filter(|key| key.section == *section) {
            describe(&mut text, key, &config);
        }
    }
    let _ = write!(
        text,
        "## `[{UPSTREAMS}.\"NAME\"]`\n\n{}\n\n",
        wrap(UPSTREAMS_HELP)
    );
    for key in UPSTREAM_KEYS {
        describe(&mut text, key, &Default::default());
    }
    check_page("configuration.md", &format!("{}\n", text.trim_end()));
}

#[test]
fn there_are_at_most_fifty_keys() {
    assert!(keys().count() + UPSTREAM_KEYS.len() <= 50);
}

fn property<T>(key: &Key<T>) -> Value {
    let mut schema = key.kind.schema();
    schema["description"] = key.full_help().into();
    schema
}

fn closed(properties: Map<String, Value>) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

#[test]
fn the_schema_has_every_key() {
    let of = |section: &str| {
        let keys = keys().filter(|key| key.section == section);
        keys.map(|key| (key.name.to_owned(), property(key)))
            .collect::<Map<_, _>>()
    };
    let mut top = of("");
    for (section, help) in SECTIONS {
        let mut schema = closed(of(section));
        schema["description"] = (*help).into();
        top.insert((*section).to_owned(), schema);
    }
    let upstream = UPSTREAM_KEYS
        .iter()
        .map(|key| (key.name.to_owned(), property(key)));
    let upstreams = json!({
        "type": "object",
        "description": UPSTREAMS_HELP,
        "additionalProperties": closed(upstream.collect()),
    });
    top.insert(UPSTREAMS.to_owned(), upstreams);
    let mut schema = closed(top);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Configuration of pierhead".into();
    check_file("configuration.schema.json", &format!("{schema:#}\n"));
}
