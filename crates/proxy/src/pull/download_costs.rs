//! How long clients would wait for what is not in the cache: a + b · size, learned for each registry.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pierhead_cache::Access;
use pierhead_oci::Registry;

/// Registries that something is known of; beyond it the one that was asked the longest ago is forgotten.
const MAX_REGISTRIES: usize = 256;

/// What is assumed of a registry before anything was measured: seconds to the first byte, and seconds a byte.
const ASSUMED_FIRST_BYTE: f64 = Access::<()>::ROUND_TRIP;
const ASSUMED_PER_BYTE: f64 = Access::<()>::PER_MEGABYTE / 1e6;

/// No registry costs more than so many times what is assumed of a distant one: whoever may name any registry could
/// raise what it keeps above all else, by one that drips.
const MAX_COST_FACTOR: f64 = 4.0;

/// The assumed rate counts as so many bytes measured.
const ASSUMED_BYTES: f64 = 4e6;
/// Of measured bytes the last ones count: a link that has changed is known after about so many.
const MAX_WEIGHED_BYTES: f64 = 256e6;
/// Bytes that come along with the head tell nothing of the rate.
const MIN_RATE_BYTES: u64 = 64 << 10;
/// One measurement says no more than that it is so many times faster or slower: a stalled fetch is no rule.
const MAX_OUTLIER: f64 = 8.0;
/// The least weight of a new time to the first byte.
const MIN_WEIGHT: f64 = 1.0 / 16.0;

/// See the head of this module. Learned anew after a restart; what each blob cost is kept with the blob.
#[derive(Default)]
pub(crate) struct DownloadCosts(Mutex<HashMap<Registry, CostModel>>);

struct CostModel {
    /// Seconds to the first byte.
    first: f64,
    fetches: f64,
    /// Of the bytes below, decayed alike.
    seconds: f64,
    bytes: f64,
    used: Instant,
}

impl CostModel {
    fn new(used: Instant) -> Self {
        Self {
            first: ASSUMED_FIRST_BYTE,
            fetches: 0.0,
            seconds: ASSUMED_BYTES * ASSUMED_PER_BYTE,
            bytes: ASSUMED_BYTES,
            used,
        }
    }

    fn per_byte(&self) -> f64 {
        self.seconds / self.bytes
    }

    fn learn(&mut self, first: f64, body: f64, bytes: u64) {
        // Of samples that keep to the bound, any mean does.
        let about = |sample: f64, known: f64, most: f64| {
            sample
                .clamp(known / MAX_OUTLIER, known * MAX_OUTLIER)
                .min(most)
        };
        // The assumption weighs as much as one fetch.
        self.fetches += 1.0;
        let weight = (1.0 / (1.0 + self.fetches)).max(MIN_WEIGHT);
        self.first +=
            (about(first, self.first, ASSUMED_FIRST_BYTE * MAX_COST_FACTOR) - self.first) * weight;
        if bytes >= MIN_RATE_BYTES {
            let bytes = bytes as f64;
            let most = bytes * ASSUMED_PER_BYTE * MAX_COST_FACTOR;
            self.seconds += about(body, bytes * self.per_byte(), most);
            self.bytes += bytes;
            let decay = (MAX_WEIGHED_BYTES / self.bytes).min(1.0);
            (self.seconds, self.bytes) = (self.seconds * decay, self.bytes * decay);
        }
    }
}

impl DownloadCosts {
    /// Seconds until a client would have `size` bytes of that registry.
    // A rank needs no more precision than a float has.
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

    /// A fetch took so long to its first byte, and then waited so long for the other `bytes`.
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
    fn each_registry_is_known_by_what_was_measured() {
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
    fn one_stalled_fetch_is_no_rule_and_a_small_one_says_nothing_of_the_rate() {
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
    fn a_registry_that_drips_is_worth_no_more_than_a_few_of_the_assumed_ones() {
        let (costs, registry) = (DownloadCosts::default(), registry(1));
        let ms = Duration::from_millis;
        for _ in 0..100 {
            costs.learn(&registry, ms(3_600_000), ms(3_600_000), MB);
        }
        for size in [0, 1000, MB, 1000 * MB] {
            let [cost, prior] = [costs.estimate(&registry, size), Access::<()>::prior(size)];
            assert!(cost > prior * 3.0 && cost < prior * 4.01, "{size}: {cost}");
        }
        // And is known again by what it does soon after.
        for _ in 0..200 {
            costs.learn(&registry, ms(100), ms(1000), 10 * MB);
        }
        let cost = costs.estimate(&registry, 10 * MB);
        assert!((0.9..1.5).contains(&cost), "{cost}");
    }

    #[test]
    fn registries_are_forgotten_before_they_are_too_many() {
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
