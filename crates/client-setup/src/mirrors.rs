//! Reads the registry mirrors in the present configuration files of a client, whether pierhead or a
//! user configured these mirrors.

use std::path::Path;

use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::error::Error;
use crate::format::{containerd_config, daemon_json, hosts_toml};
use crate::original_files::OriginalFiles;
use crate::plan;

/// The configured mirrors of one client.
#[derive(Debug, Default)]
pub struct ConfiguredMirrors {
    /// The addresses of the mirrors, in the spelling of the client's files.
    pub mirrors: Vec<String>,
    /// The registries for which the client uses these mirrors, as text.
    pub scope: String,
    /// The reason why the client does not use the mirrors; `None` if the client uses them.
    pub problem: Option<String>,
}

impl ConfiguredMirrors {
    /// Reads the mirrors in the client's files. `daemon_json` is the configuration file of dockerd,
    /// if that is not the default file. The call blocks.
    ///
    /// # Errors
    /// The error names the file that cannot be read or parsed, and the line.
    pub fn read(
        root: &ConfigRoot,
        client: Client,
        daemon_json: Option<&Path>,
    ) -> Result<Self, Error> {
        match client {
            Client::Docker => Self::of_docker(root, daemon_json),
            Client::Containerd => Self::of_containerd(root),
            Client::Podman | Client::Crio => Self::of_containers(root),
        }
    }

    fn of_docker(root: &ConfigRoot, named: Option<&Path>) -> Result<Self, Error> {
        let path = plan::docker_file(root, named);
        let text = root.read(&path)?.unwrap_or_default();
        let mirrors =
            daemon_json::mirrors(&text).map_err(|problem| problem.in_file(root.real(&path)))?;
        Ok(Self {
            mirrors,
            scope: "Docker Hub".to_owned(),
            problem: None,
        })
    }

    fn of_containerd(root: &ConfigRoot) -> Result<Self, Error> {
        let originals = OriginalFiles::unchanged(root);
        let main = root.etc("containerd/config.toml");
        let read = plan::containerd_files(&originals, &main)?;
        let default_folder = root.etc(containerd_config::DEFAULT_CERTS_DIR);
        let certs = read.certs();
        let folder = certs.as_deref().unwrap_or(&default_folder);
        let mut found = Self::default();
        let mut scopes = Vec::new();
        for name in root.names(folder)? {
            let path = folder.join(&name).join("hosts.toml");
            let Some(text) = root.read(&path)? else {
                continue;
            };
            let names =
                hosts_toml::names(&text).map_err(|problem| problem.in_file(root.real(&path)))?;
            if !names.is_empty() {
                scopes.push(if name == "_default" {
                    "every other registry".to_owned()
                } else {
                    name
                });
            }
            found.mirrors.extend(names);
        }
        found.scope = match scopes.as_slice() {
            [only] if only == "every other registry" => "every registry".to_owned(),
            _ => scopes.join(", "),
        };
        if certs.is_none() {
            found.problem = Some(format!(
                "its CRI does not read {}: set config_path in {}",
                folder.display(),
                root.real(&main).display()
            ));
        }
        Ok(found)
    }

    fn of_containers(root: &ConfigRoot) -> Result<Self, Error> {
        let by_registry = plan::containers_mirrors(root)?;
        let mut found = Self::default();
        let mut scopes = Vec::new();
        for (registry, mirrors) in by_registry {
            if !mirrors.is_empty() {
                scopes.push(registry);
            }
            found.mirrors.extend(mirrors);
        }
        found.scope = scopes.join(", ");
        Ok(found)
    }
}
