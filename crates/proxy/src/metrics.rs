//! What the proxy counts. Labels are bounded: never a digest, a name, a tag or an address.

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

/// Which part of the API was asked.
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

/// Where an answer came from: the `X-Cache` header says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CacheOutcome {
    /// The cache, as the upstream has it.
    Hit,
    /// The upstream, now.
    Miss,
    /// The cache, since the upstream could not be asked.
    Stale,
    /// Neither: answered by the proxy itself.
    None,
}

impl CacheOutcome {
    /// The value of `X-Cache`.
    pub(crate) fn header(self) -> Option<&'static str> {
        match self {
            Self::Hit => Some("HIT"),
            Self::Miss => Some("MISS"),
            Self::Stale => Some("STALE"),
            Self::None => None,
        }
    }

    /// The value of the label `cache`.
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
    /// The class, spelled as by the counter of requests to upstreams.
    status: &'static str,
}

/// By the status's first digit.
const STATUS_CLASSES: [&str; CLASSES] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: EndpointKind,
}

const KINDS: usize = 10;
const OUTCOMES: usize = 4;
const CLASSES: usize = 6;

/// What answers are like: each of these has a series from the start, so that its first increase is seen.
const USUAL: [(CacheOutcome, usize); 6] = [
    (CacheOutcome::Hit, 2),
    (CacheOutcome::Miss, 2),
    (CacheOutcome::Stale, 2),
    (CacheOutcome::None, 2),
    (CacheOutcome::None, 4),
    (CacheOutcome::None, 5),
];

/// A metric an endpoint, found by its number: looking it up by its label costs ten times as much as
/// counting, and a request counts five times.
#[derive(Clone)]
struct PerKind<M> {
    family: Family<EndpointLabels, M>,
    found: [M; KINDS],
}

impl<M: Clone + 'static> PerKind<M> {
    fn new(new: fn() -> M) -> Self {
        let family = Family::new_with_constructor(new);
        let found = EndpointKind::ALL
            .map(|endpoint| family.get_or_create_owned(&EndpointLabels { endpoint }));
        Self { family, found }
    }

    fn of(&self, kind: EndpointKind) -> &M {
        &self.found[kind as usize]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: Limit,
}

/// A value, registered by whoever shows metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    found: [[[OnceLock<Counter>; CLASSES]; OUTCOMES]; KINDS],
    bytes_out: PerKind<Counter>,
    first_byte: PerKind<Histogram>,
    total: PerKind<Histogram>,
    pub(crate) connections: Gauge,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
    /// Closed so that a client with fewer could connect.
    pub(crate) displaced: Counter,
    limited: Family<LimitLabels, Counter>,
    pub(crate) gone: Counter,
    pub(crate) stalled: Counter,
    pub(crate) cut: Counter,
    /// Seconds.
    pub(crate) quota_waited: Counter<f64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let requests = Family::default();
        for endpoint in EndpointKind::ALL {
            for (cache, class) in USUAL {
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
            found: Default::default(),
            bytes_out: PerKind::new(Counter::default),
            // 1 ms to 8 s: a warm answer takes microseconds, the limit of an answer is 5 s.
            first_byte: PerKind::new(|| Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 8.0])),
            // 1 ms to 10 min: a layer of gigabytes over a slow uplink.
            total: PerKind::new(|| Histogram::new([0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0])),
            connections: Gauge::default(),
            accepted: Counter::default(),
            refused: Counter::default(),
            displaced: Counter::default(),
            limited,
            gone: Counter::default(),
            stalled: Counter::default(),
            cut: Counter::default(),
            quota_waited: Counter::default(),
        }
    }
}

impl Metrics {
    /// A request was answered so.
    pub(crate) fn answered(&self, kind: EndpointKind, outcome: CacheOutcome, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        let class = if class < CLASSES { class } else { 0 };
        self.found[kind as usize][outcome as usize][class]
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

    /// Bytes of content were handed over.
    pub(crate) fn sent(&self, kind: EndpointKind, bytes: u64) {
        self.bytes_out.of(kind).inc_by(bytes);
    }

    /// The first byte of an answer's content was handed over after so many seconds.
    pub(crate) fn first_byte(&self, kind: EndpointKind, seconds: f64) {
        self.first_byte.of(kind).observe(seconds);
    }

    /// An answer ended after so many seconds.
    pub(crate) fn ended(&self, kind: EndpointKind, seconds: f64) {
        self.total.of(kind).observe(seconds);
    }

    /// Somebody was refused or cut for the sake of that limit.
    pub(crate) fn limited(&self, limit: Limit) {
        self.limited.get_or_create(&LimitLabels { limit }).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests answered, by endpoint, by where the answer came from, by status class",
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
            "From the request's head to the answer's first byte",
            Unit::Seconds,
            self.first_byte.family.clone(),
        );
        registry.register_with_unit(
            "response",
            "From the request's head to the answer's last byte",
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
            "Connections over the limit, answered 503 or closed",
            self.refused.clone(),
        );
        registry.register(
            "connections_displaced",
            "Idle or half-sent connections closed so that a client with fewer could connect",
            self.displaced.clone(),
        );
        registry.register(
            "limited",
            "Requests refused and connections cut, by the limit that was reached",
            self.limited.clone(),
        );
        registry.register(
            "clients_gone",
            "Answers that a client left before their end",
            self.gone.clone(),
        );
        registry.register(
            "clients_stalled",
            "Connections cut because the client took nothing for too long",
            self.stalled.clone(),
        );
        registry.register(
            "responses_aborted",
            "Answers cut because their content failed on the way",
            self.cut.clone(),
        );
        registry.register_with_unit(
            "cpu_pacer_waited",
            "Time that pieces of blobs, each by itself, waited for CPU time within the cgroup's quota",
            Unit::Seconds,
            self.quota_waited.clone(),
        );
    }
}
