//! The configuration of a client, as plain values.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_oci::Registry;
use rustls::RootCertStore;

use crate::auth::credentials::Credentials;
use crate::connect::resolve::Resolve;

/// Settings of one [`Client`](crate::Client). `Default` has the values of `pierhead serve` without
/// a configuration, except for `roots`, which only the binary reads.
#[derive(Clone, Debug)]
pub struct Config {
    /// Registries that the configuration names. Any other public registry is reached at
    /// `https://<its name>`.
    pub upstreams: HashMap<Registry, Upstream>,
    /// Credentials from a Docker `config.json`, for registries without an [`Upstream`] or with an
    /// [`Upstream`] without credentials.
    pub credentials: HashMap<Registry, Credentials>,
    /// The certificate authorities of the system. Empty: no public registry can be reached.
    pub roots: Arc<RootCertStore>,
    /// Time limit of DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time limit from the request to the headers of the response, on an open connection.
    pub header_timeout: Duration,
    /// A body without bytes for this time is interrupted and resumed.
    pub upstream_timeout: Duration,
    /// Minimum rate of a blob in bytes per second, averaged over
    /// [`upstream_timeout`](Self::upstream_timeout). Time during which the caller does not read does not
    /// count. A slower fetch is interrupted and resumed, at another address if there is one. It
    /// fails when every address is slow. 0: no minimum.
    pub minimum_rate: u64,
    /// Maximum bytes per second over all blob fetches; `None`: no maximum.
    pub upstream_bandwidth: Option<u64>,
    /// The HTTPS proxy (`https_proxy`): `http://[user:password@]host:port`. Plain HTTP upstreams
    /// are reached without it. The proxy resolves names itself. The SSRF guard checks the name, and
    /// the addresses to which it resolves on this host. The proxy must refuse names that resolve to
    /// internal addresses only there.
    pub https_proxy: Option<String>,
    /// Resolver of host names; `None`: the name servers of the system. A reload does not change it.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Hosts that are reached without the HTTPS proxy: the entries of `no_proxy`.
    pub no_proxy: Vec<String>,
    /// Folders with `docker-credential-…` programs; empty: the search path of the system (`PATH`).
    pub helper_folders: Vec<PathBuf>,
}

/// One configured registry.
#[derive(Clone, Debug, Default)]
pub struct Upstream {
    /// `https://host[:port]` or `http://host[:port]`, with an optional path prefix. It may be a
    /// private address, since it is configured.
    pub url: String,
    /// Credentials for this address.
    pub credentials: Option<Credentials>,
    /// See [`UpstreamAddress::mirror`].
    pub mirror: bool,
    /// Further addresses. Each is asked when the addresses before it fail.
    pub others: Vec<UpstreamAddress>,
    /// A PEM file of certificate authorities. This upstream trusts them in addition to those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// Internal hosts to which this upstream may redirect, or on which its token server may run:
    /// `host` or `host:port`. The prefix `http://` also allows plain HTTP.
    pub trusted_hosts: Vec<String>,
}

/// A further address of an upstream.
#[derive(Clone, Debug, Default)]
pub struct UpstreamAddress {
    /// As [`Upstream::url`].
    pub url: String,
    /// Credentials for this address only. Credentials of other addresses are never sent here.
    pub credentials: Option<Credentials>,
    /// Another party runs this address. It gets no credentials of clients. After its 404 or
    /// refusal, the next address is asked.
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
            no_proxy: Vec::new(),
            helper_folders: Vec::new(),
        }
    }
}
