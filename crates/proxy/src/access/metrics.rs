//! Metrics of client authentication: counts checks of credentials by their result.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The result of one check of a client's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AuthResult {
    Granted,
    Denied,
    /// pierhead did not check the credentials, because the client's address had too many failed
    /// logins.
    Throttled,
    /// The upstream neither allowed nor denied the request, for example because it failed.
    Unknown,
}

impl EncodeLabelValue for AuthResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let name = match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Throttled => "throttled",
            Self::Unknown => "unknown",
        };
        EncodeLabelValue::encode(&name, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuthenticationLabels {
    result: AuthResult,
}

/// Counts the checks of clients' credentials by result.
#[derive(Clone)]
pub(crate) struct AccessMetrics {
    authentications: Family<AuthenticationLabels, Counter>,
}

impl Default for AccessMetrics {
    fn default() -> Self {
        let authentications = Family::default();
        for result in [
            AuthResult::Granted,
            AuthResult::Denied,
            AuthResult::Throttled,
            AuthResult::Unknown,
        ] {
            drop(authentications.get_or_create(&AuthenticationLabels { result }));
        }
        Self { authentications }
    }
}

impl AccessMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "authentications",
            "Checks of clients' credentials, by htpasswd or an upstream, without cached decisions",
            self.authentications.clone(),
        );
    }

    pub(crate) fn count(&self, result: AuthResult) {
        self.authentications
            .get_or_create(&AuthenticationLabels { result })
            .inc();
    }
}
