//! What the client counts; labels are bounded to configured upstreams, Docker Hub and `other`.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// What a request was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Manifest,
    Blob,
    Tags,
    Referrers,
    Token,
    Ping,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Blob => "blob",
            Self::Tags => "tags",
            Self::Referrers => "referrers",
            Self::Token => "token",
            Self::Ping => "ping",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByUpstream {
    upstream: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRequest {
    upstream: String,
    kind: &'static str,
    status: &'static str,
}

/// All metrics of a client; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    requests: Family<ByRequest, Counter>,
    received: Family<ByUpstream, Counter>,
    retries: Family<ByUpstream, Counter>,
    resumes: Family<ByUpstream, Counter>,
    limit: Family<ByUpstream, Gauge>,
    remaining: Family<ByUpstream, Gauge>,
    in_flight: Gauge,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests to upstreams, by what for and class of status",
            self.requests.clone(),
        );
        let help = "Bytes of bodies received from upstreams";
        registry.register_with_unit("received", help, Unit::Bytes, self.received.clone());
        registry.register(
            "retries",
            "Requests repeated after a failure",
            self.retries.clone(),
        );
        registry.register(
            "resumes",
            "Blobs continued after the upstream cut them",
            self.resumes.clone(),
        );
        registry.register(
            "rate_limit",
            "Pulls that the upstream allows in its window",
            self.limit.clone(),
        );
        let help = "Pulls that the upstream still allows, as it last said";
        registry.register("rate_limit_remaining", help, self.remaining.clone());
        registry.register(
            "fetches_in_flight",
            "Blob fetches under way",
            self.in_flight.clone(),
        );
    }

    /// The metrics of one upstream, looked up once.
    pub(crate) fn upstream(&self, label: &str) -> UpstreamMetrics {
        let by = ByUpstream {
            upstream: label.to_owned(),
        };
        UpstreamMetrics {
            received: self.received.get_or_create_owned(&by),
            retries: self.retries.get_or_create_owned(&by),
            resumes: self.resumes.get_or_create_owned(&by),
            all: self.clone(),
            label: label.into(),
        }
    }
}

/// The metrics of one upstream.
pub(crate) struct UpstreamMetrics {
    all: Metrics,
    label: Arc<str>,
    pub(crate) received: Counter,
    pub(crate) retries: Counter,
    pub(crate) resumes: Counter,
}

impl UpstreamMetrics {
    /// One exchange; `status` is `None` when there was no answer.
    pub(crate) fn request(&self, kind: Kind, status: Option<u16>) {
        let status = match status {
            Some(429) => "429",
            Some(200..300) => "2xx",
            Some(300..400) => "3xx",
            Some(400..500) => "4xx",
            Some(_) => "5xx",
            None => "none",
        };
        let by = ByRequest {
            upstream: self.label.to_string(),
            kind: kind.as_str(),
            status,
        };
        self.all.requests.get_or_create(&by).inc();
    }

    /// `ratelimit-limit` and `ratelimit-remaining`, as Docker Hub sends them: `100;w=21600`.
    pub(crate) fn rate_limit(&self, headers: &http::HeaderMap) {
        let by = || ByUpstream {
            upstream: self.label.to_string(),
        };
        let number = |name: &str| {
            let text = headers.get(name)?.to_str().ok()?;
            text.split(';').next()?.trim().parse::<i64>().ok()
        };
        if let Some(limit) = number("ratelimit-limit") {
            self.all.limit.get_or_create(&by()).set(limit);
        }
        if let Some(remaining) = number("ratelimit-remaining") {
            self.all.remaining.get_or_create(&by()).set(remaining);
        }
    }

    /// A blob fetch, counted as under way until the guard is dropped.
    pub(crate) fn fetch(&self) -> InFlight {
        self.all.in_flight.inc();
        InFlight(self.all.in_flight.clone())
    }
}

/// One blob fetch under way.
pub(crate) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
