//! Settings of the proxy.

use std::path::PathBuf;
use std::time::Duration;

use pierhead_host::CpuBudget;
use pierhead_oci::Registry;

use crate::access::rules::Rules;

/// Settings of one [`Proxy`](crate::proxy::Proxy).
#[derive(Clone, Debug)]
pub struct Config {
    /// Registry for requests that name none.
    pub default_upstream: Registry,
    /// Registries that are known by configuration, so that a first path segment of that name means them.
    pub known: Vec<Registry>,
    /// What may be pulled.
    pub rules: Rules,
    /// How long the proxy serves a tag without revalidation.
    pub tag_freshness: Duration,
    /// Deadline of every response: data, stale data, or an error.
    pub answer_within: Duration,
    /// Maximum number of connections. Further ones get 503 and are closed.
    pub max_connections: usize,
    /// What one client, one registry, one request may take.
    pub limits: Limits,
    /// The proxy disconnects a client that reads no byte of its response for this long.
    pub client_stall: Duration,
    /// Time limit of a request's head, from its first byte or from the end of the previous response. So it also bounds how
    /// long a connection may idle. The body has the same time again.
    pub client_head: Duration,
    /// How clients prove who they are.
    pub auth: Auth,
    /// How long requests in progress may take after SIGTERM.
    pub drain: Duration,
    /// Processor time that bytes of blobs keep within, so that the kernel never stops the process; `None` where nobody bounds it. What the
    /// proxy was made with holds: it does not change while it runs.
    pub quota: Option<CpuBudget>,
}

/// How clients prove who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// They need not.
    #[default]
    Open,
    /// By a certificate, which the handshake has looked at ([`Tls::client_ca`](Tls::client_ca)).
    Certificate,
    /// By user and password.
    Htpasswd {
        /// Lines `user:hash` with hashes of bcrypt; reread when it changes.
        file: PathBuf,
        /// A login that was found right is not looked at again for so long.
        lifetime: Duration,
    },
    /// By what an upstream lets their own login read.
    PassThrough {
        /// An upstream's verdict counts for so long.
        lifetime: Duration,
        /// Whether those who bring no login may read what upstreams let everybody read.
        anonymous: bool,
    },
}

/// What one client (an IPv4 address, an IPv6 /64), one registry or one request may take, and all answers together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of one client at once. For one more, the proxy closes the client's longest idle one. Without an idle
    /// one, it responds 503 and closes the new one.
    pub connections_per_client: usize,
    /// Downloads at once, over all clients and registries; more wait.
    pub fetches: usize,
    /// Downloads at once for one client. Four times as many may be under way or wait; more are answered 503.
    pub fetches_per_client: usize,
    /// Downloads at once from one registry; more wait. Unconfigured registries together use at most three quarters of the slots.
    pub fetches_per_registry: usize,
    /// Bytes of answers in memory, until clients have taken them; more are answered 503. Request bodies count as they
    /// arrive. An eighth is reserved for clients that hold less than an eighth.
    pub answer_memory: usize,
    /// Of these for one client.
    pub answer_memory_per_client: usize,
    /// Headers of a request; more are answered 431.
    pub headers: usize,
    /// Bytes of a request's headers; more are answered 431.
    pub header_size: usize,
    /// Bytes of path and query; more are answered 414.
    pub uri: usize,
}

impl Config {
    /// Whether that registry is configured.
    pub(crate) fn names(&self, registry: &Registry) -> bool {
        self.configured().any(|known| known == registry)
    }

    /// The configured registries.
    pub(crate) fn configured(&self) -> impl Iterator<Item = &Registry> {
        std::iter::once(&self.default_upstream).chain(&self.known)
    }
}

impl Limits {
    /// Default of `connections_per_client`: an eighth of all. Machines behind one address count as one client and may need more.
    pub fn connections_of_one(all: usize) -> usize {
        (all / 8).max(1)
    }

    /// Default of `fetches_per_registry`: a registry that answers nothing leaves a quarter of all to the others.
    pub fn fetches_of_one_registry(all: usize) -> usize {
        all - all / 4
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // An eighth of all.
            connections_per_client: Self::connections_of_one(4096),
            fetches: 32,
            // Half of all; containerd and docker want 3 for an image, podman 6.
            fetches_per_client: 16,
            fetches_per_registry: Self::fetches_of_one_registry(32),
            // 1024 answers that clients read slowly.
            answer_memory: 128 << 20,
            answer_memory_per_client: 64 << 20,
            // Clients send a dozen headers; credentials and tokens take 8 KiB at most.
            headers: 100,
            header_size: 16 << 10,
            // The longest name, tag, namespace and parameters fit twice.
            uri: 4096,
        }
    }
}

/// A certificate and key, reread when the files change.
#[derive(Clone, Debug)]
pub struct Tls {
    /// PEM, leaf first.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
    /// PEM of authorities: when given, clients must show a certificate of one of them.
    pub client_ca: Option<PathBuf>,
    /// Clients may come without a certificate, and then have to prove who they are by [`Config::auth`].
    pub client_optional: bool,
    /// When not empty: a client's certificate must have one of these names (DNS, URI or e-mail among its
    /// alternative names; the common name where it has none).
    pub client_names: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_upstream: Registry::DOCKER_HUB
                .parse()
                .expect("a constant that parses"),
            known: Vec::new(),
            rules: Rules::default(),
            tag_freshness: Duration::from_secs(60),
            answer_within: Duration::from_secs(5),
            max_connections: 4096,
            limits: Limits::default(),
            client_stall: Duration::from_secs(30),
            client_head: Duration::from_secs(60),
            auth: Auth::Open,
            drain: Duration::from_secs(30),
            quota: None,
        }
    }
}
