//! What the proxy is told.

use std::path::PathBuf;
use std::time::Duration;

use pierhead_oci::Registry;

/// Settings of one [`Proxy`](crate::Proxy).
#[derive(Clone, Debug)]
pub struct Config {
    /// Whom a request means that names no registry.
    pub default_upstream: Registry,
    /// Registries that are known by configuration, so that a first path segment of that name means them.
    pub known: Vec<Registry>,
    /// How long a tag is served without asking the upstream again.
    pub tag_freshness: Duration,
    /// An answer (data, stale, or an error) leaves within so long.
    pub answer_within: Duration,
    /// Connections at once; more are answered 503 and closed.
    pub max_connections: usize,
    /// A client that takes no byte of its answer for so long is cut.
    pub client_stall: Duration,
    /// After SIGTERM, requests under way may take so long.
    pub drain: Duration,
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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_upstream: Registry::DOCKER_HUB
                .parse()
                .expect("a constant that parses"),
            known: Vec::new(),
            tag_freshness: Duration::from_secs(60),
            answer_within: Duration::from_secs(5),
            max_connections: 4096,
            client_stall: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }
}
