//! The interface of a name resolver: turns a host name into addresses.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

/// Finds the addresses of a host name.
pub trait Resolve: Send + Sync + std::fmt::Debug {
    /// Returns all addresses of a host with this port, the preferred address first. Called for
    /// every new connection.
    fn resolve(&self, host: String, port: u16) -> ResolveFuture;
}

/// The future that [`Resolve::resolve`] returns.
pub type ResolveFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
