//! The formats of the clients' files: each function takes the old text and returns the new text. No
//! I/O.

pub(crate) mod containerd_config;
pub(crate) mod daemon_json;
pub(crate) mod hosts_toml;
pub(crate) mod registries_conf;
#[cfg(test)]
mod tests;
pub(crate) mod toml_text;
