//! Edits `hosts.toml` of containerd: adds pierhead as the first host, in front of the existing
//! hosts.

use toml::Value;

use super::toml_text;
use crate::address::Address;
use crate::error::TextProblem;

/// Returns the text of the file with pierhead as the first host. All other bytes are kept.
///
/// `server` is the address of the registry itself, which a new file about one registry needs. The
/// file in the folder `_default` needs no `server`, because containerd then uses the name of the
/// registry.
///
/// # Errors
/// The text is not TOML, or pierhead cannot be inserted as the first host.
pub(crate) fn with_host(
    text: Option<&str>,
    address: &Address,
    server: Option<&str>,
    ca: Option<&str>,
) -> Result<String, TextProblem> {
    let mut block = format!(
        "# pierhead. If it is down or refuses, containerd asks the next host.\n[host.{}]\n  capabilities = [\"pull\", \"resolve\"]\n",
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

/// Returns the hosts that a `hosts.toml` file names.
///
/// # Errors
/// The text is not TOML.
pub(crate) fn names(text: &str) -> Result<Vec<String>, TextProblem> {
    let table = toml_text::parse(text)?;
    let hosts = table.get("host").and_then(Value::as_table);
    Ok(hosts
        .into_iter()
        .flat_map(|hosts| hosts.keys().cloned())
        .collect())
}
