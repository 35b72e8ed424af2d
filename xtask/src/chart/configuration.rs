//! Generates the part of a chart's `values.schema.json` that describes pierhead's configuration,
//! from the JSON schema of the keys.

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// Keys of the configuration that the chart sets from its own values.
const CHART_KEYS: &[&str] = &["listen", "data", "admin", "docker_config", "profile"];
/// Sections of the configuration that the chart sets from its own values.
const CHART_SECTIONS: &[&str] = &["network", "tls", "auth", "tier", "upstreams"];
/// Allowed paths of the request log: the pod can write only below `/var/lib/pierhead`.
const REQUEST_LOG: &str = "^(off|/var/lib/pierhead/([^/\\s]+/)*[^/\\s]+)$";

/// Schema of the value `config`: the keys in `all` that the chart does not set from its own values.
///
/// # Errors
/// `all` is not the schema of an object.
pub(crate) fn schema(all: &Value) -> Result<Value> {
    let properties = all["properties"].as_object().context("no properties")?;
    let ours = properties.iter().filter(|(key, _)| {
        !CHART_KEYS.contains(&key.as_str()) && !CHART_SECTIONS.contains(&key.as_str())
    });
    let mut kept: Map<_, _> = ours
        .map(|(key, of)| (key.clone(), without_help(of)))
        .collect();
    if let Some(log) = kept.get_mut("request_log") {
        log["properties"]["file"] = json!({"type": "string", "pattern": REQUEST_LOG});
    }
    Ok(json!({"type": "object", "additionalProperties": false, "properties": kept}))
}

/// Removes the descriptions, which are on the reference page.
fn without_help(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        object.remove("description");
        if let Some(Value::Object(properties)) = object.get_mut("properties") {
            for of in properties.values_mut() {
                *of = without_help(of);
            }
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_the_chart_sets_are_left_out() {
        let text = json!({"type": "string"});
        let helped = json!({"type": "string", "description": "help"});
        let closed =
            |of: Value| json!({"type": "object", "additionalProperties": false, "properties": of});
        let all = closed(json!({
            "listen": helped, "open": helped,
            "tls": closed(json!({"cert": helped})),
            "cache": closed(json!({"size": helped})),
            "request_log": closed(json!({"file": helped})),
        }));
        let log = json!({"type": "string", "pattern": REQUEST_LOG});
        assert_eq!(
            schema(&all).unwrap(),
            closed(json!({
                "open": text,
                "cache": closed(json!({"size": text})),
                "request_log": closed(json!({"file": log})),
            }))
        );
        assert!(schema(&json!({})).is_err());
    }
}
