//! Settings of the proxy.

use std::path::PathBuf;
use std::time::Duration;

use pierhead_host::CpuBudget;
use pierhead_oci::Registry;

use crate::access::rules::Rules;

/// Settings of one [`Proxy`](crate::proxy::Proxy).
#[derive(Clone, Debug)]
pub struct Config {
    /// Registry of a request that names no registry.
    pub default_upstream: Registry,
    /// Configured registries. A first path segment with the name of one of them means that registry.
    pub upstreams: Vec<Registry>,
    /// Registries and repositories that clients may pull.
    pub rules: Rules,
    /// How long the proxy serves a tag without revalidation.
    pub tags_ttl: Duration,
    /// Deadline of every response: data, stale data, or an error.
    pub response_timeout: Duration,
    /// Maximum number of connections. The proxy responds 503 on a further one and closes it.
    pub max_connections: usize,
    /// Limits of one client, one registry and one request.
    pub limits: Limits,
    /// The proxy disconnects a client that reads no byte of its response for this long.
    pub client_stall_timeout: Duration,
    /// Time limit of a request's head, from its first byte or from the end of the previous response. So it also bounds
    /// how long a connection may idle. The body has the same time again.
    pub client_head_timeout: Duration,
    /// How clients authenticate.
    pub auth: Auth,
    /// How long requests in progress may take after SIGTERM.
    pub shutdown_grace: Duration,
    /// CPU time that serving blobs may use, so that the kernel never throttles the process. `None`: no limit. A reload
    /// does not change it.
    pub cpu_budget: Option<CpuBudget>,
}

/// How clients authenticate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// Clients need no credentials.
    #[default]
    Open,
    /// By a certificate, which the TLS handshake verifies ([`Tls::client_ca`](Tls::client_ca)).
    Certificate,
    /// By user and password.
    Htpasswd {
        /// Lines `user:hash` with bcrypt hashes. The proxy reads the file again when it changes.
        file: PathBuf,
        /// How long the proxy remembers that a user and password are right.
        cache_ttl: Duration,
    },
    /// By the client's own credentials at the upstream, which decides about read access.
    PassThrough {
        /// How long the proxy remembers a decision of an upstream.
        cache_ttl: Duration,
        /// Whether clients without credentials may read what upstreams let everybody read.
        anonymous: bool,
    },
}

/// Limits of one client (an IPv4 address, an IPv6 /64), one registry, one request, and all responses together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections of one client. For one more, the proxy closes the client's longest idle one.
    /// Without an idle one, it responds 503 and closes the new one.
    pub connections_per_client: usize,
    /// Maximum number of running downloads, over all clients and registries. Further ones wait.
    pub downloads: usize,
    /// Maximum number of running downloads of one client. Four times as many may run or wait; the proxy refuses
    /// further ones with 503.
    pub downloads_per_client: usize,
    /// Maximum number of running downloads from one registry. Further ones wait. Unconfigured registries together use at
    /// most three quarters of the slots.
    pub downloads_per_registry: usize,
    /// Maximum bytes of responses in memory until clients have read them. Above it, the proxy responds 503. Request
    /// bodies count as they arrive. An eighth is reserved for clients that hold less than an eighth.
    pub response_memory: usize,
    /// Maximum bytes of `response_memory` for one client.
    pub response_memory_per_client: usize,
    /// Maximum number of headers of a request. Above it, the proxy responds 431.
    pub headers: usize,
    /// Maximum bytes of a request's headers. Above it, the proxy responds 431.
    pub header_size: usize,
    /// Maximum bytes of path and query. Above it, the proxy responds 414.
    pub uri: usize,
}

impl Config {
    /// Whether that registry is configured.
    pub(crate) fn is_configured(&self, registry: &Registry) -> bool {
        self.configured().any(|configured| configured == registry)
    }

    /// The configured registries.
    pub(crate) fn configured(&self) -> impl Iterator<Item = &Registry> {
        std::iter::once(&self.default_upstream).chain(&self.upstreams)
    }
}

impl Limits {
    /// Default of `connections_per_client`: an eighth of all connections. Machines behind one address count as one
    /// client and may need more.
    pub fn default_connections_per_client(connections: usize) -> usize {
        (connections / 8).max(1)
    }

    /// Default of `downloads_per_registry`: three quarters of all downloads. A registry that never responds leaves a
    /// quarter to the others.
    pub fn default_downloads_per_registry(downloads: usize) -> usize {
        downloads - downloads / 4
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_per_client: Self::default_connections_per_client(4096),
            downloads: 32,
            // Half of all downloads. containerd and docker run 3 for an image, podman 6.
            downloads_per_client: 16,
            downloads_per_registry: Self::default_downloads_per_registry(32),
            // 1024 responses that clients read slowly, of 128 KiB each.
            response_memory: 128 << 20,
            response_memory_per_client: 64 << 20,
            // Clients send about 12 headers. Credentials and tokens take at most 8 KiB.
            headers: 100,
            header_size: 16 << 10,
            // Twice the length of the longest name, tag, namespace and parameters.
            uri: 4096,
        }
    }
}

/// Files of a certificate and its key. The proxy reads them again when they change.
#[derive(Clone, Debug)]
pub struct Tls {
    /// PEM file of the certificate chain, leaf first.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
    /// PEM file of certificate authorities. If set, clients must present a certificate of one of them.
    pub client_ca: Option<PathBuf>,
    /// Clients may connect without a certificate. They then authenticate by [`Config::auth`].
    pub client_optional: bool,
    /// Unless empty: a client's certificate must have one of these names. The proxy compares the alternative names of
    /// the kinds DNS, URI and e-mail. The common name counts when the certificate has no alternative name.
    pub client_names: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_upstream: Registry::DOCKER_HUB
                .parse()
                .expect("a constant that parses"),
            upstreams: Vec::new(),
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
