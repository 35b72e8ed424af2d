//! Generates custom resource definitions from the schemas in `bluefield/schemas`, so that the API
//! server validates DPF's resources.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// Generates a list of resource definitions, one for each kind in a file of schemas.
///
/// # Errors
/// The file does not have the format that validate.py expects.
pub(super) fn of(file: &Value) -> Result<Value> {
    let api = file["apiVersion"].as_str().context("apiVersion")?;
    let (group, version) = api.split_once('/').context("apiVersion: a group")?;
    let kinds = file["kinds"].as_object().context("kinds")?;
    let mut items = Vec::new();
    for (kind, spec) in kinds {
        let singular = kind.to_lowercase();
        let plural = format!("{singular}s");
        let schema = json!({"type": "object", "required": ["spec"], "properties": {
            "spec": structural(spec, &file["definitions"])?}});
        items.push(json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "singular": singular, "plural": plural},
                "versions": [{"name": version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}],
            },
        }));
    }
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

/// Converts a schema to the subset of JSON Schema that resource definitions allow: without
/// references and unions. The API server rejects unnamed keys in any case.
fn structural(schema: &Value, definitions: &Value) -> Result<Value> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.strip_prefix("#/definitions/");
        let target = name.and_then(|name| definitions.get(name));
        return structural(target.with_context(|| reference.to_owned())?, definitions);
    }
    let mut made = Map::new();
    for (word, value) in schema.as_object().context("a schema is an object")? {
        let value = match word.as_str() {
            "type" if *value == json!(["integer", "string"]) => {
                made.insert("x-kubernetes-int-or-string".to_owned(), json!(true));
                continue;
            }
            "additionalProperties" if *value == json!(false) => continue,
            "items" | "additionalProperties" => structural(value, definitions)?,
            "properties" => {
                let keys = value.as_object().context("properties")?;
                let keys = keys
                    .iter()
                    .map(|(key, it)| anyhow::Ok((key.clone(), structural(it, definitions)?)));
                Value::Object(keys.collect::<Result<_>>()?)
            }
            "enum" => {
                made.insert("type".to_owned(), json!("string"));
                value.clone()
            }
            "type" | "required" | "pattern" | "minItems" | "maxItems" | "minLength"
            | "maxLength" | "minProperties" | "maxProperties" => value.clone(),
            unknown => bail!("{unknown}: has no equivalent in a definition"),
        };
        made.insert(word.clone(), value);
    }
    if made.get("type") == Some(&json!("object"))
        && !made.contains_key("properties")
        && !made.contains_key("additionalProperties")
    {
        made.insert(
            "x-kubernetes-preserve-unknown-fields".to_owned(),
            json!(true),
        );
    }
    Ok(Value::Object(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_has_all_that_the_schema_says() {
        let file = json!({
            "source": "s",
            "apiVersion": "example.org/v1",
            "definitions": {"count": {"type": ["integer", "string"]}},
            "kinds": {"Thing": {"type": "object", "additionalProperties": false, "required": ["any"], "properties": {
                "any": {"type": "object"},
                "how": {"enum": ["a", "b"]},
                "of": {"type": "object", "additionalProperties": {"$ref": "#/definitions/count"}}}}},
        });
        let made = of(&file).unwrap();
        assert_eq!(made["items"][0]["metadata"]["name"], "things.example.org");
        let version = &made["items"][0]["spec"]["versions"][0];
        assert_eq!(version["name"], "v1");
        assert_eq!(
            version["schema"]["openAPIV3Schema"]["properties"]["spec"],
            json!({"type": "object", "required": ["any"], "properties": {
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "how": {"type": "string", "enum": ["a", "b"]},
                "of": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}}}})
        );
    }

    #[test]
    fn what_cannot_be_said_is_an_error() {
        let definitions = json!({});
        for schema in [
            json!({"anyOf": []}),
            json!({"$ref": "#/definitions/none"}),
            json!(7),
        ] {
            assert!(structural(&schema, &definitions).is_err(), "{schema}");
        }
    }
}
