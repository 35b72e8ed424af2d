//! Finds the upstream for a registry name: a configured upstream, or any registry on the public
//! Internet.

use std::collections::HashMap;
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::proxy::matcher::Matcher;
use parking_lot::Mutex;
use pierhead_atomic_file::open_regular;
use pierhead_oci::Registry;
use pierhead_ttl_cache::TtlCache;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::auth::credentials::Credentials;
use crate::auth::state::AuthState;
use crate::auth::token::Tokens;
use crate::client::config::{Config, Upstream, UpstreamAddress};
use crate::connect::Connector;
use crate::connect::guard::{TargetPolicy, host_of, port_of};
use crate::connect::pool::{HttpPool, http_pool};
use crate::connect::resolve::Resolve;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::upstream::health::Health;
use crate::upstream::host::{RegistryHost, RegistryHosts, SharedState, TimeLimits};
use crate::upstream::limits::{Resolvers, SharedLimits};
use crate::upstream::mismatches::DigestMismatches;
use crate::upstream::retry::RetryBudget;

/// The base URL of Docker Hub's registry API.
const DOCKER_HUB_URL: &str = "https://registry-1.docker.io";

/// Returns the URL of a registry that the configuration does not name: `https://` and its name,
/// except for Docker Hub.
pub fn default_url(name: &Registry) -> String {
    if name.is_docker_hub() {
        DOCKER_HUB_URL.to_owned()
    } else {
        format!("https://{name}")
    }
}

/// All upstreams of one configuration.
pub(crate) struct Upstreams {
    configured: HashMap<Registry, RegistryHosts>,
    unconfigured: TtlCache<Registry, RegistryHosts>,
    /// The connection pool of all unconfigured registries. These registries share a pool, because
    /// the same target policy applies to all of them.
    public: HttpPool,
    /// The connection pool of Docker Hub. Docker Hub's pool has a resolver of its own, so that
    /// names that clients invent never delay lookups of Docker Hub.
    hub: HttpPool,
    credentials: HashMap<Registry, Credentials>,
    metrics: Metrics,
    shared: Arc<SharedState>,
}

/// Creates the connectors of all upstreams from their common settings.
struct ConnectorFactory<'a> {
    config: &'a Config,
    proxy: Option<Arc<Matcher>>,
}

impl Upstreams {
    /// Creates the upstreams of a configuration. Takes the health of addresses from `old`, the
    /// upstreams that the new ones replace.
    pub(crate) fn new(
        config: Config,
        metrics: &Metrics,
        limits: &SharedLimits,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        let connectors = ConnectorFactory {
            proxy: proxy(&config)?,
            config: &config,
        };
        let Resolvers {
            configured: resolver,
            unconfigured: others,
        } = &limits.resolvers;
        let public = connectors.connector(TargetPolicy::default(), None, others)?;
        let spawner = &limits.spawner;
        let public = http_pool(public.hiding_missing_names(), spawner);
        let hub = connectors.connector(TargetPolicy::default(), None, resolver)?;
        let hub = http_pool(hub, spawner);
        let shared = Arc::new(SharedState {
            limits: TimeLimits {
                header_timeout: config.header_timeout,
                stall_timeout: config.upstream_timeout,
                minimum_rate: config.minimum_rate,
            },
            tokens: Tokens::default(),
            pass_through_tokens: Tokens::default(),
            helper_folders: config.helper_folders.clone(),
            documents: limits.documents.clone(),
            bandwidth: Arc::clone(&limits.bandwidth),
        });
        let mut configured = HashMap::new();
        for (name, upstream) in &config.upstreams {
            let login = upstream.credentials.as_ref();
            let first = UpstreamAddress {
                url: upstream.url.clone(),
                credentials: login
                    .or_else(|| config.credentials.get(name).filter(|_| !upstream.mirror))
                    .cloned(),
                mirror: upstream.mirror,
            };
            let mut hosts = Vec::new();
            for address in std::iter::once(&first).chain(&upstream.others) {
                let (base, targets) = base_of(name, upstream, &address.url)?;
                let known = old.and_then(|old| old.health(name, &base));
                let host_metrics = metrics.upstream(name.as_str());
                let connector = connectors.connector(targets, Some((name, upstream)), resolver)?;
                let host = RegistryHost {
                    name: name.clone(),
                    http: http_pool(connector, spawner),
                    credentials: address.credentials.clone(),
                    budget: RetryBudget::new(host_metrics.retries.clone()),
                    metrics: host_metrics,
                    auth_state: Mutex::new(AuthState::default()),
                    health: known.unwrap_or_else(|| {
                        let address = address_of(&base);
                        let state = metrics.state(name.as_str(), Some(address));
                        Health::new(name.as_str(), address, state)
                    }),
                    mismatches: DigestMismatches::default(),
                    is_mirror: address.mirror,
                    shared: Arc::clone(&shared),
                    refusal: None,
                    base,
                };
                hosts.push(Arc::new(host));
            }
            configured.insert(name.clone(), hosts.into());
        }
        let (metrics, credentials) = (metrics.clone(), config.credentials);
        Ok(Self {
            configured,
            unconfigured: TtlCache::new(MAX_UNCONFIGURED, None),
            public,
            hub,
            credentials,
            metrics,
            shared,
        })
    }

    /// Returns the health of an address that this configuration contains.
    fn health(&self, name: &Registry, base: &str) -> Option<Arc<Health>> {
        let mut hosts = self.configured.get(name)?.iter();
        let host = hosts.find(|host| host.base == base)?;
        Some(Arc::clone(&host.health))
    }

    /// Returns the hint for a name with a port, if an `[upstreams]` table has the same name without
    /// a port.
    fn port_hint(&self, name: &Registry) -> Option<String> {
        name.port()?;
        let without: Registry = name.host().parse().ok()?;
        self.configured
            .contains_key(&without)
            .then(|| format!("there is a table `{without}`: leave the port out"))
    }

    /// Returns the hosts of a registry, in the order of preference.
    pub(crate) fn hosts(&self, name: &Registry) -> Result<RegistryHosts, Error> {
        if let Some(hosts) = self.configured.get(name) {
            return Ok(Arc::clone(hosts));
        }
        let base = default_url(name);
        let label = if name.is_docker_hub() {
            name.as_str()
        } else {
            "other"
        };
        // The name is checked here, so that a refused name leaves no state in memory. If the name
        // is allowed, the addresses are checked again for each connection.
        let what = match base.parse() {
            Ok(url) => TargetPolicy::default().check(&url).err(),
            Err(_) => Some("its name is not valid in a URL".to_owned()),
        };
        let refusal = self.port_hint(name);
        if let Some(what) = what {
            return Err(Error::Forbidden {
                upstream: name.to_string(),
                what: refusal.unwrap_or(what),
            });
        }
        if let Some(hosts) = self.unconfigured.get(name) {
            return Ok(hosts);
        }
        let mut hosts = self.unconfigured_host(name, label, base, refusal);
        self.unconfigured.update(name.clone(), |current| {
            // Another request may have created the host in the meantime.
            current
                .map(|current| hosts = current.clone())
                .is_none()
                .then(|| hosts.clone())
        });
        Ok(hosts)
    }

    /// Creates the single host of a registry that the configuration does not name.
    fn unconfigured_host(
        &self,
        name: &Registry,
        label: &str,
        base: String,
        refusal: Option<String>,
    ) -> RegistryHosts {
        let metrics = self.metrics.upstream(label);
        let host = RegistryHost {
            name: name.clone(),
            refusal,
            http: match name.is_docker_hub() {
                true => self.hub.clone(),
                false => self.public.clone(),
            },
            credentials: self.credentials.get(name).cloned(),
            budget: RetryBudget::new(metrics.retries.clone()),
            metrics,
            auth_state: Mutex::new(AuthState::default()),
            health: {
                let own = name.is_docker_hub().then(|| address_of(&base));
                let state = self.metrics.state(label, own);
                Health::new(name.as_str(), address_of(&base), state)
            },
            mismatches: DigestMismatches::default(),
            is_mirror: false,
            shared: Arc::clone(&self.shared),
            base,
        };
        [Arc::new(host)].into()
    }
}

/// Returns the name of an address in logs and metrics: its URL without the scheme.
fn address_of(base: &str) -> &str {
    base.split_once("://").map_or(base, |(_, rest)| rest)
}

/// Returns the base URL of a configured address, and the policy for the targets of its requests.
fn base_of(
    name: &Registry,
    upstream: &Upstream,
    url: &str,
) -> Result<(String, TargetPolicy), Error> {
    let wrong = |why: &str| Error::Config {
        what: format!("upstream {name}: {url:?} {why}"),
    };
    let base = url.trim_end_matches('/');
    let url: Uri = base.parse().map_err(|_| wrong("is not a URL"))?;
    if host_of(&url).is_none() || port_of(&url).is_none() {
        return Err(wrong("does not begin with https:// or http:// and a host"));
    }
    if url.query().is_some()
        || url
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(wrong("has more than scheme, host, port and path"));
    }
    let mut targets = TargetPolicy::default();
    targets.trust_url(&url);
    for host in &upstream.trusted_hosts {
        let trusted = targets.trust_host(host);
        trusted.ok_or_else(|| Error::Config {
            what: format!("upstream {name}: trusted host {host:?} is not a host"),
        })?;
    }
    Ok((base.to_owned(), targets))
}

fn proxy(config: &Config) -> Result<Option<Arc<Matcher>>, Error> {
    let Some(text) = config
        .https_proxy
        .as_deref()
        .filter(|text| !text.is_empty())
    else {
        return Ok(None);
    };
    // The message does not repeat the address, because the address may contain a password.
    let wrong = || Error::Config {
        what: "the HTTPS proxy is not http://[user:password@]host:port".to_owned(),
    };
    let url: Uri = text.parse().map_err(|_| wrong())?;
    if url.scheme() != Some(&Scheme::HTTP) || host_of(&url).is_none() {
        return Err(wrong());
    }
    Ok(Some(Arc::new(
        Matcher::builder()
            .https(text)
            .no(config.no_proxy.join(","))
            .build(),
    )))
}

impl ConnectorFactory<'_> {
    fn connector(
        &self,
        targets: TargetPolicy,
        upstream: Option<(&Registry, &Upstream)>,
        resolver: &Arc<dyn Resolve>,
    ) -> Result<Connector, Error> {
        let mut roots = Arc::clone(&self.config.roots);
        if let Some((name, Upstream { ca: Some(path), .. })) = upstream {
            let wrong = |why: String| Error::Config {
                what: format!("upstream {name}: CA file {}: {why}", path.display()),
            };
            let store: &mut RootCertStore = Arc::make_mut(&mut roots);
            let mut added = 0;
            let file = open_regular(path).map_err(|e| wrong(e.to_string()))?;
            for certificate in CertificateDer::pem_reader_iter(file) {
                let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                store.add(certificate).map_err(|e| wrong(e.to_string()))?;
                added += 1;
            }
            if added == 0 {
                return Err(wrong("contains no certificate".to_owned()));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Config {
                what: format!("TLS: {e}"),
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = Connector::new(
            targets,
            Arc::new(tls),
            self.proxy.clone(),
            Arc::clone(resolver),
            self.config.connect_timeout,
        );
        Ok(connector)
    }
}

/// Maximum number of unconfigured registries with cached state. The state of each registry takes
/// some KiB.
const MAX_UNCONFIGURED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn upstreams(change: impl FnOnce(&mut Config)) -> Result<Upstreams, Error> {
        let mut config = Config::default();
        change(&mut config);
        let metrics = Metrics::default();
        let limits = SharedLimits::new(&config, &metrics);
        Upstreams::new(config, &metrics, &limits, None)
    }

    fn with(url: &str, trusted: &[&str]) -> Result<Upstreams, Error> {
        let upstream = Upstream {
            url: url.to_owned(),
            trusted_hosts: trusted.iter().map(|host| (*host).to_owned()).collect(),
            ..Upstream::default()
        };
        upstreams(|config| {
            config
                .upstreams
                .insert("up.example".parse().unwrap(), upstream);
        })
    }

    #[test]
    fn each_registry_name_has_its_url() {
        let all = with("http://10.0.0.1:5000/prefix/", &[]).unwrap();
        for (name, expected) in [
            ("docker.io", "https://registry-1.docker.io/v2/"),
            ("ghcr.io", "https://ghcr.io/v2/"),
            ("quay.io:8443", "https://quay.io:8443/v2/"),
            ("[2606:4700::1]:5000", "https://[2606:4700::1]:5000/v2/"),
            ("up.example", "http://10.0.0.1:5000/prefix/v2/"),
        ] {
            let hosts = all.hosts(&name.parse().unwrap()).unwrap();
            assert_eq!(hosts[0].url("/v2/").unwrap().to_string(), expected);
        }
        let internal = all.hosts(&"10.0.0.1:5000".parse().unwrap());
        assert!(matches!(internal.err(), Some(Error::Forbidden { .. })));
    }

    #[test]
    fn the_refusal_of_a_name_with_a_port_hints_at_the_table_without_one() {
        let all = upstreams(|config| {
            let upstream = Upstream {
                url: "http://10.0.0.1:5000".to_owned(),
                ..Upstream::default()
            };
            let name = "registry.internal".parse().unwrap();
            config.upstreams.insert(name, upstream);
        })
        .unwrap();
        let refused = |name: &str| {
            let name = name.parse().unwrap();
            all.hosts(&name).err().unwrap().to_string()
        };
        let message = refused("registry.internal:5000");
        let fix = "there is a table `registry.internal`: leave the port out";
        assert!(message.ends_with(fix), "{message}");
        let message = refused("other.internal:5000");
        assert!(message.contains("has no public address"), "{message}");
    }

    #[test]
    fn errors_name_the_invalid_configuration() {
        for url in [
            "",
            "registry.corp",
            "ftp://a.io",
            "https://u:p@a.io",
            "https://a.io/?q",
            "https://",
        ] {
            let error = with(url, &[]).err().unwrap();
            assert!(error.to_string().contains("up.example"), "{url}: {error}");
        }
        let error = with("https://a.io", &["a b"]).err().unwrap();
        assert!(error.to_string().contains("a b"), "{error}");
        for proxy in ["socks5://a:1", "a b", "https://a:1", "http://"] {
            let error = upstreams(|config| config.https_proxy = Some(proxy.to_owned()));
            assert!(matches!(error.err(), Some(Error::Config { .. })), "{proxy}");
        }
        let ca = tempfile::NamedTempFile::new().unwrap();
        for path in [ca.path().to_owned(), ca.path().join("absent")] {
            let error = upstreams(|config| {
                let url = "https://a.io".to_owned();
                let upstream = Upstream {
                    url,
                    ca: Some(path.clone()),
                    ..Upstream::default()
                };
                config.upstreams.insert("a.io".parse().unwrap(), upstream);
            });
            let message = error.err().unwrap().to_string();
            assert!(message.contains(path.to_str().unwrap()), "{message}");
        }
    }

    #[test]
    fn unconfigured_registries_are_bounded_and_the_most_recent_stay() {
        let all = upstreams(|_| ()).unwrap();
        let name = |n: usize| format!("r{n}.example").parse().unwrap();
        let first = all.hosts(&name(0)).unwrap();
        for n in 1..2 * MAX_UNCONFIGURED {
            all.hosts(&name(n)).unwrap();
            assert!(Arc::ptr_eq(&first, &all.hosts(&name(0)).unwrap()));
        }
        assert_eq!(all.unconfigured.len(), MAX_UNCONFIGURED);
    }
}
