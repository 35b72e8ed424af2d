//! The settings of a client, as values.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_oci::Registry;
use rustls::RootCertStore;

use crate::auth::credentials::Credentials;
use crate::connect::resolve::Resolve;

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
    /// Bytes a second that a blob has to bring on average over [`stall_timeout`](Self::stall_timeout), the
    /// times when we did not read not counted. A slower one is cut and resumed, from another address where
    /// there is one, and given up when it is slow everywhere. 0 = however slow.
    pub minimum_rate: u64,
    /// Bytes a second over all blob fetches; `None` = no cap.
    pub bandwidth: Option<u64>,
    /// `https_proxy`, already read from the environment by the binary: `http://[user:password@]host:port`.
    /// Plain HTTP upstreams are reached without it. It resolves names itself: the guard against internal
    /// candidates judges the name, and the candidates that it has here, if any. A name that means something
    /// else to the proxy is for the proxy to refuse.
    pub https_proxy: Option<String>,
    /// Resolver for host candidates; `None`: the name servers of the system. Fixed for the life of a client: a reload does
    /// not change it.
    pub resolver: Option<Arc<dyn Resolve>>,
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
    /// Whom to log in as there.
    pub credentials: Option<Credentials>,
    /// See [`UpstreamAddress::mirror`].
    pub mirror: bool,
    /// Further candidates, asked in this order when the ones before fail.
    pub others: Vec<UpstreamAddress>,
    /// A PEM file of certificate authorities, trusted for this upstream beside the system's.
    pub ca: Option<PathBuf>,
    /// Other hosts that this upstream may redirect to or have its token server at although they are
    /// internal: `host`, `host:port`, or either after `http://`, which allows plain HTTP there.
    pub trusted_hosts: Vec<String>,
}

/// A further address of an upstream.
#[derive(Clone, Debug, Default)]
pub struct UpstreamAddress {
    /// As [`Upstream::url`].
    pub url: String,
    /// Whom to log in as there; what other candidates are told is not sent here.
    pub credentials: Option<Credentials>,
    /// It is not the registry itself: it sees no login of a client, and what it lacks or refuses the next
    /// address may have.
    pub mirror: bool,
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
            minimum_rate: 10 << 10,
            bandwidth: None,
            https_proxy: None,
            resolver: None,
            no_proxy: Vec::new(),
            helper_folders: Vec::new(),
        }
    }
}
