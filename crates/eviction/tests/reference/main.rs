//! Property tests: the policies S3-FIFO, GDSF, CHERRY and size-split, the simulated cache with LRU,
//! and each admission filter decide like naive models of their rules. The tests use random
//! requests, removals, evictions with pinned keys, and restarts.

mod admission;
mod ranked;
mod s3_fifo;
mod simulated;
mod size_split;

use pierhead_eviction::{Access, Policy, Victim};
use proptest::prelude::*;

/// A naive policy without any index: it searches its vectors from the front at each call.
trait Model {
    fn hit(&mut self, access: &Access<u8>) -> bool;

    fn miss(&mut self, _access: &Access<u8>) {}

    fn insert(&mut self, access: &Access<u8>);

    fn remove(&mut self, key: u8);

    fn evict(&mut self, pinned: &dyn Fn(u8) -> bool) -> Option<Victim<u8>>;

    /// Returns the number of keys and the sum of their sizes.
    fn totals(&self) -> (usize, u64);
}

#[derive(Clone, Debug)]
enum Step {
    Request {
        access: Access<u8>,
        /// Whether the key enters the cache after a miss.
        enters: bool,
    },
    Remove(u8),
    /// An eviction. If a number is given, the keys whose lowest bits equal it are pinned.
    Evict(Option<u8>),
    /// The policy's state is saved and restored into a new policy.
    Restart,
}

/// Returns up to `count` random steps with keys below 24 and sizes from `sizes`.
fn steps(count: usize, sizes: BoxedStrategy<u64>) -> impl Strategy<Value = Vec<Step>> {
    let access =
        (0..24_u8, sizes, 0..8_u32, 0..4_u32).prop_map(|(key, size, cost, shared)| Access {
            cost: cost as f32 / 4.0,
            shared,
            ..Access::new(key, size, 0)
        });
    let step = prop_oneof![
        12 => (access, prop::bool::weighted(0.9))
            .prop_map(|(access, enters)| Step::Request { access, enters }),
        1 => (0..24_u8).prop_map(Step::Remove),
        6 => prop::option::of(0..4_u8).prop_map(Step::Evict),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..count)
}

/// Runs the steps on a policy and on its model, and compares all decisions.
fn agree<P: Policy<u8>>(new: impl Fn() -> P, mut model: impl Model, steps: Vec<Step>) {
    let mut policy = new();
    for (at, step) in steps.into_iter().enumerate() {
        match &step {
            Step::Request { access, enters } => {
                let hit = policy.hit(access);
                assert_eq!(hit, model.hit(access), "step {at}: {step:?}");
                if !hit {
                    policy.miss(access);
                    model.miss(access);
                    if *enters {
                        policy.insert(access);
                        model.insert(access);
                    }
                }
            }
            Step::Remove(key) => {
                policy.remove(key);
                model.remove(*key);
            }
            Step::Evict(bits) => {
                let pinned = |key: u8| Some(key % 4) == *bits;
                let victim = policy.evict(&mut |key| pinned(*key));
                assert_eq!(victim, model.evict(&pinned), "step {at}: {step:?}");
            }
            Step::Restart => {
                let saved = policy.save();
                policy = new();
                assert_eq!(policy.restore(&saved), Ok(()), "step {at}");
            }
        }
        let totals = (policy.len(), policy.bytes());
        assert_eq!(totals, model.totals(), "step {at}: {step:?}");
    }
    let order: Vec<_> = std::iter::from_fn(|| policy.evict(&mut |_| false)).collect();
    let expected: Vec<_> = std::iter::from_fn(|| model.evict(&|_| false)).collect();
    assert_eq!(order, expected, "the remaining victims");
}
