//! Edits `daemon.json` of dockerd: adds pierhead as a mirror for Docker Hub, the only registry for
//! which dockerd has mirrors.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstRootNode};
use serde_json::Value;

use crate::address::Address;
use crate::error::TextProblem;

/// The key of `daemon.json` with the list of mirrors.
pub(crate) const MIRRORS: &str = "registry-mirrors";
/// The key of `daemon.json` with the list of registries to which dockerd connects over plain HTTP.
/// A loopback address needs no entry in this list.
pub(crate) const INSECURE: &str = "insecure-registries";

/// Returns the text of the file with pierhead as the first mirror. All other bytes are kept.
///
/// # Errors
/// dockerd would refuse the text.
pub(crate) fn with_mirror(text: Option<&str>, address: &Address) -> Result<String, TextProblem> {
    let text = match text {
        Some(text) if !text.trim().is_empty() => text,
        _ => "{\n}\n",
    };
    let mut expected = parse(text)?;
    let root = tree(text)?;
    let object = root.object_value().ok_or_else(not_an_object)?;
    let url = address.to_string();
    put(&object, &mut expected, MIRRORS, &url, |entry| {
        address.matches(entry)
    })?;
    if !address.is_tls() && !address.is_loopback() {
        let name = address.authority();
        put(&object, &mut expected, INSECURE, name, |entry| {
            entry == name
        })?;
    }
    let after = root.to_string();
    // If a key occurs twice, dockerd reads the last of the two, but the edit may have changed the
    // first.
    if parse(&after).ok().as_ref() == Some(&expected) {
        Ok(after)
    } else {
        Err(TextProblem {
            line: None,
            message: format!("a key occurs twice: keep one {MIRRORS} and one {INSECURE}"),
        })
    }
}

/// Returns the mirrors in a `daemon.json`.
///
/// # Errors
/// The same errors as from [`with_mirror`].
pub(crate) fn mirrors(text: &str) -> Result<Vec<String>, TextProblem> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let document = parse(text)?;
    let entries = document.get(MIRRORS).and_then(Value::as_array);
    Ok(entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.as_str().map(str::to_owned))
        .collect())
}

/// Inserts an entry at the front of a list, unless `same` is true for an entry of the list.
fn put(
    object: &CstObject,
    expected: &mut Value,
    key: &str,
    entry: &str,
    same: impl Fn(&str) -> bool,
) -> Result<(), TextProblem> {
    let value = CstInputValue::String(entry.to_owned());
    let Some(property) = object.get(key) else {
        object.append(key, CstInputValue::Array(vec![value]));
        expected[key] = Value::from(vec![entry]);
        return Ok(());
    };
    let wrong = || TextProblem {
        line: None,
        message: format!(
            "{key} is not a list of strings, so that dockerd would refuse the file: correct it"
        ),
    };
    let list = property.array_value().ok_or_else(wrong)?;
    for element in list.elements() {
        let text = match &element {
            CstNode::Leaf(_) => element.as_string_lit().ok_or_else(wrong)?,
            CstNode::Container(_) => return Err(wrong()),
        };
        if same(&text.decoded_value().map_err(|_| wrong())?) {
            return Ok(());
        }
    }
    list.insert(0, value);
    if let Some(entries) = expected.get_mut(key).and_then(Value::as_array_mut) {
        entries.insert(0, entry.into());
    }
    Ok(())
}

/// Parses JSON as strictly as dockerd does, without the extensions of other parsers.
fn tree(text: &str) -> Result<CstRootNode, TextProblem> {
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    CstRootNode::parse(text, &strict).map_err(|error| TextProblem {
        line: Some(error.line_display()),
        message: error.kind().to_string(),
    })
}

fn parse(text: &str) -> Result<Value, TextProblem> {
    let value: Value = serde_json::from_str(text).map_err(|error| TextProblem {
        line: Some(error.line()),
        message: format!("dockerd would not start, because this is no JSON: {error}"),
    })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(not_an_object())
    }
}

fn not_an_object() -> TextProblem {
    TextProblem {
        line: Some(1),
        message: "write one JSON object in braces".to_owned(),
    }
}
