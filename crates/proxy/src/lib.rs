//! The Distribution API, pull side, over a cache and a registry client.
//!
//! Layers, from the socket up: `http` (listener, TLS, HTTP/1.1 and HTTP/2, responses), `access` and `limits`
//! (who may, and how much), `pull` (cache, shared downloads, upstream, stale) and `bundle` (the bundle extension).
//! All of them work with `context`, which is plain data. Only `http::respond` maps errors to HTTP.

#![forbid(unsafe_code)]

mod access;
mod blocking;
mod bundle;
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
pub use proxy::Proxy;
pub use pull::cached_image::{CachedImage, CachedPlatform, Removal};
pub use pull::warm::Progress;
