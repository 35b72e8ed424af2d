//! What the client is told.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_oci::Registry;
use rustls::RootCertStore;

use crate::Credentials;

/// Settings of one [`Client`](crate::Client). `Default` is what a bare `pierhead serve` uses, but for
/// the `roots`, which only the binary can read.
#[derive(Clone, Debug)]
pub struct Config {
    /// Registries that the configuration names. Any other public one is reached at `https://<its name>`.
    pub upstreams: HashMap<Registry, Upstream>,
    /// Whom to log in as at registries whose [`Upstream`] says nothing of it, or that have none: what a
    /// Docker `config.json` holds.
    pub credentials: HashMap<Registry, Credentials>,
    /// The certificate authorities of the system. Empty: no public registry can be reached.
    pub roots: Arc<RootCertStore>,
    /// Time for DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time from the request to the response's headers, on a connection that stands.
    pub header_timeout: Duration,
    /// A body that brings nothing for so long is cut (and resumed).
    pub stall_timeout: Duration,
    /// Bytes a second over all blob fetches; `None` = no cap.
    pub bandwidth: Option<u64>,
    /// Blob fetches at once, over all upstreams; more wait, first come first served.
    pub max_fetches: usize,
    /// `https_proxy`, already read from the environment by the binary: `http://[user:password@]host:port`.
    /// Plain HTTP upstreams are reached without it. It resolves names itself, so that behind it the guard
    /// against internal addresses sees names and literal addresses only: the proxy has to refuse the rest.
    pub https_proxy: Option<String>,
    /// Hosts that go direct: the words of `no_proxy`.
    pub no_proxy: Vec<String>,
    /// Folders that hold `docker-credential-…` programs; empty: the system's search path.
    pub helper_folders: Vec<PathBuf>,
}

/// One configured registry.
#[derive(Clone, Debug, Default)]
pub struct Upstream {
    /// `https://host[:port]` or `http://host[:port]`, maybe with a path prefix. Being configured, it may
    /// be a private address.
    pub url: String,
    /// Whom to log in as.
    pub credentials: Option<Credentials>,
    /// A PEM file of certificate authorities, trusted for this upstream beside the system's.
    pub ca: Option<PathBuf>,
    /// Other places that this upstream may redirect to or have its token server at although they are
    /// internal: `host`, `host:port`, or either after `http://`, which allows plain HTTP there.
    pub trusted_hosts: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            upstreams: HashMap::new(),
            credentials: HashMap::new(),
            roots: Arc::new(RootCertStore::empty()),
            connect_timeout: Duration::from_secs(3),
            header_timeout: Duration::from_secs(4),
            stall_timeout: Duration::from_secs(15),
            bandwidth: None,
            max_fetches: 32,
            https_proxy: None,
            no_proxy: Vec::new(),
            helper_folders: Vec::new(),
        }
    }
}
