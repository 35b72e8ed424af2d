//! The server that a worker connects to, and the settings that all its connections share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zeroize::Zeroizing;

use super::tls::TlsConfigs;
use super::url::Url;

/// The value of an `Authorization` header, which is cleared from memory after use.
pub type Authorization = Zeroizing<String>;

/// A server: its address, its TLS settings and the credentials for it. All clones share one counter
/// of received bytes.
#[derive(Clone)]
pub struct Server {
    url: Url,
    tls: TlsConfigs,
    authorization: Option<Arc<Authorization>>,
    received: Arc<AtomicU64>,
}

impl Server {
    /// Describes a server, without connecting.
    pub fn new(url: Url, tls: TlsConfigs, authorization: Option<Authorization>) -> Self {
        Self {
            url,
            tls,
            authorization: authorization.map(Arc::new),
            received: Arc::default(),
        }
    }

    /// Returns the server to which this server redirects. That server gets neither credentials nor
    /// the client certificate.
    pub(crate) fn redirected_to(&self, url: Url) -> Self {
        Self {
            url,
            tls: self.tls.anonymous(),
            authorization: None,
            received: Arc::clone(&self.received),
        }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Number of bytes that all connections have received, including TLS records and HTTP heads.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the counter behind [`Self::received`].
    pub(super) fn received_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    /// Returns the TLS settings of connections to the server.
    pub(super) fn tls(&self) -> &Arc<rustls::ClientConfig> {
        self.tls.current()
    }

    /// Returns the value of the `Authorization` header.
    pub(super) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref().map(|value| value.as_str())
    }
}
