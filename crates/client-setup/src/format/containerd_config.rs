//! Edits `config.toml` of containerd: sets the folder in which its CRI plugin looks for
//! `hosts.toml` files.
//!
//! containerd 1.x reads versions 1 and 2 of the format, and containerd 2.x reads versions 2, 3 and
//! 4. In each version, the section of the registries has another name, so this module refuses an
//! unknown version.
//!
//! If an imported file has a section of a plugin, containerd 1.x ignores the same section of the
//! main file. Therefore, the caller passes the last file that has the section. If no file has the
//! section, the caller passes a new file of the imported folder, or else the main file.

use toml::{Table, Value};

use super::toml_text;
use crate::error::TextProblem;

/// The default folder of `hosts.toml` files, as a path below `/etc`.
pub(crate) const DEFAULT_CERTS_DIR: &str = "containerd/certs.d";

const V1: &[&str] = &["plugins", "cri", "registry", "config_path"];
const V2: &[&str] = &[
    "plugins",
    "io.containerd.grpc.v1.cri",
    "registry",
    "config_path",
];
const V3: &[&str] = &[
    "plugins",
    "io.containerd.cri.v1.images",
    "registry",
    "config_path",
];

/// The settings of registries in one file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegistrySettings {
    /// The first folder of `config_path`, if the key is set.
    pub(crate) certs: Option<String>,
    /// Whether the file has the section of the plugin that reads registries.
    pub(crate) has_section: bool,
    /// Patterns of the files that this file imports. `None` if the key `imports` is missing.
    pub(crate) imports: Option<Vec<String>>,
    /// Whether the CRI plugin is disabled, so that Kubernetes cannot use this containerd.
    pub(crate) cri_disabled: bool,
}

/// Reads a `config.toml` or a drop-in.
///
/// # Errors
/// The text is not TOML, or has mirrors in the deprecated form. containerd refuses a file that has
/// both these mirrors and `config_path`.
pub(crate) fn read(text: &str) -> Result<RegistrySettings, TextProblem> {
    let table = toml_text::parse(text)?;
    let path = path_of(text, &table)?;
    let certs = toml_text::at(&table, path)
        .and_then(Value::as_str)
        .and_then(|value| value.split(':').next())
        .filter(|value| !value.is_empty())
        .map(str::to_owned);
    let registry = &path[..path.len() - 1];
    let has_section = toml_text::at(&table, &path[..2]).is_some();
    let deprecated = |key: &str| {
        let entries = toml_text::at(&table, registry)?.as_table()?.get(key)?;
        entries.as_table().filter(|entries| !entries.is_empty())
    };
    let with_tls = deprecated("configs").is_some_and(|configs| {
        let tls = |config: &Value| config.get("tls").is_some();
        configs.values().any(tls)
    });
    if certs.is_none() && (deprecated("mirrors").is_some() || with_tls) {
        let word = if with_tls { ".tls]" } else { ".mirrors" };
        let line = text.lines().position(|line| {
            let line = line.trim_start();
            line.starts_with('[') && line.contains(word)
        });
        return Err(TextProblem {
            line: line.map(|index| index + 1),
            message: format!(
                "this file has registry {} in the deprecated form, together with which containerd refuses config_path: \
                 move each to /etc/{DEFAULT_CERTS_DIR}/REGISTRY/hosts.toml first",
                if with_tls {
                    "configs with tls"
                } else {
                    "mirrors"
                }
            ),
        });
    }
    let strings = |key: &str| {
        let list = table.get(key)?.as_array()?;
        Some(
            list.iter()
                .filter_map(|it| it.as_str().map(str::to_owned))
                .collect::<Vec<_>>(),
        )
    };
    let disabled = strings("disabled_plugins").unwrap_or_default();
    Ok(RegistrySettings {
        certs,
        has_section,
        imports: strings("imports"),
        cri_disabled: disabled.iter().any(|plugin| {
            matches!(
                plugin.as_str(),
                "cri" | "io.containerd.grpc.v1.cri" | "io.containerd.cri.v1.images"
            )
        }),
    })
}

/// Returns the text of the file with this `config_path`. All other bytes are kept. A new file has
/// version 2, which containerd reads since version 1.3.
///
/// # Errors
/// The text is not TOML, or the key cannot be inserted into the text.
pub(crate) fn with_config_path(text: Option<&str>, certs: &str) -> Result<String, TextProblem> {
    let text = match text {
        Some(text) if !text.trim().is_empty() => text,
        _ => "version = 2\n",
    };
    let path = path_of(text, &toml_text::parse(text)?)?;
    toml_text::set(text, path, certs)
}

fn path_of(text: &str, table: &Table) -> Result<&'static [&'static str], TextProblem> {
    let version = table.get("version");
    match version.map(Value::as_integer) {
        None | Some(Some(1)) => Ok(V1),
        Some(Some(2)) => Ok(V2),
        Some(Some(3 | 4)) => Ok(V3),
        Some(_) => {
            let is_key = |line: &str| line.trim_start().starts_with("version");
            let found = version.map(ToString::to_string).unwrap_or_default();
            Err(TextProblem {
                line: text.lines().position(is_key).map(|index| index + 1),
                message: format!(
                    "version = {found} is not known: pierhead knows 1 to 4, which containerd 1.3 to 2.4 read. Set config_path of the \
                     registry plugin to /etc/{DEFAULT_CERTS_DIR} by hand, or use a newer pierhead"
                ),
            })
        }
    }
}
