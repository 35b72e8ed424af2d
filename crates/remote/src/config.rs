//! What the client is told.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use pierhead_oci::Registry;

/// Settings of one [`Client`](crate::Client). `Default` is what a bare `pierhead serve` uses.
#[derive(Clone, Debug)]
pub struct Config {
    /// Registries that the configuration names. Any other public one is reached at `https://<its name>`.
    pub upstreams: HashMap<Registry, Upstream>,
    /// Time for DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time from the request to the response's headers.
    pub header_timeout: Duration,
    /// A body that brings nothing for so long is cut (and resumed).
    pub stall_timeout: Duration,
    /// Bytes a second over all blob fetches; `None` = no cap.
    pub bandwidth: Option<u64>,
    /// Blob fetches at once, over all upstreams; more wait.
    pub max_fetches: usize,
    /// `https_proxy`, already read from the environment by the binary: `http://[user:password@]host:port`.
    pub https_proxy: Option<String>,
    /// Hosts that go direct: the words of `no_proxy`.
    pub no_proxy: Vec<String>,
}

/// One configured registry.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// `https://host[:port]` or `http://host[:port]`, maybe with a path prefix. Being configured, it may
    /// be a private address.
    pub url: String,
    /// Whom to log in as.
    pub credentials: Option<Credentials>,
    /// A PEM file of certificate authorities, trusted for this upstream beside the system's.
    pub ca: Option<PathBuf>,
}

/// A secret: `Debug` prints nothing of it, memory is zeroised on drop.
#[derive(Clone)]
#[non_exhaustive]
pub enum Credentials {
    /// User and password, for basic auth or the token server.
    Basic {
        /// User name.
        user: String,
        /// Password or access token.
        password: zeroize::Zeroizing<String>,
    },
    /// An identity token (OAuth2 refresh token), as `docker login` may leave it.
    Identity(zeroize::Zeroizing<String>),
    /// `docker-credential-<name>`, asked anew when a login fails.
    Helper(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            upstreams: HashMap::new(),
            connect_timeout: Duration::from_secs(3),
            header_timeout: Duration::from_secs(4),
            stall_timeout: Duration::from_secs(15),
            bandwidth: None,
            max_fetches: 32,
            https_proxy: None,
            no_proxy: Vec::new(),
        }
    }
}
