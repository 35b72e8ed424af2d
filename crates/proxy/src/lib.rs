//! The Distribution API, pull side, over a cache and a registry client.
//!
//! Layers, from the socket up: listener and TLS, request limits, routing (which registry is meant),
//! pull (cache, single flight, upstream, stale), and the only map from errors to HTTP.

#![forbid(unsafe_code)]

mod config;
mod service;

pub use config::{Config, Tls};
pub use service::{Progress, Proxy};
