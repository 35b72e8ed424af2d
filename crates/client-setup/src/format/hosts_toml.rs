//! `hosts.toml` of containerd: pierhead comes first, then the hosts that were there before.

use toml::Value;

use super::toml_text;
use crate::address::Address;
use crate::error::TextProblem;

/// The file with pierhead as the first host; every other byte of it stays. `server` is where the registry
/// itself is, written into a new file that is about one registry; in `_default` containerd knows.
///
/// # Errors
/// Where it is no TOML, or pierhead cannot be put first.
pub(crate) fn with_host(
    text: Option<&str>,
    address: &Address,
    server: Option<&str>,
    ca: Option<&str>,
) -> Result<String, TextProblem> {
    let mut block = format!(
        "# pierhead; when it is down or refuses, the next one is asked.\n[host.{}]\n  capabilities = [\"pull\", \"resolve\"]\n",
        toml_text::quoted(&address.to_string())
    );
    if let Some(ca) = ca {
        block.push_str(&format!("  ca = {}\n", toml_text::quoted(ca)));
    }
    match text {
        Some(text) if !text.trim().is_empty() => {
            if names(text)?.iter().any(|host| address.matches(host)) {
                return Ok(text.to_owned());
            }
            toml_text::put_first(text, "host", &block)
        }
        _ => {
            let server = server.map(|url| format!("server = {}\n\n", toml_text::quoted(url)));
            Ok(format!("{}{block}", server.unwrap_or_default()))
        }
    }
}

/// The hosts that a file names.
///
/// # Errors
/// Where it is no TOML.
pub(crate) fn names(text: &str) -> Result<Vec<String>, TextProblem> {
    let table = toml_text::parse(text)?;
    let hosts = table.get("host").and_then(Value::as_table);
    Ok(hosts
        .into_iter()
        .flat_map(|hosts| hosts.keys().cloned())
        .collect())
}
