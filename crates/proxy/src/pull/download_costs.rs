//! Estimates how long a client waits for a blob that is not cached, for the eviction policy. The
//! model is a + b · size, with a and b learned for each registry.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pierhead_cache::Access;
use pierhead_oci::Registry;

/// Maximum number of registries whose download costs are learned. If there are more, the least
/// recently used registry is dropped.
const MAX_REGISTRIES: usize = 256;

/// Assumed seconds to the first byte, before the first measurement of a registry.
const ASSUMED_FIRST_BYTE: f64 = Access::<()>::ROUND_TRIP;
/// Assumed seconds per byte, before the first measurement of a registry.
const ASSUMED_PER_BYTE: f64 = Access::<()>::PER_MEGABYTE / 1e6;

/// Maximum download cost of a registry, as a multiple of the assumed cost. Without this limit, a
/// client with a slow registry of its own could make the blobs of this registry more valuable to
/// the policy than all other blobs.
const MAX_COST_FACTOR: f64 = 4.0;

/// Weight of the assumed rate, as a number of measured bytes.
const ASSUMED_BYTES: f64 = 4e6;
/// Maximum weight of all measured bytes of a registry. After about this many bytes, the model has
/// adapted to a changed link.
const MAX_WEIGHED_BYTES: f64 = 256e6;
/// Minimum bytes for a measurement of the rate of a registry. Fewer bytes arrive together with the
/// head of the response.
const MIN_RATE_BYTES: u64 = 64 << 10;
/// Maximum factor between a measurement and the model. The limit bounds the effect of one stalled
/// download.
const MAX_OUTLIER: f64 = 8.0;
/// Minimum weight of a new measurement of the time to the first byte.
const MIN_WEIGHT: f64 = 1.0 / 16.0;

/// The cost models of all registries. A restart forgets the models, but each cached blob keeps its
/// cost. A general-purpose cache cannot hold the models, because a model learns from each download
/// and does not expire.
#[derive(Default)]
pub(crate) struct DownloadCosts(Mutex<HashMap<Registry, CostModel>>);

struct CostModel {
    /// Average number of seconds to the first byte of a download.
    first: f64,
    /// Number of downloads that the average contains, up to a limit.
    downloads: f64,
    /// Seconds that the arrival of `bytes` took. `seconds` and `bytes` decay by the same factor.
    seconds: f64,
    bytes: f64,
    used: Instant,
}

impl CostModel {
    fn new(used: Instant) -> Self {
        Self {
            first: ASSUMED_FIRST_BYTE,
            downloads: 0.0,
            seconds: ASSUMED_BYTES * ASSUMED_PER_BYTE,
            bytes: ASSUMED_BYTES,
            used,
        }
    }

    fn per_byte(&self) -> f64 {
        self.seconds / self.bytes
    }

    fn learn(&mut self, first: f64, body: f64, bytes: u64) {
        let bounded = |sample: f64, model: f64, max: f64| {
            sample
                .clamp(model / MAX_OUTLIER, model * MAX_OUTLIER)
                .min(max)
        };
        // The assumed value weighs as much as one download.
        self.downloads += 1.0;
        let weight = (1.0 / (1.0 + self.downloads)).max(MIN_WEIGHT);
        let max = ASSUMED_FIRST_BYTE * MAX_COST_FACTOR;
        self.first += (bounded(first, self.first, max) - self.first) * weight;
        if bytes >= MIN_RATE_BYTES {
            let bytes = bytes as f64;
            let max = bytes * ASSUMED_PER_BYTE * MAX_COST_FACTOR;
            self.seconds += bounded(body, bytes * self.per_byte(), max);
            self.bytes += bytes;
            let decay = (MAX_WEIGHED_BYTES / self.bytes).min(1.0);
            (self.seconds, self.bytes) = (self.seconds * decay, self.bytes * decay);
        }
    }
}

impl DownloadCosts {
    /// Returns the estimated seconds until a client has `size` bytes from that registry.
    // The eviction policy needs no more precision than `f32`.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn estimate(&self, registry: &Registry, size: u64) -> f32 {
        let models = self.0.lock();
        let (first, per_byte) = models
            .get(registry)
            .map_or((ASSUMED_FIRST_BYTE, ASSUMED_PER_BYTE), |model| {
                (model.first, model.per_byte())
            });
        (first + per_byte * size as f64) as f32
    }

    /// Records a download: the time to its first byte, and the time that the remaining `bytes`
    /// took.
    pub(crate) fn learn(&self, registry: &Registry, first: Duration, body: Duration, bytes: u64) {
        let now = Instant::now();
        let mut models = self.0.lock();
        if models.len() >= MAX_REGISTRIES && !models.contains_key(registry) {
            let oldest = models.iter().min_by_key(|(_, model)| model.used);
            if let Some(oldest) = oldest.map(|(registry, _)| registry.clone()) {
                models.remove(&oldest);
            }
        }
        let model = models
            .entry(registry.clone())
            .or_insert_with(|| CostModel::new(now));
        model.used = now;
        model.learn(first.as_secs_f64(), body.as_secs_f64(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn registry(number: usize) -> Registry {
        format!("r{number}.example").parse().unwrap()
    }

    #[test]
    fn each_registry_has_its_own_measured_costs() {
        let (costs, near, far) = (DownloadCosts::default(), registry(1), registry(2));
        assert!((costs.estimate(&near, MB) - 1.38).abs() < 1e-5, "assumed");
        let ms = Duration::from_millis;
        for _ in 0..100 {
            costs.learn(&near, ms(10), ms(100), 10 * MB);
            costs.learn(&far, ms(800), ms(20_000), 10 * MB);
        }
        let of = |registry, size| costs.estimate(registry, size);
        assert!((of(&near, 0) - 0.01).abs() < 0.005, "{}", of(&near, 0));
        assert!((of(&near, 100 * MB) - 1.01).abs() < 0.2);
        assert!((of(&far, 0) - 0.8).abs() < 0.01);
        assert!((of(&far, 10 * MB) - 20.8).abs() < 1.0);
    }

    #[test]
    fn one_stalled_download_changes_little_and_a_small_one_does_not_change_the_rate() {
        let (costs, registry) = (DownloadCosts::default(), registry(1));
        let ms = Duration::from_millis;
        for _ in 0..50 {
            costs.learn(&registry, ms(100), ms(1000), 10 * MB);
        }
        let before = costs.estimate(&registry, 10 * MB);
        costs.learn(&registry, ms(60_000), ms(600_000), 10 * MB);
        let after = costs.estimate(&registry, 10 * MB);
        assert!(after < before * 1.5, "{before} {after}");
        costs.learn(&registry, ms(100), ms(60_000), 1000);
        assert!(costs.estimate(&registry, 10 * MB) <= after);
    }

    #[test]
    fn the_cost_of_a_slow_registry_is_bounded() {
        let (costs, registry) = (DownloadCosts::default(), registry(1));
        let ms = Duration::from_millis;
        for _ in 0..100 {
            costs.learn(&registry, ms(3_600_000), ms(3_600_000), MB);
        }
        for size in [0, 1000, MB, 1000 * MB] {
            let [cost, prior] = [costs.estimate(&registry, size), Access::<()>::prior(size)];
            assert!(cost > prior * 3.0 && cost < prior * 4.01, "{size}: {cost}");
        }
        // The estimated costs fall soon after the registry becomes faster.
        for _ in 0..200 {
            costs.learn(&registry, ms(100), ms(1000), 10 * MB);
        }
        let cost = costs.estimate(&registry, 10 * MB);
        assert!((0.9..1.5).contains(&cost), "{cost}");
    }

    #[test]
    fn the_number_of_registries_is_bounded() {
        let costs = DownloadCosts::default();
        let ms = Duration::from_millis;
        for number in 0..MAX_REGISTRIES + 10 {
            costs.learn(&registry(number), ms(10), ms(10), MB);
        }
        assert_eq!(costs.0.lock().len(), MAX_REGISTRIES);
        assert!((costs.estimate(&registry(0), 0) - 0.44).abs() < 1e-5);
        assert!(costs.estimate(&registry(MAX_REGISTRIES + 9), 0) < 0.3);
    }
}
