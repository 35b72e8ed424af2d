//! What the client counts; labels are bounded to configured upstreams, Docker Hub and `other`.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
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

/// A kind of request, as far as it has a fate of its own: upstreams limit the rate of some and not of
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errand {
    kind: Kind,
    head: bool,
}

impl Errand {
    /// How many there are.
    pub(crate) const COUNT: usize = 12;

    pub(crate) const fn get(kind: Kind) -> Self {
        Self { kind, head: false }
    }

    pub(crate) const fn head(kind: Kind) -> Self {
        Self { kind, head: true }
    }

    /// Below [`COUNT`](Self::COUNT).
    pub(crate) fn index(self) -> usize {
        let kind = match self.kind {
            Kind::Manifest => 0,
            Kind::Blob => 1,
            Kind::Tags => 2,
            Kind::Referrers => 3,
            Kind::Token => 4,
            Kind::Ping => 5,
        };
        2 * kind + usize::from(self.head)
    }
}

/// Of a circuit breaker; what the gauge shows is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Closed,
    HalfOpen,
    Open,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAddress {
    upstream: String,
    address: String,
}

/// Shows the state of one address, or (of upstreams that nobody configured) adds to how many are out.
pub(crate) struct StateGauge {
    all: Family<ByAddress, Gauge>,
    by: ByAddress,
    shared: bool,
    counted: std::sync::atomic::AtomicBool,
}

impl StateGauge {
    pub(crate) fn set(&self, state: State) {
        let gauge = self.all.get_or_create_owned(&self.by);
        if self.shared {
            let out = state != State::Closed;
            if self.counted.swap(out, std::sync::atomic::Ordering::Relaxed) != out {
                gauge.inc_by(if out { 1 } else { -1 });
            }
            return;
        }
        gauge.set(match state {
            State::Closed => 0,
            State::HalfOpen => 1,
            State::Open => 2,
        });
    }
}

impl Drop for StateGauge {
    fn drop(&mut self) {
        if self.shared {
            self.set(State::Closed);
        } else {
            // An address that a reload took away is not out for ever.
            self.all.remove(&self.by);
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

/// How a lookup ended: the values of the label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupResult {
    Found,
    NotFound,
    /// By each name server.
    Failed,
    Timeout,
    /// Too many others were running.
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

/// Metrics of name resolution; clones share them.
#[derive(Clone)]
pub(crate) struct DnsMetrics {
    lookups: Family<ByResult, Counter>,
    duration: Histogram,
}

impl Default for DnsMetrics {
    fn default() -> Self {
        // Each label value has a series before its first event, else no rate sees that event.
        let lookups = Family::default();
        for result in LookupResult::ALL {
            let result = result.as_str();
            drop(lookups.get_or_create(&ByResult { result }));
        }
        Self {
            lookups,
            duration: Histogram::new([0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5]),
        }
    }
}

impl DnsMetrics {
    /// One lookup that the cache did not answer.
    pub(crate) fn ended(&self, result: LookupResult, took: Duration) {
        let result = result.as_str();
        self.lookups.get_or_create(&ByResult { result }).inc();
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
            "Time of each such lookup, the wait for its turn included",
            Unit::Seconds,
            self.duration.clone(),
        );
    }
}

/// All metrics of a client; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) dns: DnsMetrics,
    requests: Family<ByRequest, Counter>,
    received: Family<ByUpstream, Counter>,
    retries: Family<ByUpstream, Counter>,
    resumes: Family<ByUpstream, Counter>,
    failovers: Family<ByUpstream, Counter>,
    state: Family<ByAddress, Gauge>,
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
            "failovers",
            "Requests that another address answered than the one asked first",
            self.failovers.clone(),
        );
        registry.register(
            "upstream_state",
            "Circuit breaker of each address: 0 closed (asked), 1 half-open (on probation), 2 open (not asked); \
             under \"other\", how many registries that are not configured are out",
            self.state.clone(),
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

    /// The state of one address; without one, of all upstreams that nobody configured.
    pub(crate) fn state(&self, label: &str, address: Option<&str>) -> StateGauge {
        StateGauge {
            all: self.state.clone(),
            by: ByAddress {
                upstream: label.to_owned(),
                address: address.unwrap_or_default().to_owned(),
            },
            shared: address.is_none(),
            counted: false.into(),
        }
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
            failovers: self.failovers.get_or_create_owned(&by),
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
    pub(crate) failovers: Counter,
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
