//! One host that serves a registry (the registry itself or a mirror): its URL, connections,
//! credentials, health and retry budget.

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

/// Time limits of a request to an upstream. [`Config`](crate::Config) explains each limit.
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
    /// The tokens of clients. The tokens of clients are in a separate cache, so that a large number
    /// of clients cannot evict the tokens of the configured credentials.
    pub(crate) pass_through_tokens: Tokens,
    pub(crate) helper_folders: Vec<PathBuf>,
    pub(crate) documents: DocumentMemory,
    pub(crate) bandwidth: Arc<Bandwidth>,
}

/// All hosts of one registry, in the order of preference. The list is never empty.
pub(crate) type RegistryHosts = Arc<[Arc<RegistryHost>]>;

/// One host that serves a registry. The host is the registry itself or a mirror.
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
    /// Whether another party runs this host. A host of another party receives no credentials of a
    /// client, and a 404 from it is not final.
    pub(crate) is_mirror: bool,
    /// Error text that replaces the reason why the SSRF guard refuses a request. Thus clients get
    /// the same text for a missing name and an internal name.
    pub(crate) refusal: Option<String>,
    pub(crate) shared: Arc<SharedState>,
}

impl RegistryHost {
    /// Returns the URL on this host of a path that begins with `/v2/`.
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

    pub(crate) fn no_ranges(&self, what: impl Into<String>) -> Error {
        Error::NoRanges {
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
