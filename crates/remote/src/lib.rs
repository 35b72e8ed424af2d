//! The registry client: fetches manifests, blobs and lists from upstream registries (the pull side
//! of the OCI Distribution API v1.1). The client stores nothing on disk.
//!
//! The modules, from the network to the public interface. A module imports only modules above it in
//! this list:
//!
//! - `dns`: lookups of host names without a thread for each lookup, limited in time and number.
//! - `connect`: the SSRF guard, TCP, the HTTPS proxy, TLS, the connection pool.
//! - `upstream`: the hosts of one registry, their health, the retry budget, the choice of a host.
//! - `exchange`: one HTTP request with its time limits and redirects; response bodies up to a
//!   maximum size.
//! - `auth`: challenges, tokens, credentials and credential helpers. The module `upstream` holds
//!   the state of the authentication.
//! - `pull`: manifests, blobs, tags, referrers, access checks, probes.
//! - `client`: the public interface, its configuration and reload.

#![forbid(unsafe_code)]

mod auth;
mod client;
mod connect;
mod dns;
mod error;
mod exchange;
mod file_stamp;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod pull;
mod upstream;

pub use auth::credentials::{Credentials, DockerConfigError, basic_header, docker_config};
pub use auth::identity::{ClientCredentials, Fingerprint};
pub use auth::keyed_hash::{KeyedHash, KeyedHasher};
pub use client::config::{Config, Upstream, UpstreamAddress};
pub use client::{Client, Prepared};
pub use connect::certificate::{CertificateFault, certificate_fault};
pub use connect::resolve::{Resolve, ResolveFuture};
pub use connect::spawner::{ConnectionTask, Spawner};
pub use error::{Error, Fault};
pub use file_stamp::FileStamp;
pub use pull::access::{AccessDecision, Resource};
pub use pull::blob::{BlobVersion, RangeSpec};
pub use pull::blob_stream::{BlobSources, BlobStream};
pub use pull::document::{DocumentResponse, Validators};
pub use pull::probe::{HostProbe, ProbeResponse};
pub use upstream::upstreams::default_url;
