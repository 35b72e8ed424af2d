//! Prometheus metrics of the proxy. The number of label values is bounded: no label is a digest, a
//! name, a tag or an address.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use http::StatusCode;
use pierhead_oci::Endpoint;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::limits::limit::Limit;

/// The kind of endpoint that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EndpointKind {
    Base,
    Manifest,
    Blob,
    Tags,
    Referrers,
    Discover,
    Bundle,
    File,
    Trace,
    Other,
}

impl EndpointKind {
    const ALL: [Self; KINDS] = [
        Self::Base,
        Self::Manifest,
        Self::Blob,
        Self::Tags,
        Self::Referrers,
        Self::Discover,
        Self::Bundle,
        Self::File,
        Self::Trace,
        Self::Other,
    ];

    /// The value of the label `endpoint`, and of the field `endpoint` of a log line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Manifest => "manifest",
            Self::Blob => "blob",
            Self::Tags => "tags",
            Self::Referrers => "referrers",
            Self::Discover => "discover",
            Self::Bundle => "bundle",
            Self::File => "file",
            Self::Trace => "trace",
            Self::Other => "other",
        }
    }

    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Base => Self::Base,
            Endpoint::Manifest { .. } => Self::Manifest,
            Endpoint::Blob { .. } => Self::Blob,
            Endpoint::Tags { .. } => Self::Tags,
            Endpoint::Referrers { .. } => Self::Referrers,
            Endpoint::Discover { .. } => Self::Discover,
            Endpoint::Bundle { .. } => Self::Bundle,
            Endpoint::File { .. } => Self::File,
            Endpoint::Trace { .. } => Self::Trace,
            _ => Self::Other,
        }
    }
}

impl EncodeLabelValue for EndpointKind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

/// Where the content of a response came from. The `X-Cache` header has the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CacheOutcome {
    /// The content came from the cache, and it is fresh.
    Hit,
    /// The content came from the upstream.
    Miss,
    /// The content came from the cache and is stale, because the upstream failed.
    Stale,
    /// The content came from neither the cache nor the upstream: the proxy itself made the
    /// response.
    None,
}

impl CacheOutcome {
    /// The value of the header `X-Cache`.
    pub(crate) fn header(self) -> Option<&'static str> {
        match self {
            Self::Hit => Some("HIT"),
            Self::Miss => Some("MISS"),
            Self::Stale => Some("STALE"),
            Self::None => None,
        }
    }

    /// The value of the metric label `cache`.
    fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Stale => "stale",
            Self::None => "none",
        }
    }
}

impl EncodeLabelValue for CacheOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: EndpointKind,
    cache: CacheOutcome,
    /// The status class of the response. Metrics of upstream requests have the same values.
    status: &'static str,
}

/// Status classes, by the first digit of the status.
const STATUS_CLASSES: [&str; CLASSES] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: EndpointKind,
}

const KINDS: usize = 10;
const OUTCOMES: usize = 4;
const CLASSES: usize = 6;

/// Combinations of outcome and status class that usually occur. Each of these combinations has a
/// time series from the start, so that queries see the first increase.
const USUAL_RESPONSES: [(CacheOutcome, usize); 6] = [
    (CacheOutcome::Hit, 2),
    (CacheOutcome::Miss, 2),
    (CacheOutcome::Stale, 2),
    (CacheOutcome::None, 2),
    (CacheOutcome::None, 4),
    (CacheOutcome::None, 5),
];

/// One metric for each kind of endpoint, in an array. A lookup by label would take ten times as
/// long as counting itself, and each request is counted five times.
#[derive(Clone)]
struct PerEndpoint<M> {
    family: Family<EndpointLabels, M>,
    by_kind: [M; KINDS],
}

impl<M: Clone + 'static> PerEndpoint<M> {
    fn new(new: fn() -> M) -> Self {
        let family = Family::new_with_constructor(new);
        let by_kind = EndpointKind::ALL
            .map(|endpoint| family.get_or_create_owned(&EndpointLabels { endpoint }));
        Self { family, by_kind }
    }

    fn of(&self, kind: EndpointKind) -> &M {
        &self.by_kind[kind as usize]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: Limit,
}

/// The metrics of one proxy.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    /// The counters of `requests` by index, so that counting needs no lookup by label.
    request_counters: [[[OnceLock<Counter>; CLASSES]; OUTCOMES]; KINDS],
    bytes_out: PerEndpoint<Counter>,
    first_byte: PerEndpoint<Histogram>,
    total: PerEndpoint<Histogram>,
    pub(crate) connections: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
    /// Connections that were closed to make room for a connection of a client with fewer
    /// connections.
    pub(crate) displaced: Counter,
    limited: Family<LimitLabels, Counter>,
    /// Responses that the client did not read to their end.
    pub(crate) cancelled: Counter,
    pub(crate) stalled: Counter,
    /// Responses that were aborted because their content failed.
    pub(crate) aborted: Counter,
    /// Seconds that pieces of responses waited for CPU time.
    pub(crate) cpu_pacer_waited: Counter<f64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let requests = Family::default();
        for endpoint in EndpointKind::ALL {
            for (cache, class) in USUAL_RESPONSES {
                let labels = RequestLabels {
                    endpoint,
                    cache,
                    status: STATUS_CLASSES[class],
                };
                drop(requests.get_or_create(&labels));
            }
        }
        let limited = Family::default();
        for limit in Limit::ALL {
            drop(limited.get_or_create(&LimitLabels { limit }));
        }
        Self {
            requests,
            request_counters: Default::default(),
            bytes_out: PerEndpoint::new(Counter::default),
            // The buckets reach from 1 ms to 8 s: a cache hit takes microseconds, and the default
            // of `limits.response_timeout` is 5 s.
            first_byte: PerEndpoint::new(|| {
                Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 8.0])
            }),
            // The buckets reach from 1 ms to 10 min, which is the time of a layer of gigabytes over
            // a slow uplink.
            total: PerEndpoint::new(|| Histogram::new([0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0])),
            connections: Gauge::default(),
            accepted: Counter::default(),
            refused: Counter::default(),
            displaced: Counter::default(),
            limited,
            cancelled: Counter::default(),
            stalled: Counter::default(),
            aborted: Counter::default(),
            cpu_pacer_waited: Counter::default(),
        }
    }
}

impl Metrics {
    /// Counts one response by endpoint, cache outcome and status.
    pub(crate) fn responded(&self, kind: EndpointKind, outcome: CacheOutcome, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        let class = if class < CLASSES { class } else { 0 };
        self.request_counters[kind as usize][outcome as usize][class]
            .get_or_init(|| {
                let labels = RequestLabels {
                    endpoint: kind,
                    cache: outcome,
                    status: STATUS_CLASSES[class],
                };
                self.requests.get_or_create_owned(&labels)
            })
            .inc();
    }

    /// Counts bytes of content that were written to the socket.
    pub(crate) fn sent(&self, kind: EndpointKind, bytes: u64) {
        self.bytes_out.of(kind).inc_by(bytes);
    }

    /// Records the seconds from the head of a request to the first byte of its response.
    pub(crate) fn first_byte(&self, kind: EndpointKind, seconds: f64) {
        self.first_byte.of(kind).observe(seconds);
    }

    /// Records the seconds from the head of a request to the end of its response.
    pub(crate) fn ended(&self, kind: EndpointKind, seconds: f64) {
        self.total.of(kind).observe(seconds);
    }

    /// Counts a request that was refused, or a connection that was aborted, because it reached this
    /// limit.
    pub(crate) fn limited(&self, limit: Limit) {
        self.limited.get_or_create(&LimitLabels { limit }).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Responses, by endpoint, by origin (hit, miss, stale or none), by status class",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "sent",
            "Bytes of content handed to clients",
            Unit::Bytes,
            self.bytes_out.family.clone(),
        );
        registry.register_with_unit(
            "first_byte",
            "Time from the request's head to the first byte of the response",
            Unit::Seconds,
            self.first_byte.family.clone(),
        );
        registry.register_with_unit(
            "response",
            "Time from the request's head to the last byte of the response",
            Unit::Seconds,
            self.total.family.clone(),
        );
        registry.register(
            "connections",
            "Connections open now",
            self.connections.clone(),
        );
        registry.register(
            "connections_accepted",
            "Connections accepted",
            self.accepted.clone(),
        );
        registry.register(
            "connections_refused",
            "Connections over the limit, which got 503 or were closed",
            self.refused.clone(),
        );
        registry.register(
            "connections_displaced",
            "Idle or half-sent connections closed for a client with fewer connections",
            self.displaced.clone(),
        );
        registry.register(
            "limited",
            "Requests refused and connections aborted, by the limit that was reached",
            self.limited.clone(),
        );
        registry.register(
            "responses_cancelled",
            "Responses that the client did not read to the end",
            self.cancelled.clone(),
        );
        registry.register(
            "clients_stalled",
            "Connections aborted because the client stopped reading",
            self.stalled.clone(),
        );
        registry.register(
            "responses_aborted",
            "Responses aborted because reading their content failed",
            self.aborted.clone(),
        );
        registry.register_with_unit(
            "cpu_pacer_waited",
            "Sum of the times that single pieces of blobs waited for CPU time within the cgroup's quota",
            Unit::Seconds,
            self.cpu_pacer_waited.clone(),
        );
    }
}
