//! `config.toml` of containerd: where its CRI looks for `hosts.toml` files.
//!
//! containerd 1.x reads versions 1 and 2; containerd 2.x reads 2, 3 and 4. Each version names the
//! section of the registries differently, so this module refuses an unknown version.
//!
//! When an imported file has a section of a plugin, containerd 1.x drops the same section of the main
//! file. Therefore a new section goes only into a file that already has it, or into the last one.

use toml::{Table, Value};

use super::toml_text;
use crate::error::TextProblem;

/// The default folder of `hosts.toml` files, below `/etc`.
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

/// What one file says about registries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegistrySettings {
    /// The first folder of `config_path`, when it is set.
    pub(crate) certs: Option<String>,
    /// It has the section of the plugin that reads registries.
    pub(crate) has_section: bool,
    /// Patterns of files that are read beside it; `None` without the key.
    pub(crate) imports: Option<Vec<String>>,
    /// The CRI, and with it Kubernetes, is switched off.
    pub(crate) cri_disabled: bool,
}

/// Reads a `config.toml` or a drop-in.
///
/// # Errors
/// Where it is no TOML, or has mirrors of the old kind, beside which containerd refuses `config_path`.
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
    let old = |key: &str| {
        let entries = toml_text::at(&table, registry)?.as_table()?.get(key)?;
        entries.as_table().filter(|entries| !entries.is_empty())
    };
    let with_tls = old("configs").is_some_and(|configs| {
        let tls = |config: &Value| config.get("tls").is_some();
        configs.values().any(tls)
    });
    if certs.is_none() && (old("mirrors").is_some() || with_tls) {
        let word = if with_tls { ".tls]" } else { ".mirrors" };
        let line = text.lines().position(|line| {
            let line = line.trim_start();
            line.starts_with('[') && line.contains(word)
        });
        return Err(TextProblem {
            line: line.map(|index| index + 1),
            message: format!(
                "this file has registry {} of the old kind, beside which containerd refuses config_path: move each \
                 to /etc/{DEFAULT_CERTS_DIR}/REGISTRY/hosts.toml first",
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

/// The file with that `config_path`; every other byte of it stays. A new one is of version 2, which all
/// containerds since 1.3 read.
///
/// # Errors
/// Where it is no TOML, or the key cannot be put in.
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
                     plugin with the registries to /etc/{DEFAULT_CERTS_DIR} by hand, or use a newer pierhead"
                ),
            })
        }
    }
}
