//! Settings of the proxy: upstream registries, access rules, limits, timeouts, authentication, TLS.

use std::path::PathBuf;
use std::time::Duration;

use pierhead_host::CpuBudget;
use pierhead_oci::Registry;

use crate::access::rules::Rules;

/// The settings with which a [`Proxy`](crate::proxy::Proxy) is created.
#[derive(Clone, Debug)]
pub struct Config {
    /// The registry for requests that name no registry.
    pub default_upstream: Registry,
    /// The configured registries. If the first segment of a path is the name of a configured
    /// registry, the request means that registry.
    pub upstreams: Vec<Registry>,
    /// Registries whose deleted tags stay available: if such a registry answers 404 for a tag, the
    /// proxy serves the last manifest of the tag.
    pub keep_deleted: Vec<Registry>,
    /// Registries and repositories that clients may pull.
    pub rules: Rules,
    /// How long the proxy serves a tag without revalidation.
    pub tags_ttl: Duration,
    /// Deadline of every response: by then, the proxy sends current data, stale data, or an error.
    pub response_timeout: Duration,
    /// Maximum number of client connections. The proxy responds 503 on each further connection and
    /// closes it.
    pub max_connections: usize,
    /// Limits of one client, one registry and one request.
    pub limits: Limits,
    /// If a client reads no byte of its response for this long, the proxy disconnects the client.
    pub client_stall_timeout: Duration,
    /// Time limit of a request's head, from the head's first byte or from the end of the previous
    /// response. Thus also limits how long a connection may be idle. A request body gets the same
    /// time limit, counted from its own start.
    pub client_head_timeout: Duration,
    /// The method by which clients authenticate.
    pub auth: Auth,
    /// How long requests in progress may continue after SIGTERM.
    pub shutdown_grace: Duration,
    /// CPU time that serving blobs may use, so that the kernel never throttles the process. `None`:
    /// no limit. A reload of the configuration does not change this limit.
    pub cpu_budget: Option<CpuBudget>,
}

/// The method by which clients authenticate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// Every client is accepted without credentials.
    #[default]
    Open,
    /// Clients authenticate by a certificate, which the TLS handshake verifies
    /// ([`Tls::client_ca`](Tls::client_ca)).
    Certificate,
    /// Clients authenticate by user and password.
    Htpasswd {
        /// The htpasswd file: lines `user:hash` with bcrypt hashes. The proxy reads the file again
        /// when it changes.
        file: PathBuf,
        /// How long the proxy remembers that a user and password are right.
        cache_ttl: Duration,
    },
    /// Clients authenticate by their own credentials for the upstream. The upstream decides which
    /// repositories the client may read.
    PassThrough {
        /// How long the proxy remembers a decision of an upstream.
        cache_ttl: Duration,
        /// Whether clients without credentials may read what upstreams allow everybody to read.
        anonymous: bool,
    },
}

/// Limits of one client (an IPv4 address or an IPv6 /64 network), one registry, one request, and
/// all responses together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections of one client. For a further connection, the proxy closes the
    /// client's longest idle connection. If no connection is idle, the proxy responds 503 and
    /// closes the new connection.
    pub connections_per_client: usize,
    /// Maximum number of running downloads, over all clients and registries. Further downloads
    /// wait.
    pub downloads: usize,
    /// Maximum number of running downloads of one client. Four times this number may run or wait;
    /// the proxy refuses further downloads with 503.
    pub downloads_per_client: usize,
    /// Maximum number of running downloads from one registry. Further downloads wait. Unconfigured
    /// registries together use at most three quarters of the slots.
    pub downloads_per_registry: usize,
    /// Maximum bytes of responses in memory that clients have not read yet. Above this limit, the
    /// proxy responds 503. The bytes of request bodies count, too, from their arrival on. An eighth
    /// of this memory is reserved for clients that hold less than an eighth of it.
    pub response_memory: usize,
    /// Maximum bytes of `response_memory` for one client.
    pub response_memory_per_client: usize,
    /// Maximum number of headers of a request. Above this limit, the proxy responds 431.
    pub headers: usize,
    /// Maximum bytes of a request's headers. Above this limit, the proxy responds 431.
    pub header_size: usize,
    /// Maximum bytes of path and query together. Above this limit, the proxy responds 414.
    pub uri: usize,
}

impl Config {
    /// Whether the configuration lists that registry.
    pub(crate) fn is_configured(&self, registry: &Registry) -> bool {
        self.configured().any(|configured| configured == registry)
    }

    /// The registries that the configuration lists.
    pub(crate) fn configured(&self) -> impl Iterator<Item = &Registry> {
        std::iter::once(&self.default_upstream).chain(&self.upstreams)
    }
}

impl Limits {
    /// Derives the limits of one client and of one registry from the limits of all.
    pub fn new(connections: usize, downloads: usize, response_memory: usize) -> Self {
        Self {
            // Many machines behind one address count as one client; such a site may need a higher
            // value.
            connections_per_client: (connections / 8).max(1),
            downloads,
            // containerd and docker run 3 downloads for an image, podman 6.
            downloads_per_client: (downloads / 2).max(1),
            // A registry that never responds leaves a quarter to other registries.
            downloads_per_registry: downloads - downloads / 4,
            response_memory,
            response_memory_per_client: response_memory / 2,
            // Clients send about 12 headers. Credentials and tokens in headers take at most 8 KiB.
            headers: 100,
            header_size: 16 << 10,
            // Twice the length of the longest path with name, tag, namespace and
            // parameters.
            uri: 4096,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        // The memory is enough for 1024 responses of 128 KiB each to clients that read slowly.
        Self::new(4096, 32, 128 << 20)
    }
}

/// Files of a certificate and its key. The proxy reads the files again when they change.
#[derive(Clone, Debug)]
pub struct Tls {
    /// PEM file of the certificate chain, leaf first.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
    /// PEM file of certificate authorities. If set, clients must present a certificate of one of
    /// them.
    pub client_ca: Option<PathBuf>,
    /// Whether clients may connect without a certificate. A client without a certificate
    /// authenticates by [`Config::auth`].
    pub client_optional: bool,
    /// If this list is not empty, a client's certificate must have one of these names. The proxy
    /// compares the alternative names of the kinds DNS, URI and e-mail. The common name counts only
    /// if the certificate has no alternative name.
    pub client_names: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_upstream: Registry::DOCKER_HUB
                .parse()
                .expect("a constant that parses"),
            upstreams: Vec::new(),
            keep_deleted: Vec::new(),
            rules: Rules::default(),
            tags_ttl: Duration::from_secs(60),
            response_timeout: Duration::from_secs(5),
            max_connections: 4096,
            limits: Limits::default(),
            client_stall_timeout: Duration::from_secs(30),
            client_head_timeout: Duration::from_secs(60),
            auth: Auth::Open,
            shutdown_grace: Duration::from_secs(30),
            cpu_budget: None,
        }
    }
}
