//! The proxy as the binary sees it.

use std::future::Future;

use pierhead_cache::Cache;
use pierhead_oci::Reference;
use pierhead_remote::Client;
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;

use crate::{Config, Tls};

/// The proxy; clones share everything.
#[derive(Clone)]
pub struct Proxy {
    _inner: std::sync::Arc<()>,
}

/// What [`Proxy::warm`] reports as it goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Blobs done, of `blobs`.
    pub done: u64,
    /// Blobs in all, as far as known.
    pub blobs: u64,
    /// Bytes done, of `bytes`.
    pub bytes_done: u64,
    /// Bytes in all, as far as known.
    pub bytes: u64,
}

impl Proxy {
    /// Wires a cache and a client together.
    pub fn new(_cache: Cache, _client: Client, _config: Config) -> Self {
        todo!()
    }

    /// Takes a new configuration without dropping a connection.
    pub fn reload(&self, _config: Config) {
        todo!()
    }

    /// Serves until `stop` resolves, then drains: no new connections, requests under way may finish
    /// within the configured time. HTTP/1.1 and HTTP/2; TLS when given.
    pub async fn serve(&self, _listener: TcpListener, _tls: Option<Tls>, _stop: impl Future<Output = ()> + Send) -> std::io::Result<()> {
        todo!()
    }

    /// Pulls an image (of an index: those platforms that are named, all when none) into the cache, as a client would.
    ///
    /// # Errors
    /// A text for people: what failed, at which upstream.
    pub async fn warm(&self, _reference: &Reference, _platforms: &[pierhead_oci::Platform], _progress: impl FnMut(Progress) + Send) -> Result<Progress, String> {
        todo!()
    }

    /// The digests that make up a cached image: its manifest (by name) and all that it points to,
    /// as far as they are known. For pins.
    ///
    /// # Errors
    /// A text for people: the image is not in the cache.
    pub async fn closure(&self, _reference: &Reference) -> Result<Vec<pierhead_oci::Digest>, String> {
        todo!()
    }

    /// Registers the metrics of the proxy; the caller gives the prefix.
    pub fn register(&self, _registry: &mut Metrics) {
        todo!()
    }
}
