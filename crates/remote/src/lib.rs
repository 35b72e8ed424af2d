//! A client of OCI registries: the pull side of Distribution v1.1.
//!
//! It resolves, fetches and resumes; it stores nothing. Layers, from the socket up: address guard and
//! connect, TLS, one HTTP exchange with its time limits, authorization, retry, and the operations.

#![forbid(unsafe_code)]

mod authorize;
mod bandwidth;
mod blob;
mod challenge;
mod client;
mod config;
mod connect;
mod credentials;
mod distrust;
mod dns;
mod error;
mod exchange;
mod failover;
mod fetches;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod guest;
mod health;
mod helper;
mod listing;
mod manifest;
mod metrics;
mod origin;
mod probe;
mod range;
mod redirect;
mod retry;
mod room;
mod stream;
mod token;
mod untrusted;
mod upstreams;

pub use client::{Client, Fetched, Known, Prepared};
pub use config::{Address, Config, Upstream};
pub use connect::{Resolve, Resolving};
pub use credentials::{Credentials, DockerConfigError, basic_header, docker_config};
pub use error::{Error, Fault};
pub use files::{open_file, open_file_with};
pub use guest::{ClientCredentials, Fingerprint, Verdict, Wanted};
pub use probe::{Answered, Probe};
pub use stream::{BlobStream, Senders};
pub use untrusted::{Untrusted, untrusted};
pub use upstreams::default_url;
