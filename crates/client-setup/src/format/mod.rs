//! The formats of the clients' configuration files. Each function gets the old text of a file and
//! returns the new text, without I/O.

pub(crate) mod containerd_config;
pub(crate) mod daemon_json;
pub(crate) mod hosts_toml;
pub(crate) mod registries_conf;
#[cfg(test)]
mod tests;
pub(crate) mod toml_text;
