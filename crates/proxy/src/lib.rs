//! The Distribution API, pull side, over a cache and a registry client.
//!
//! Layers, from the socket up: listener and TLS, request limits, routing (which registry is meant),
//! pull (cache, single flight, upstream, stale), and the only map from errors to HTTP.

#![forbid(unsafe_code)]

mod access;
mod answer;
mod body;
mod bundle;
mod cached_image;
mod claim;
mod config;
mod connection;
mod cost;
mod deadline;
mod direct;
mod document;
mod download;
mod entity;
mod error;
mod fetch;
mod flight;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod lead;
mod limits;
mod line_ends;
mod listener;
mod lists;
mod manifest;
mod metrics;
mod pace;
mod page;
mod plain;
mod question;
mod range;
mod recent;
mod refusals;
mod respond;
mod route;
mod rules;
mod said;
mod service;
mod source;
mod stall;
mod tls;
mod warm;

pub use access::{Auth, check_htpasswd};
pub use cached_image::{CachedImage, CachedPlatform, Removal};
pub use config::{Config, Limits, Tls};
use error::Error;
pub use rules::{Pattern, Rules};
pub use service::{Progress, Proxy};
