//! The configuration of the registry client, as plain values.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_oci::Registry;
use rustls::RootCertStore;

use crate::auth::credentials::Credentials;
use crate::connect::resolve::Resolve;
use crate::connect::spawner::Spawner;

/// Settings of one [`Client`](crate::Client). `Default` has the values that `pierhead serve` uses
/// without a configuration file, except for `roots`: only the program reads the certificate
/// authorities of the system.
#[derive(Clone, Debug)]
pub struct Config {
    /// Registries that the configuration names. pierhead reaches any other public registry at
    /// `https://<its name>`.
    pub upstreams: HashMap<Registry, Upstream>,
    /// Credentials from a Docker `config.json`, for registries without an [`Upstream`] or with an
    /// [`Upstream`] without credentials.
    pub credentials: HashMap<Registry, Credentials>,
    /// The certificate authorities of the system. If the list is empty, no public registry can be
    /// reached.
    pub roots: Arc<RootCertStore>,
    /// Time limit for opening a connection: DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time limit from sending a request to the headers of its response, on an open connection.
    pub header_timeout: Duration,
    /// How long a response body may send no bytes before pierhead interrupts the request and
    /// resumes the body by another request.
    pub upstream_timeout: Duration,
    /// Minimum rate of a blob in bytes per second, averaged over
    /// [`upstream_timeout`](Self::upstream_timeout). Time in which the caller does not read is not
    /// counted. pierhead interrupts a slower fetch and resumes it, at another address if the
    /// upstream has several. If every address is slow, the fetch fails. The value 0 means no
    /// minimum.
    pub minimum_rate: u64,
    /// Maximum bytes per second over all blob fetches together. `None`: no maximum.
    pub upstream_bandwidth: Option<u64>,
    /// The HTTPS proxy (`https_proxy`): `http://[user:password@]host:port`. Upstreams with plain
    /// HTTP are reached without this proxy. The proxy itself resolves host names. pierhead's SSRF
    /// guard checks the host name, and the addresses to which the host name resolves on this
    /// machine. Some names may resolve to internal addresses only at the proxy; the proxy must
    /// refuse these names.
    pub https_proxy: Option<String>,
    /// Resolver of host names. `None`: pierhead's own resolver, which asks the name servers of the
    /// system. A reload does not change the resolver.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Starts the tasks that drive connections. A reload does not change the spawner.
    pub spawner: Spawner,
    /// Hosts that are reached without the HTTPS proxy: the entries of the variable `no_proxy`.
    pub no_proxy: Vec<String>,
    /// Folders with `docker-credential-…` programs; empty: the search path of the system (`PATH`).
    pub helper_folders: Vec<PathBuf>,
}

/// An upstream registry that the configuration names.
#[derive(Clone, Debug, Default)]
pub struct Upstream {
    /// The URL: `https://host[:port]` or `http://host[:port]`, with an optional path prefix. The
    /// host may have a private address, because the operator configured it.
    pub url: String,
    /// The credentials that pierhead sends to this address.
    pub credentials: Option<Credentials>,
    /// Whether another party runs this address: see [`UpstreamAddress::mirror`].
    pub mirror: bool,
    /// Further addresses of the upstream. An address gets a request only if the addresses before it
    /// in the list fail.
    pub others: Vec<UpstreamAddress>,
    /// A PEM file of certificate authorities. pierhead trusts these authorities for this upstream,
    /// in addition to the authorities of the system.
    pub ca: Option<PathBuf>,
    /// Internal hosts to which this upstream may redirect, or on which its token server may run:
    /// `host` or `host:port`. The prefix `http://` also allows plain HTTP.
    pub trusted_hosts: Vec<String>,
}

/// A further address of an upstream.
#[derive(Clone, Debug, Default)]
pub struct UpstreamAddress {
    /// The URL, in the form of [`Upstream::url`].
    pub url: String,
    /// Credentials for this address only. Credentials of other addresses are never sent here.
    pub credentials: Option<Credentials>,
    /// Whether another party runs this address. Such an address gets no credentials of clients.
    /// If this address responds 404 or refuses access, pierhead asks the next address.
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
            upstream_timeout: Duration::from_secs(15),
            minimum_rate: 10 << 10,
            upstream_bandwidth: None,
            https_proxy: None,
            resolver: None,
            spawner: Spawner::default(),
            no_proxy: Vec::new(),
            helper_folders: Vec::new(),
        }
    }
}
