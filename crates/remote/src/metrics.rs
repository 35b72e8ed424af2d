//! Prometheus metrics of the registry client. The label `upstream` has these values: the names of
//! the configured upstreams, Docker Hub, and `other` for all other registries.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The purpose of an upstream request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Manifest,
    Blob,
    Tags,
    Referrers,
    Token,
    Ping,
}

impl RequestKind {
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

/// The kind and the method of a request. Different operations are counted separately, because some
/// upstreams limit the rate of some operations only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    kind: RequestKind,
    head: bool,
}

impl Operation {
    /// Number of different operations: the combinations of kind and method.
    pub(crate) const COUNT: usize = 12;

    pub(crate) const fn get(kind: RequestKind) -> Self {
        Self { kind, head: false }
    }

    pub(crate) const fn head(kind: RequestKind) -> Self {
        Self { kind, head: true }
    }

    /// An index of the operation, below [`COUNT`](Self::COUNT).
    pub(crate) fn index(self) -> usize {
        let kind = match self.kind {
            RequestKind::Manifest => 0,
            RequestKind::Blob => 1,
            RequestKind::Tags => 2,
            RequestKind::Referrers => 3,
            RequestKind::Token => 4,
            RequestKind::Ping => 5,
        };
        2 * kind + usize::from(self.head)
    }
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    upstream: String,
    address: String,
}

/// The gauge of the circuit breaker of one address. For unconfigured upstreams, the gauge counts
/// the open circuit breakers.
pub(crate) struct BreakerGauge {
    all: Family<AddressLabels, Gauge>,
    by: AddressLabels,
    shared: bool,
    counted: std::sync::atomic::AtomicBool,
}

impl BreakerGauge {
    pub(crate) fn set(&self, state: BreakerState) {
        let gauge = self.all.get_or_create_owned(&self.by);
        if self.shared {
            let out = state != BreakerState::Closed;
            if self.counted.swap(out, std::sync::atomic::Ordering::Relaxed) != out {
                gauge.inc_by(if out { 1 } else { -1 });
            }
            return;
        }
        gauge.set(match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
    }
}

impl Drop for BreakerGauge {
    fn drop(&mut self) {
        if self.shared {
            self.set(BreakerState::Closed);
        } else {
            // A reload removed this address, so its time series is removed, too.
            self.all.remove(&self.by);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamLabels {
    upstream: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    upstream: String,
    kind: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// The result of a DNS lookup, which is the value of the label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupResult {
    Found,
    NotFound,
    /// Each name server failed or refused the query.
    Failed,
    Timeout,
    /// Too many other lookups were running.
    Busy,
}

impl LookupResult {
    const ALL: [Self; 5] = [
        Self::Found,
        Self::NotFound,
        Self::Failed,
        Self::Timeout,
        Self::Busy,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NotFound => "not_found",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Busy => "busy",
        }
    }
}

/// Metrics of name resolution. Clones share their counts.
#[derive(Clone)]
pub(crate) struct DnsMetrics {
    lookups: Family<ResultLabels, Counter>,
    duration: Histogram,
}

impl Default for DnsMetrics {
    fn default() -> Self {
        // Each label value gets a time series before the first event, because `rate()` would miss
        // an event that creates a time series.
        let lookups = Family::default();
        for result in LookupResult::ALL {
            let result = result.as_str();
            drop(lookups.get_or_create(&ResultLabels { result }));
        }
        Self {
            lookups,
            duration: Histogram::new([0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5]),
        }
    }
}

impl DnsMetrics {
    /// Counts one lookup whose answer was not in the cache.
    pub(crate) fn ended(&self, result: LookupResult, took: Duration) {
        let result = result.as_str();
        self.lookups.get_or_create(&ResultLabels { result }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "lookups",
            "Lookups of names that were not cached, by result: found, not_found, failed (each name server), \
             timeout, busy (too many at once)",
            self.lookups.clone(),
        );
        registry.register_with_unit(
            "lookup_duration",
            "Time of each lookup of a name that was not cached, including its time in the queue",
            Unit::Seconds,
            self.duration.clone(),
        );
    }
}

/// All metrics of a registry client. Clones share their counts.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) dns: DnsMetrics,
    requests: Family<RequestLabels, Counter>,
    received: Family<UpstreamLabels, Counter>,
    retries: Family<UpstreamLabels, Counter>,
    resumes: Family<UpstreamLabels, Counter>,
    failovers: Family<UpstreamLabels, Counter>,
    state: Family<AddressLabels, Gauge>,
    limit: Family<UpstreamLabels, Gauge>,
    remaining: Family<UpstreamLabels, Gauge>,
    in_flight: Gauge,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests to upstreams, by kind and status class",
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
            "Blobs resumed after the upstream interrupted them",
            self.resumes.clone(),
        );
        registry.register(
            "failovers",
            "Requests to which an address other than the first address of the upstream responded",
            self.failovers.clone(),
        );
        registry.register(
            "upstream_state",
            "Circuit breaker of each address: 0 closed, 1 half-open (probing), 2 open; under \"other\", the number of \
             unconfigured registries with an open circuit",
            self.state.clone(),
        );
        registry.register(
            "rate_limit",
            "Pulls that the upstream allows within its rate-limit window",
            self.limit.clone(),
        );
        let help =
            "Remaining pulls within the rate-limit window, by the last response of the upstream";
        registry.register("rate_limit_remaining", help, self.remaining.clone());
        registry.register(
            "downloads_in_flight",
            "Running blob fetches",
            self.in_flight.clone(),
        );
    }

    /// Returns the gauge of one address's circuit breaker. If `address` is `None`, returns the
    /// gauge of all unconfigured upstreams.
    pub(crate) fn state(&self, label: &str, address: Option<&str>) -> BreakerGauge {
        BreakerGauge {
            all: self.state.clone(),
            by: AddressLabels {
                upstream: label.to_owned(),
                address: address.unwrap_or_default().to_owned(),
            },
            shared: address.is_none(),
            counted: false.into(),
        }
    }

    /// Returns the metrics of one upstream. The labels are looked up only in this call.
    pub(crate) fn upstream(&self, label: &str) -> UpstreamMetrics {
        let by = UpstreamLabels {
            upstream: label.to_owned(),
        };
        UpstreamMetrics {
            received: self.received.get_or_create_owned(&by),
            retries: self.retries.get_or_create_owned(&by),
            resumes: self.resumes.get_or_create_owned(&by),
            failovers: self.failovers.get_or_create_owned(&by),
            all: self.clone(),
            label: label.into(),
        }
    }
}

/// The metrics that carry the label of one upstream.
pub(crate) struct UpstreamMetrics {
    all: Metrics,
    label: Arc<str>,
    pub(crate) received: Counter,
    pub(crate) retries: Counter,
    pub(crate) resumes: Counter,
    pub(crate) failovers: Counter,
}

impl UpstreamMetrics {
    /// Counts one request. `status` is `None` if there was no response.
    pub(crate) fn request(&self, kind: RequestKind, status: Option<u16>) {
        let status = match status {
            Some(429) => "429",
            Some(200..300) => "2xx",
            Some(300..400) => "3xx",
            Some(400..500) => "4xx",
            Some(_) => "5xx",
            None => "none",
        };
        let by = RequestLabels {
            upstream: self.label.to_string(),
            kind: kind.as_str(),
            status,
        };
        self.all.requests.get_or_create(&by).inc();
    }

    /// Records the headers `ratelimit-limit` and `ratelimit-remaining`, which have the form of
    /// Docker Hub: `100;w=21600`.
    pub(crate) fn rate_limit(&self, headers: &http::HeaderMap) {
        let by = || UpstreamLabels {
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

    /// Counts a blob fetch as running. The fetch ends when the returned guard is dropped.
    pub(crate) fn fetch(&self) -> FetchInFlight {
        self.all.in_flight.inc();
        FetchInFlight(self.all.in_flight.clone())
    }
}

/// A blob fetch that counts as running until this value is dropped.
pub(crate) struct FetchInFlight(Gauge);

impl Drop for FetchInFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
