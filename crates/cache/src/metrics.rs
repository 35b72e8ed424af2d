//! The Prometheus metrics of the cache: counters and histograms of its events.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::store::admission::Refusal;

#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) hits: Counter,
    pub(crate) memory_hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) coalesced: Counter,
    pub(crate) failed_fills: Counter,
    pub(crate) written_bytes: Counter,
    pub(crate) evictions: Counter,
    pub(crate) evicted_bytes: Counter,
    pub(crate) corrupt: Counter,
    refused: Family<RefusedBy, Counter>,
    pub(crate) commit_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        // Each label value has a time series before its first event, because `rate()` in Prometheus
        // would miss an event that creates a time series.
        let refused = Family::default();
        for by in REFUSED_BY {
            drop(refused.get_or_create(&RefusedBy { by }));
        }
        Self {
            hits: Counter::default(),
            memory_hits: Counter::default(),
            misses: Counter::default(),
            coalesced: Counter::default(),
            failed_fills: Counter::default(),
            written_bytes: Counter::default(),
            evictions: Counter::default(),
            evicted_bytes: Counter::default(),
            corrupt: Counter::default(),
            refused,
            // The buckets reach from 0.5 ms (a fast disk) to 8 s (a large blob on a slow disk).
            commit_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 15)),
        }
    }
}

/// Values of the label `by` of the counter of refused fills.
const REFUSED_BY: [&str; 3] = ["admission", "policy", "written"];

/// The labels of the counter of refused fills.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedBy {
    by: &'static str,
}

impl Metrics {
    pub(crate) fn refused(&self, refusal: Refusal) {
        let by = match refusal {
            Refusal::Admission => "admission",
            Refusal::Policy => "policy",
            Refusal::WriteBudget => "written",
        };
        self.refused.get_or_create(&RefusedBy { by }).inc();
    }

    /// Returns the number of refused fills for each value of the label `by`.
    pub(crate) fn refusals(&self) -> [(&'static str, u64); 3] {
        REFUSED_BY.map(|by| (by, self.refused.get_or_create(&RefusedBy { by }).get()))
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "hits",
            "Requests for a blob that the cache had",
            self.hits.clone(),
        );
        registry.register(
            "memory_hits",
            "Requests for a blob that the cache had in memory",
            self.memory_hits.clone(),
        );
        registry.register(
            "misses",
            "Requests for a blob that started a download into the cache",
            self.misses.clone(),
        );
        registry.register(
            "coalesced",
            "Requests for a blob that joined a running download into the cache",
            self.coalesced.clone(),
        );
        registry.register(
            "failed_fills",
            "Fills (downloads into the cache) that failed",
            self.failed_fills.clone(),
        );
        registry.register_with_unit(
            "written",
            "Bytes of blobs written to staging files",
            Unit::Bytes,
            self.written_bytes.clone(),
        );
        registry.register("evictions", "Blobs evicted", self.evictions.clone());
        registry.register_with_unit(
            "evicted",
            "Bytes on disk of evicted blobs",
            Unit::Bytes,
            self.evicted_bytes.clone(),
        );
        registry.register(
            "refused",
"Fills that would fit and were not stored: refused by the admission, the policy or the daily write budget",
            self.refused.clone(),
        );
        registry.register(
            "corrupt_blobs",
            "Stored blobs found corrupt and removed",
            self.corrupt.clone(),
        );
        registry.register_with_unit(
            "commit",
            "Time from the last byte of a fill until its blob is durable and visible",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
    }
}
