//! One host that serves a registry: its URL, connections, credentials, health and retry budget.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use parking_lot::Mutex;
use pierhead_oci::Registry;

use crate::auth::credentials::Credentials;
use crate::auth::state::AuthState;
use crate::auth::token::Tokens;
use crate::connect::certificate::CertificateFault;
use crate::connect::pool::HttpPool;
use crate::error::Error;
use crate::exchange::bandwidth::Bandwidth;
use crate::exchange::document_memory::DocumentMemory;
use crate::metrics::UpstreamMetrics;
use crate::upstream::health::Health;
use crate::upstream::mismatches::DigestMismatches;
use crate::upstream::retry::RetryBudget;

/// Time limits of an exchange; see [`Config`](crate::Config).
#[derive(Clone, Copy)]
pub(crate) struct TimeLimits {
    pub(crate) header_timeout: Duration,
    pub(crate) stall_timeout: Duration,
    /// Minimum rate of a blob in bytes per second.
    pub(crate) minimum_rate: u64,
}

/// State that all hosts of one configuration share.
pub(crate) struct SharedState {
    pub(crate) limits: TimeLimits,
    pub(crate) tokens: Tokens,
    /// The tokens of clients. They have a cache of their own, so that a large number of clients
    /// cannot evict the tokens of the configured credentials.
    pub(crate) pass_through_tokens: Tokens,
    pub(crate) helper_folders: Vec<PathBuf>,
    pub(crate) documents: DocumentMemory,
    pub(crate) bandwidth: Arc<Bandwidth>,
}

/// All hosts of one registry, in the order of preference. The list is never empty.
pub(crate) type RegistryHosts = Arc<[Arc<RegistryHost>]>;

/// One host that serves a registry: the registry itself or a mirror.
pub(crate) struct RegistryHost {
    pub(crate) name: Registry,
    /// The base URL: scheme, host, port and path prefix, without a slash at the end.
    pub(crate) base: String,
    pub(crate) http: HttpPool,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) budget: RetryBudget,
    pub(crate) metrics: UpstreamMetrics,
    pub(crate) auth_state: Mutex<AuthState>,
    pub(crate) health: Arc<Health>,
    pub(crate) mismatches: DigestMismatches,
    /// Whether another party runs this host: it receives no credentials of a client, and its 404 is
    /// not final.
    pub(crate) is_mirror: bool,
    /// Error text that replaces the reason of a refusal, so that a missing name and an internal
    /// name get the same text.
    pub(crate) refusal: Option<String>,
    pub(crate) shared: Arc<SharedState>,
}

impl RegistryHost {
    /// Returns the URL of a path that begins with `/v2/`.
    pub(crate) fn url(&self, path: &str) -> Result<Uri, Error> {
        let text = format!("{}{path}", self.base);
        text.parse()
            .map_err(|_| self.forbidden(format!("{text} is not a URL")))
    }

    pub(crate) fn protocol(&self, what: impl Into<String>) -> Error {
        Error::Protocol {
            upstream: self.name.to_string(),
            what: what.into(),
        }
    }

    pub(crate) fn transport(&self, what: impl Into<String>) -> Error {
        self.transport_with(what, None)
    }

    pub(crate) fn transport_with(
        &self,
        what: impl Into<String>,
        certificate: Option<CertificateFault>,
    ) -> Error {
        Error::Transport {
            upstream: self.name.to_string(),
            what: what.into(),
            certificate,
        }
    }

    pub(crate) fn forbidden(&self, what: impl Into<String>) -> Error {
        Error::Forbidden {
            upstream: self.name.to_string(),
            what: self.refusal.clone().unwrap_or_else(|| what.into()),
        }
    }

    pub(crate) fn no_such_host(&self, what: impl Into<String>) -> Error {
        Error::NoSuchHost {
            upstream: self.name.to_string(),
            what: self.refusal.clone().unwrap_or_else(|| what.into()),
        }
    }
}
