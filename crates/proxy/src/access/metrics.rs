//! What the check of clients counts.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// How a question about a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    Granted,
    Denied,
    /// Too many wrong ones from that address.
    Throttled,
    /// Nobody could be asked.
    Unknown,
}

impl EncodeLabelValue for Verdict {
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
    result: Verdict,
}

/// A value, registered by whoever shows metrics.
#[derive(Clone)]
pub(crate) struct AccessMetrics {
    authentications: Family<AuthenticationLabels, Counter>,
}

impl Default for AccessMetrics {
    fn default() -> Self {
        let authentications = Family::default();
        for result in [
            Verdict::Granted,
            Verdict::Denied,
            Verdict::Throttled,
            Verdict::Unknown,
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
            "Questions who a client is or what it may, beyond those whose answer was known",
            self.authentications.clone(),
        );
    }

    pub(crate) fn count(&self, result: Verdict) {
        self.authentications
            .get_or_create(&AuthenticationLabels { result })
            .inc();
    }
}
