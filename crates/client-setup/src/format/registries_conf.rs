//! Writes the file for `registries.conf.d` of podman, CRI-O, buildah and skopeo: a drop-in with a
//! mirror for each registry.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::toml_text;
use crate::address::Address;
use crate::error::TextProblem;

/// The registries that get a mirror by default. The format has no entry that stands for all
/// registries, so a user has to name each further registry.
pub(crate) const DEFAULT_REGISTRIES: [&str; 8] = [
    "docker.io",
    "gcr.io",
    "ghcr.io",
    "mcr.microsoft.com",
    "nvcr.io",
    "public.ecr.aws",
    "quay.io",
    "registry.k8s.io",
];

/// The entries of other files, by prefix. The entry of pierhead's drop-in replaces the entry of
/// another file with the same prefix, so pierhead's entry repeats the keys of the other entry.
pub(crate) type RegistryEntries = BTreeMap<String, Table>;

/// Adds the entries of one file to `entries`. A later entry replaces an earlier entry of the same
/// prefix.
///
/// # Errors
/// The text is not TOML, or has version 1 of the format, which cannot be used together with
/// drop-ins.
pub(crate) fn read(text: &str, entries: &mut RegistryEntries) -> Result<(), TextProblem> {
    let table = toml_text::parse(text)?;
    if table.get("registries").is_some() {
        return Err(TextProblem {
            line: text
                .lines()
                .position(|line| line.trim_start().starts_with("[registries"))
                .map(|index| index + 1),
            message: "this is version 1 of the format, which cannot be mixed with drop-ins: \
                      convert it to version 2 (containers-registries.conf(5))"
                .to_owned(),
        });
    }
    let registries = table.get("registry").and_then(Value::as_array);
    for entry in registries.into_iter().flatten().filter_map(Value::as_table) {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        if let Some(prefix) = text("prefix")
            .filter(|it| !it.is_empty())
            .or(text("location"))
        {
            entries.insert(prefix.to_owned(), entry.clone());
        }
    }
    Ok(())
}

/// Returns the text of the drop-in. For each registry, the text names pierhead, then the mirrors of
/// other files, then the registry itself. If pierhead uses plain HTTP, a further entry allows plain
/// HTTP for the address of pierhead.
pub(crate) fn drop_in(
    address: &Address,
    registries: &[String],
    others: &RegistryEntries,
) -> String {
    let mut text = "# Written by `pierhead setup`. podman and CRI-O read this file; `pierhead setup podman\n\
                    # --undo` or `pierhead setup crio --undo` removes it. If pierhead is down or refuses,\n\
                    # the client asks the registry itself.\n"
        .to_owned();
    for registry in registries {
        let mirror = format!("{}/{registry}", address.authority());
        let others = others.get(registry).cloned().unwrap_or_default();
        entry(&mut text, registry, others, Some((&mirror, address)));
    }
    // Writes no second entry for this name, because two entries with the same prefix would be an
    // error.
    let is_named = registries.iter().any(|it| it == address.authority());
    if !address.is_tls() && !is_named {
        // Writes an entry for images whose name contains the address of pierhead.
        let name = address.authority();
        let mut others = others.get(name).cloned().unwrap_or_default();
        others.insert("insecure".to_owned(), true.into());
        entry(&mut text, name, others, None);
    }
    text
}

/// Writes one `[[registry]]` entry with the keys of other files, and with pierhead in front of
/// their mirrors.
fn entry(text: &mut String, prefix: &str, mut others: Table, ours: Option<(&str, &Address)>) {
    let mirrors = match others.remove("mirror") {
        Some(Value::Array(mirrors)) => mirrors,
        _ => Vec::new(),
    };
    others.remove("prefix");
    let location = others
        .remove("location")
        .and_then(|it| it.as_str().map(str::to_owned));
    text.push_str(&format!(
        "\n[[registry]]\nprefix = {}\n",
        toml_text::quoted(prefix)
    ));
    // Keeps an empty location, as in an entry with a wildcard prefix.
    let location = location.unwrap_or_else(|| prefix.to_owned());
    text.push_str(&format!("location = {}\n", toml_text::quoted(&location)));
    keys(text, &others);
    if let Some((mirror, address)) = ours {
        text.push_str(&format!(
            "[[registry.mirror]]\nlocation = {}\n",
            toml_text::quoted(mirror)
        ));
        if !address.is_tls() {
            text.push_str("insecure = true\n");
        }
    }
    let ours = ours.map(|(mirror, _)| mirror);
    for mirror in mirrors.iter().filter_map(Value::as_table) {
        let location = mirror.get("location").and_then(Value::as_str);
        if ours.is_none() || location != ours {
            text.push_str("[[registry.mirror]]\n");
            keys(text, mirror);
        }
    }
}

/// Returns the mirrors that are in effect, by prefix.
pub(crate) fn mirrors(entries: &RegistryEntries) -> BTreeMap<String, Vec<String>> {
    let of = |entry: &Table| {
        let mirrors = entry.get("mirror").and_then(Value::as_array);
        let location = |mirror: &Value| mirror.get("location")?.as_str().map(str::to_owned);
        mirrors.into_iter().flatten().filter_map(location).collect()
    };
    entries
        .iter()
        .map(|(prefix, entry)| (prefix.clone(), of(entry)))
        .collect()
}

fn keys(text: &mut String, table: &Table) {
    for (key, value) in table {
        text.push_str(&format!("{key} = {value}\n"));
    }
}
