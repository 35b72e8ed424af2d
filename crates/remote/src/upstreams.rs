//! Which upstream a registry's name means: a configured one, or a stranger on the public Internet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::proxy::matcher::Matcher;
use pierhead_oci::Registry;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::authorize::Memory;
use crate::client::{Lasting, Resolvers};
use crate::connect::{Connector, Resolve};
use crate::distrust::Distrust;
use crate::exchange::{Http, http};
use crate::failover::Places;
use crate::files::open_file;
use crate::guard::{Reach, host_of, port_of};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::origin::{Limits, Place, Shared};
use crate::retry::Budget;
use crate::token::Tokens;
use crate::{Address, Config, Credentials, Error, Upstream};

/// Where Docker Hub's API is.
const DOCKER_HUB_URL: &str = "https://registry-1.docker.io";

/// Where a registry is that nobody said more of: at its name, but for Docker Hub.
pub fn default_url(name: &Registry) -> String {
    if name.is_docker_hub() {
        DOCKER_HUB_URL.to_owned()
    } else {
        format!("https://{name}")
    }
}

/// All upstreams of one configuration.
pub(crate) struct Upstreams {
    configured: HashMap<Registry, Places>,
    strangers: Strangers,
    /// The connections of all strangers: they may reach the same places.
    public: Http,
    /// The same for Docker Hub: names that clients make up delay no lookup of it.
    hub: Http,
    credentials: HashMap<Registry, Credentials>,
    metrics: Metrics,
    shared: Arc<Shared>,
}

/// What every connector is made of.
struct Network<'a> {
    config: &'a Config,
    proxy: Option<Arc<Matcher>>,
}

impl Upstreams {
    /// `old` is what this takes the place of.
    pub(crate) fn new(
        config: Config,
        metrics: &Metrics,
        lasting: &Lasting,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        let network = Network {
            proxy: proxy(&config)?,
            config: &config,
        };
        let Resolvers {
            configured: resolver,
            others,
        } = &lasting.resolvers;
        let public = network.connector(Reach::default(), None, others)?;
        let public = http(public.concealing());
        let hub = http(network.connector(Reach::default(), None, resolver)?);
        let shared = Arc::new(Shared {
            limits: Limits {
                header_timeout: config.header_timeout,
                stall_timeout: config.stall_timeout,
                minimum_rate: config.minimum_rate,
            },
            tokens: Tokens::default(),
            guest_tokens: Tokens::default(),
            helper_folders: config.helper_folders.clone(),
            fetches: Arc::clone(&lasting.fetches),
            documents: Arc::clone(&lasting.documents),
            bandwidth: Arc::clone(&lasting.bandwidth),
        });
        let mut configured = HashMap::new();
        for (name, upstream) in &config.upstreams {
            let login = upstream.credentials.as_ref();
            let first = Address {
                url: upstream.url.clone(),
                credentials: login
                    .or_else(|| config.credentials.get(name).filter(|_| !upstream.mirror))
                    .cloned(),
                mirror: upstream.mirror,
            };
            let mut places = Vec::new();
            for address in std::iter::once(&first).chain(&upstream.others) {
                let (base, reach) = base_of(name, upstream, &address.url)?;
                let known = old.and_then(|old| old.health(name, &base));
                let place = Place {
                    name: name.clone(),
                    http: http(network.connector(reach, Some((name, upstream)), resolver)?),
                    credentials: address.credentials.clone(),
                    budget: Budget::new(),
                    metrics: metrics.upstream(name.as_str()),
                    memory: Mutex::new(Memory::default()),
                    health: known.unwrap_or_else(|| {
                        let address = where_of(&base);
                        let state = metrics.state(name.as_str(), Some(address));
                        Health::new(name.as_str(), address, state)
                    }),
                    distrust: Distrust::default(),
                    mirror: address.mirror,
                    shared: Arc::clone(&shared),
                    refusal: None,
                    base,
                };
                places.push(Arc::new(place));
            }
            configured.insert(name.clone(), places.into());
        }
        let (metrics, credentials) = (metrics.clone(), config.credentials);
        Ok(Self {
            configured,
            strangers: Strangers::default(),
            public,
            hub,
            credentials,
            metrics,
            shared,
        })
    }

    /// What is known of an address.
    fn health(&self, name: &Registry, base: &str) -> Option<Arc<Health>> {
        let mut places = self.configured.get(name)?.iter();
        let place = places.find(|place| place.base == base)?;
        Some(Arc::clone(&place.health))
    }

    /// The fix for a name with a port, where a table has the same name without one.
    fn leave_the_port_out(&self, name: &Registry) -> Option<String> {
        name.port()?;
        let without: Registry = name.host().parse().ok()?;
        self.configured
            .contains_key(&without)
            .then(|| format!("there is a table `{without}`: leave the port out"))
    }

    /// The addresses of the upstream of that name, in the order of preference.
    pub(crate) fn places(&self, name: &Registry) -> Result<Places, Error> {
        if let Some(places) = self.configured.get(name) {
            return Ok(Arc::clone(places));
        }
        let base = default_url(name);
        let label = if name.is_docker_hub() {
            name.as_str()
        } else {
            "other"
        };
        // Refused before anything is remembered of it; connecting checks again.
        let what = match base.parse() {
            Ok(url) => Reach::default().judge(&url).err(),
            Err(_) => Some("its name makes no URL".to_owned()),
        };
        let refusal = self.leave_the_port_out(name);
        if let Some(what) = what {
            return Err(Error::Forbidden {
                upstream: name.to_string(),
                what: refusal.unwrap_or(what),
            });
        }
        Ok(self.strangers.get(name, || Place {
            name: name.clone(),
            refusal,
            http: match name.is_docker_hub() {
                true => self.hub.clone(),
                false => self.public.clone(),
            },
            credentials: self.credentials.get(name).cloned(),
            budget: Budget::new(),
            metrics: self.metrics.upstream(label),
            memory: Mutex::new(Memory::default()),
            health: {
                let own = name.is_docker_hub().then(|| where_of(&base));
                let state = self.metrics.state(label, own);
                Health::new(name.as_str(), where_of(&base), state)
            },
            distrust: Distrust::default(),
            mirror: false,
            shared: Arc::clone(&self.shared),
            base,
        }))
    }
}

/// An address as the log and the metrics call it.
fn where_of(base: &str) -> &str {
    base.split_once("://").map_or(base, |(_, rest)| rest)
}

/// The base URL of a configured upstream, and where it may lead.
fn base_of(name: &Registry, upstream: &Upstream, url: &str) -> Result<(String, Reach), Error> {
    let wrong = |why: &str| Error::Config {
        what: format!("upstream {name}: {url:?} {why}"),
    };
    let base = url.trim_end_matches('/');
    let url: Uri = base.parse().map_err(|_| wrong("is no URL"))?;
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
    let mut reach = Reach::default();
    reach.trust_url(&url);
    for host in &upstream.trusted_hosts {
        let trusted = reach.trust_host(host);
        trusted.ok_or_else(|| Error::Config {
            what: format!("upstream {name}: trusted host {host:?} is no host"),
        })?;
    }
    Ok((base.to_owned(), reach))
}

fn proxy(config: &Config) -> Result<Option<Arc<Matcher>>, Error> {
    let Some(text) = config
        .https_proxy
        .as_deref()
        .filter(|text| !text.is_empty())
    else {
        return Ok(None);
    };
    // The address may hold a password: it is not repeated.
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

impl Network<'_> {
    fn connector(
        &self,
        reach: Reach,
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
            let file = open_file(path).map_err(|e| wrong(e.to_string()))?;
            for certificate in CertificateDer::pem_reader_iter(file) {
                let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                store.add(certificate).map_err(|e| wrong(e.to_string()))?;
                added += 1;
            }
            if added == 0 {
                return Err(wrong("holds no certificate".to_owned()));
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
            reach,
            Arc::new(tls),
            self.proxy.clone(),
            Arc::clone(resolver),
            self.config.connect_timeout,
        );
        Ok(connector)
    }
}

/// Upstreams that no configuration names.
#[derive(Default)]
struct Strangers(Mutex<Recent>);

/// With the tick of their last use.
#[derive(Default)]
struct Recent {
    by_name: HashMap<Registry, (Places, u64)>,
    tick: u64,
}

/// Strangers remembered: what they cost is some KiB each.
const MAX_STRANGERS: usize = 256;

impl Strangers {
    /// The one of that name, made when it is not there; the one not used for longest leaves.
    fn get(&self, registry: &Registry, make: impl FnOnce() -> Place) -> Places {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.tick += 1;
        let tick = recent.tick;
        if let Some((places, used)) = recent.by_name.get_mut(registry) {
            *used = tick;
            return Arc::clone(places);
        }
        if recent.by_name.len() >= MAX_STRANGERS {
            let oldest = recent.by_name.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.map(|name| recent.by_name.remove(&name));
        }
        let places: Arc<[_]> = [Arc::new(make())].into();
        let known = (Arc::clone(&places), tick);
        recent.by_name.insert(registry.clone(), known);
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstreams(change: impl FnOnce(&mut Config)) -> Result<Upstreams, Error> {
        let mut config = Config::default();
        change(&mut config);
        let metrics = Metrics::default();
        let lasting = Lasting::new(&config, &metrics);
        Upstreams::new(config, &metrics, &lasting, None)
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
    fn names_lead_to_urls() {
        let all = with("http://10.0.0.1:5000/prefix/", &[]).unwrap();
        for (name, expected) in [
            ("docker.io", "https://registry-1.docker.io/v2/"),
            ("ghcr.io", "https://ghcr.io/v2/"),
            ("quay.io:8443", "https://quay.io:8443/v2/"),
            ("[2606:4700::1]:5000", "https://[2606:4700::1]:5000/v2/"),
            ("up.example", "http://10.0.0.1:5000/prefix/v2/"),
        ] {
            let places = all.places(&name.parse().unwrap()).unwrap();
            assert_eq!(places[0].url("/v2/").unwrap().to_string(), expected);
        }
        let internal = all.places(&"10.0.0.1:5000".parse().unwrap());
        assert!(matches!(internal.err(), Some(Error::Forbidden { .. })));
    }

    #[test]
    fn a_name_with_a_port_is_told_of_the_table_without_one() {
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
            all.places(&name).err().unwrap().to_string()
        };
        let told = refused("registry.internal:5000");
        let fix = "there is a table `registry.internal`: leave the port out";
        assert!(told.ends_with(fix), "{told}");
        let told = refused("other.internal:5000");
        assert!(told.contains("has no public address"), "{told}");
    }

    #[test]
    fn bad_configurations_are_named() {
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
            let told = error.err().unwrap().to_string();
            assert!(told.contains(path.to_str().unwrap()), "{told}");
        }
    }

    #[test]
    fn strangers_are_bounded_and_the_latest_stay() {
        let all = upstreams(|_| ()).unwrap();
        let name = |n: usize| format!("r{n}.example").parse().unwrap();
        let first = all.places(&name(0)).unwrap();
        for n in 1..2 * MAX_STRANGERS {
            all.places(&name(n)).unwrap();
            assert!(Arc::ptr_eq(&first, &all.places(&name(0)).unwrap()));
        }
        assert_eq!(all.strangers.0.lock().unwrap().by_name.len(), MAX_STRANGERS);
    }
}
