//! A naive model of the policies that evict the key with the lowest priority (GDSF and CHERRY), and
//! tests that these policies decide like the model.

use pierhead_eviction::policy::cherry::{CherryParameters, Combination};
use pierhead_eviction::policy::gdsf::{Cost, GdsfParameters};
use pierhead_eviction::{Access, Cherry, Gdsf, Victim};
use proptest::prelude::*;

use super::{Model, agree, steps};

/// One key of the model [`Ranked`].
struct Entry {
    key: u8,
    size: u64,
    requests: u32,
    priority: f64,
    /// Number of the step in which the priority was set.
    set: u64,
}

/// Computes a priority from the request of a key, its size, its number of requests, and the age.
type Priority = Box<dyn Fn(&Access<u8>, u64, u32, f64) -> f64>;

/// The model: keys with priorities. The last victim's priority is the age that later requests use.
pub(super) struct Ranked {
    entries: Vec<Entry>,
    age: f64,
    clock: u64,
    priority: Priority,
}

impl Ranked {
    pub(super) fn new(priority: impl Fn(&Access<u8>, u64, u32, f64) -> f64 + 'static) -> Self {
        Self {
            entries: Vec::new(),
            age: 0.0,
            clock: 0,
            priority: Box::new(priority),
        }
    }
}

impl Model for Ranked {
    fn hit(&mut self, access: &Access<u8>) -> bool {
        self.clock += 1;
        let found = self.entries.iter_mut().find(|it| it.key == access.key);
        let Some(entry) = found else {
            return false;
        };
        entry.requests += 1;
        entry.priority = (self.priority)(access, entry.size, entry.requests, self.age);
        entry.set = self.clock;
        true
    }

    fn insert(&mut self, access: &Access<u8>) {
        self.clock += 1;
        self.entries.push(Entry {
            key: access.key,
            size: access.size,
            requests: 1,
            priority: (self.priority)(access, access.size, 1, self.age),
            set: self.clock,
        });
    }

    fn remove(&mut self, key: u8) {
        self.entries.retain(|entry| entry.key != key);
    }

    fn evict(&mut self, pinned: &dyn Fn(u8) -> bool) -> Option<Victim<u8>> {
        let free = self.entries.iter().enumerate();
        let free = free.filter(|(_, entry)| !pinned(entry.key));
        let least = free.min_by(|(_, a), (_, b)| {
            let priorities = a.priority.total_cmp(&b.priority);
            priorities.then(a.set.cmp(&b.set))
        });
        let entry = self.entries.remove(least?.0);
        self.age = self.age.max(entry.priority);
        Some(Victim {
            key: entry.key,
            size: entry.size,
        })
    }

    fn totals(&self) -> (usize, u64) {
        let bytes = self.entries.iter().map(|entry| entry.size).sum();
        (self.entries.len(), bytes)
    }
}

fn sizes() -> BoxedStrategy<u64> {
    (0..100_u64).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gdsf_evicts_the_least_frequency_times_cost_per_byte(steps in steps(300, sizes())) {
        for cost in [Cost::One, Cost::Waiting, Cost::Bytes] {
            let parameters = GdsfParameters { cost, ..GdsfParameters::default() };
            let new = || Gdsf::new(parameters).expect("within their ranges");
            let model = Ranked::new(move |access: &Access<u8>, size: u64, requests, age| {
                let bytes = size.max(1) as f64;
                let cost = match cost {
                    Cost::One => 1.0,
                    Cost::Waiting => f64::from(access.cost),
                    Cost::Bytes => bytes,
                };
                age + f64::from(requests) * cost / bytes
            });
            agree(new, model, steps.clone());
        }
    }

    #[test]
    fn gdsf_raises_the_frequency_to_the_power_of_beta(
        beta in 0.0..=4.0,
        steps in steps(200, sizes()),
    ) {
        let parameters = GdsfParameters { beta, cost: Cost::One };
        let new = || Gdsf::new(parameters).expect("within their ranges");
        let model = Ranked::new(move |_: &Access<u8>, size: u64, requests, age| {
            age + f64::from(requests).powf(beta) / size.max(1) as f64
        });
        agree(new, model, steps);
    }

    #[test]
    fn cherry_evicts_the_layer_of_the_fewest_images_and_requests(steps in steps(300, sizes())) {
        for combination in [Combination::Product, Combination::Sum] {
            let model = Ranked::new(move |access: &Access<u8>, _, requests, _| {
                let images = f64::from(access.shared.max(1));
                match combination {
                    Combination::Product => images * f64::from(requests),
                    Combination::Sum => images + f64::from(requests),
                }
            });
            agree(|| Cherry::new(CherryParameters { combination }), model, steps.clone());
        }
    }
}
