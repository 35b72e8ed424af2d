//! Checks that `values.schema.json` contains exactly the keys of `values.yaml` and refuses all
//! others.

use serde_json::Value;

/// Key that helm itself adds, for charts inside of charts.
const NOT_OURS: &str = "global";

/// Differences between the documented keys of the values (with dots between levels) and the schema,
/// one sentence each.
pub(crate) fn differences(keys: &[String], schema: &Value) -> Vec<String> {
    let mut wrong: Vec<_> = keys
        .iter()
        .filter(|key| at(schema, key).is_none())
        .map(|key| format!("{key} is not in the schema"))
        .collect();
    walk("", schema, keys, &mut wrong);
    wrong
}

/// The schema of a key. An object that accepts any key has a schema for every key.
fn at<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let mut here = schema;
    for part in key.split('.') {
        match here["properties"].get(part) {
            Some(below) => here = below,
            None if here.get("properties").is_none() => return Some(here),
            None => return None,
        }
    }
    Some(here)
}

fn walk(path: &str, schema: &Value, keys: &[String], wrong: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    if schema.get("additionalProperties") != Some(&Value::Bool(false)) {
        wrong.push(format!("{} takes keys that it does not know", named(path)));
    }
    for (name, below) in properties {
        let key = format!("{path}{name}");
        if key == NOT_OURS {
            continue;
        }
        if !keys
            .iter()
            .any(|it| is_same_or_parent(&key, it) || is_same_or_parent(it, &key))
        {
            wrong.push(format!("{key} is not in values.yaml"));
        }
        walk(&format!("{key}."), below, keys, wrong);
    }
}

fn named(path: &str) -> &str {
    match path.trim_end_matches('.') {
        "" => "the schema",
        path => path,
    }
}

/// Whether `parent` equals `key` or is a parent of `key`.
fn is_same_or_parent(parent: &str, key: &str) -> bool {
    key.strip_prefix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_side_lacks_what_the_other_has() {
        let closed = |properties: Value| json!({"type": "object", "additionalProperties": false, "properties": properties});
        let schema = closed(json!({
            "port": {"type": "integer"},
            "labels": {"type": "object"},
            "log": closed(json!({"level": {}, "format": {}})),
            "config": closed(json!({"a": closed(json!({"b": {}}))})),
            "global": {},
        }));
        let keys = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let all = ["port", "labels", "log.level", "log.format", "config.a"];
        assert_eq!(differences(&keys(&all), &schema), Vec::<String>::new());
        assert_eq!(
            differences(
                &keys(&["port", "labels", "log.level", "config.a", "new"]),
                &schema
            ),
            [
                "new is not in the schema",
                "log.format is not in values.yaml"
            ]
        );
        let open =
            json!({"properties": {"a": {"properties": {"b": {}}, "additionalProperties": false}}});
        assert_eq!(
            differences(&keys(&["a.b"]), &open),
            ["the schema takes keys that it does not know"]
        );
    }
}
