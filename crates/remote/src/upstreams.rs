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
use tokio::sync::Semaphore;

use crate::authorize::Memory;
use crate::bandwidth::Bandwidth;
use crate::connect::Connector;
use crate::exchange::{Http, http};
use crate::guard::{Reach, host_of, port_of};
use crate::metrics::Metrics;
use crate::origin::{Limits, Place, Shared};
use crate::retry::Budget;
use crate::token::Tokens;
use crate::{Config, Credentials, Error, Upstream};

/// Where Docker Hub's API is.
const DOCKER_HUB_URL: &str = "https://registry-1.docker.io";

/// All upstreams of one configuration.
pub(crate) struct Upstreams {
    configured: HashMap<Registry, Arc<Place>>,
    strangers: Strangers,
    /// The connections of all strangers: they may reach the same places.
    public: Http,
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
    pub(crate) fn new(config: Config, metrics: &Metrics) -> Result<Self, Error> {
        let network = Network {
            proxy: proxy(&config)?,
            config: &config,
        };
        let public = network.http(Reach::default(), None)?;
        let shared = Arc::new(Shared {
            limits: Limits {
                header_timeout: config.header_timeout,
                stall_timeout: config.stall_timeout,
            },
            tokens: Tokens::default(),
            guest_tokens: Tokens::default(),
            helper_folders: config.helper_folders.clone(),
            fetches: Arc::new(Semaphore::new(
                config.max_fetches.clamp(1, Semaphore::MAX_PERMITS),
            )),
            bandwidth: config.bandwidth.map(Bandwidth::new),
        });
        let mut configured = HashMap::new();
        for (name, upstream) in &config.upstreams {
            let (base, reach) = base_of(name, upstream)?;
            let credentials = upstream
                .credentials
                .as_ref()
                .or(config.credentials.get(name))
                .cloned();
            let place = Place {
                name: name.clone(),
                base,
                http: network.http(reach, Some((name, upstream)))?,
                credentials,
                budget: Budget::new(),
                metrics: metrics.upstream(name.as_str()),
                memory: Mutex::new(Memory::default()),
                shared: Arc::clone(&shared),
            };
            configured.insert(name.clone(), Arc::new(place));
        }
        let (metrics, credentials) = (metrics.clone(), config.credentials);
        Ok(Self {
            configured,
            strangers: Strangers::default(),
            public,
            credentials,
            metrics,
            shared,
        })
    }

    /// The upstream of that name.
    pub(crate) fn place(&self, name: &Registry) -> Result<Arc<Place>, Error> {
        if let Some(place) = self.configured.get(name) {
            return Ok(Arc::clone(place));
        }
        let (base, label) = if name.is_docker_hub() {
            (DOCKER_HUB_URL.to_owned(), name.as_str())
        } else {
            (format!("https://{name}"), "other")
        };
        // Refused before anything is remembered of it; connecting checks again.
        let what = match base.parse() {
            Ok(url) => Reach::default().judge(&url).err(),
            Err(_) => Some("its name makes no URL".to_owned()),
        };
        if let Some(what) = what {
            return Err(Error::Forbidden {
                upstream: name.to_string(),
                what,
            });
        }
        Ok(self.strangers.get(name, || Place {
            name: name.clone(),
            base,
            http: self.public.clone(),
            credentials: self.credentials.get(name).cloned(),
            budget: Budget::new(),
            metrics: self.metrics.upstream(label),
            memory: Mutex::new(Memory::default()),
            shared: Arc::clone(&self.shared),
        }))
    }
}

/// The base URL of a configured upstream, and where it may lead.
fn base_of(name: &Registry, upstream: &Upstream) -> Result<(String, Reach), Error> {
    let wrong = |why: &str| Error::Config {
        what: format!("upstream {name}: {:?} {why}", upstream.url),
    };
    let base = upstream.url.trim_end_matches('/');
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
    fn http(&self, reach: Reach, upstream: Option<(&Registry, &Upstream)>) -> Result<Http, Error> {
        let mut roots = Arc::clone(&self.config.roots);
        if let Some((name, Upstream { ca: Some(path), .. })) = upstream {
            let wrong = |why: String| Error::Config {
                what: format!("upstream {name}: CA file {}: {why}", path.display()),
            };
            let store: &mut RootCertStore = Arc::make_mut(&mut roots);
            let mut added = 0;
            for certificate in
                CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?
            {
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
        Ok(http(Connector::new(
            reach,
            Arc::new(tls),
            self.proxy.clone(),
            self.config.connect_timeout,
        )))
    }
}

/// Upstreams that no configuration names.
#[derive(Default)]
struct Strangers(Mutex<Recent>);

/// With the tick of their last use.
#[derive(Default)]
struct Recent {
    by_name: HashMap<Registry, (Arc<Place>, u64)>,
    tick: u64,
}

/// Strangers remembered: what they cost is some KiB each.
const MAX_STRANGERS: usize = 256;

impl Strangers {
    /// The one of that name, made when it is not there; the one not used for longest leaves.
    fn get(&self, registry: &Registry, make: impl FnOnce() -> Place) -> Arc<Place> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.tick += 1;
        let tick = recent.tick;
        if let Some((place, used)) = recent.by_name.get_mut(registry) {
            *used = tick;
            return Arc::clone(place);
        }
        if recent.by_name.len() >= MAX_STRANGERS {
            let oldest = recent.by_name.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.map(|name| recent.by_name.remove(&name));
        }
        let place = Arc::new(make());
        let known = (Arc::clone(&place), tick);
        recent.by_name.insert(registry.clone(), known);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstreams(change: impl FnOnce(&mut Config)) -> Result<Upstreams, Error> {
        let mut config = Config::default();
        change(&mut config);
        Upstreams::new(config, &Metrics::default())
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
            let place = all.place(&name.parse().unwrap()).unwrap();
            assert_eq!(place.url("/v2/").unwrap().to_string(), expected);
        }
        let internal = all.place(&"10.0.0.1:5000".parse().unwrap());
        assert!(matches!(internal.err(), Some(Error::Forbidden { .. })));
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
        let first = all.place(&name(0)).unwrap();
        for n in 1..2 * MAX_STRANGERS {
            all.place(&name(n)).unwrap();
            assert!(Arc::ptr_eq(&first, &all.place(&name(0)).unwrap()));
        }
        assert_eq!(all.strangers.0.lock().unwrap().by_name.len(), MAX_STRANGERS);
    }
}
