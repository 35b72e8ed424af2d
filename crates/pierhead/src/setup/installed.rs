//! What a client is set up with at present, by whomever.

use std::collections::BTreeMap;
use std::path::Path;

use super::plan::{self, Before};
use super::{Place, docker, hosts};
use crate::cli::setup::Client;

/// The mirrors of one client.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    /// As the client's files write them.
    pub(crate) mirrors: Vec<String>,
    /// For which registries.
    pub(crate) scope: String,
    /// Why the client does not look at them.
    pub(crate) problem: Option<String>,
}

impl Installed {
    /// Reads the client's files; `docker` is dockerd's where it is not the usual one.
    ///
    /// # Errors
    /// One that cannot be read or understood, with its line.
    pub(crate) fn read(
        place: &Place,
        client: Client,
        docker: Option<&Path>,
    ) -> anyhow::Result<Self> {
        match client {
            Client::Docker => Self::of_docker(place, docker),
            Client::Containerd => Self::of_containerd(place),
            Client::Podman | Client::Crio => Self::of_containers(place),
        }
    }

    fn of_docker(place: &Place, named: Option<&Path>) -> anyhow::Result<Self> {
        let path = plan::docker_file(place, named);
        let text = place.read(&path)?.unwrap_or_default();
        let mirrors =
            docker::mirrors(&text).map_err(|problem| plan::in_file(place, &path, &problem))?;
        Ok(Self {
            mirrors,
            scope: "Docker Hub".to_owned(),
            problem: None,
        })
    }

    fn of_containerd(place: &Place) -> anyhow::Result<Self> {
        let before = Before {
            place,
            files: BTreeMap::new(),
        };
        let main = place.etc("containerd/config.toml");
        let read = plan::containerd_files(&before, &main)?;
        let usual = place.etc(super::containerd::CERTS);
        let certs = read.certs();
        let folder = certs.as_deref().unwrap_or(&usual);
        let mut found = Self::default();
        let mut scopes = Vec::new();
        for name in place.names(folder)? {
            let path = folder.join(&name).join("hosts.toml");
            let Some(text) = place.read(&path)? else {
                continue;
            };
            let names =
                hosts::names(&text).map_err(|problem| plan::in_file(place, &path, &problem))?;
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
                "its CRI does not look into {}: config_path is not set in {}",
                folder.display(),
                place.real(&main).display()
            ));
        }
        Ok(found)
    }

    fn of_containers(place: &Place) -> anyhow::Result<Self> {
        let by_registry = plan::containers_mirrors(place)?;
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

impl plan::ContainerdFiles {
    /// The folder that the CRI looks into, the last file's word.
    pub(crate) fn certs(&self) -> Option<std::path::PathBuf> {
        let certs = self
            .files
            .iter()
            .rev()
            .find_map(|file| file.says.certs.clone());
        certs.map(|folder| Path::new(&folder).to_owned())
    }
}
