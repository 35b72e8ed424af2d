//! Determines the registry of a request: from the query parameter `ns`, or from the first path
//! segment. If a request has neither `ns` nor a registry in its path, its registry is the default
//! upstream.

use pierhead_oci::{Endpoint, Name, ParseError, Registry, Repository};

use crate::config::Config;
use crate::error::Error;

/// Returns the registry and the repository of a request. `name` is from the path, `query` is the
/// raw query. The first of these sources that exists decides:
///
/// 1. `?ns=REGISTRY`, which containerd, BuildKit and dockerd 29 send to a mirror.
/// 2. The first path segment, if it is a configured registry or has the form of a registry. podman
///    and crane put the registry into the path.
/// 3. The default upstream, for dockerd up to version 28.
///
/// Official images of Docker Hub are in `library/`, so a repository name with one part gets this
/// prefix there.
pub(crate) fn route(
    name: &Name,
    query: Option<&str>,
    config: &Config,
) -> Result<(Registry, Repository), Error> {
    let namespace = Endpoint::namespace(query).map_err(Error::Namespace)?;
    let (registry, repository) = match namespace {
        Some(registry) => {
            let repository = name.whole().cloned();
            let two_registries =
                ParseError::Repository("it contains a registry, and so does the parameter ns");
            (registry, repository.ok_or(two_registries)?)
        }
        None => leading_registry(name, config)
            .unwrap_or_else(|| (config.default_upstream.clone(), name.repository().clone())),
    };
    let repository = registry.qualify(repository);
    Ok((registry, repository))
}

fn leading_registry(name: &Name, config: &Config) -> Option<(Registry, Repository)> {
    let (registry, repository) = name.split_first()?;
    let is_registry = name.registry().is_some() || config.upstreams.contains(&registry);
    is_registry.then_some((registry, repository))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(name: &str, query: Option<&str>) -> Result<String, Error> {
        let config = Config {
            upstreams: vec!["corp".parse().unwrap()],
            ..Config::default()
        };
        route(&name.parse().unwrap(), query, &config)
            .map(|(registry, repository)| format!("{registry} {repository}"))
    }

    #[test]
    fn names_and_namespaces_are_routed() {
        for (name, query, expected) in [
            ("library/redis", None, "docker.io library/redis"),
            ("redis", None, "docker.io library/redis"),
            ("docker.io/library/redis", None, "docker.io library/redis"),
            ("docker.io/redis", None, "docker.io library/redis"),
            ("index.docker.io/redis", None, "docker.io library/redis"),
            ("ghcr.io/owner/app", None, "ghcr.io owner/app"),
            ("quay.io/app", None, "quay.io app"),
            ("localhost/app", None, "localhost app"),
            ("localhost:5000/app", None, "localhost:5000 app"),
            ("corp/app", None, "corp app"),
            ("owner/app", None, "docker.io owner/app"),
            // A path with a single segment names a repository and no registry.
            ("a.b", None, "docker.io library/a.b"),
            (
                "library/redis",
                Some("ns=docker.io"),
                "docker.io library/redis",
            ),
            ("app", Some("ns=ghcr.io"), "ghcr.io app"),
            ("app", Some("ns=127.0.0.1%3A5000"), "127.0.0.1:5000 app"),
            (
                "redis",
                Some("x=1&ns=registry-1.docker.io"),
                "docker.io library/redis",
            ),
            ("app", Some("ns="), "docker.io library/app"),
            // `ns` has precedence over a segment with the form of a registry.
            ("quay.io/app", Some("ns=ghcr.io"), "ghcr.io quay.io/app"),
            ("app/x", Some("nsx=quay.io"), "docker.io app/x"),
        ] {
            assert_eq!(routed(name, query).unwrap(), expected, "{name} {query:?}");
        }
    }

    #[test]
    fn a_namespace_that_is_not_a_registry_is_refused() {
        for query in [
            "ns=http://ghcr.io",
            "ns=a/b",
            "ns=a%20b",
            "ns=%zz",
            "ns=%",
            "ns=..",
            "ns=a@b.c",
            "ns=%0d%0a",
        ] {
            assert!(
                matches!(routed("app", Some(query)), Err(Error::Namespace(_))),
                "{query}"
            );
        }
        let twice = routed("localhost:5000/app", Some("ns=ghcr.io"));
        assert!(matches!(
            twice,
            Err(Error::Parse(ParseError::Repository(_)))
        ));
    }
}
