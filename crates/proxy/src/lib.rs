//! The pull side of the OCI Distribution API: pierhead's HTTP server for clients, on top of the
//! cache and the registry client.
//!
//! Modules, from the network to the cache:
//!
//! - `http`: listener, TLS, HTTP/1.1, HTTP/2, responses
//! - `access`: authentication and authorization of clients
//! - `limits`: limits of the resources of one client, one registry, and all of them together
//! - `pull`: cache hits, shared downloads, upstream requests, stale responses
//! - `bundle`: pierhead's extension of the API for delta updates (bundles)
//!
//! All these modules use `context`, which is plain data. Only `http::respond` converts errors to
//! HTTP responses.

#![forbid(unsafe_code)]

mod access;
mod blocking;
mod bundle;
mod clock;
mod config;
mod context;
mod deadline;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod limits;
mod log_dedup;
mod metrics;
mod proxy;
mod pull;
mod refusal_log;
mod shared_requests;

pub use access::htpasswd::check as check_htpasswd;
pub use access::rules::{Pattern, Rules};
pub use config::{Auth, Config, Limits, Tls};
pub use http::tls::certified_key;
pub use proxy::Proxy;
pub use pull::cached_image::{CachedImage, CachedPlatform, Removal};
pub use pull::warm::Progress;
