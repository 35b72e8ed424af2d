//! Property tests of the policies FIFO, LRU and SIEVE against simple models: each model is a vector
//! and a rule of a few lines.

use pierhead_eviction::{Access, Lru, Policy, Victim};
use pierhead_replay::policy::{fifo, sieve};
use proptest::prelude::*;

/// The model: a queue, whose first key is the next victim of FIFO. The model of SIEVE also uses the
/// mark and the hand.
#[derive(Default)]
struct Model {
    queue: Vec<(u8, u64, bool)>,
    hand: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Fifo,
    Lru,
    Sieve,
}

impl Model {
    fn ask(&mut self, rule: Rule, key: u8, size: u64) -> bool {
        let Some(at) = self.queue.iter().position(|entry| entry.0 == key) else {
            self.queue.push((key, size, false));
            return false;
        };
        match rule {
            Rule::Fifo => {}
            Rule::Lru => {
                let entry = self.queue.remove(at);
                self.queue.push(entry);
            }
            Rule::Sieve => self.queue[at].2 = true,
        }
        true
    }

    fn take(&mut self, at: usize) -> Victim<u8> {
        let (key, size, _) = self.queue.remove(at);
        if at < self.hand {
            self.hand -= 1;
        }
        if self.hand == self.queue.len() {
            self.hand = 0;
        }
        Victim { key, size }
    }

    fn remove(&mut self, key: u8) {
        if let Some(at) = self.queue.iter().position(|entry| entry.0 == key) {
            self.take(at);
        }
    }

    fn evict(&mut self, rule: Rule, pinned: impl Fn(u8) -> bool) -> Option<Victim<u8>> {
        let first = self.queue.iter().position(|entry| !pinned(entry.0))?;
        if rule != Rule::Sieve {
            return Some(self.take(first));
        }
        loop {
            let (key, _, marked) = self.queue[self.hand];
            if !pinned(key) {
                if !marked {
                    return Some(self.take(self.hand));
                }
                self.queue[self.hand].2 = false;
            }
            self.hand = (self.hand + 1) % self.queue.len();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u8, u64),
    Remove(u8),
    /// Evicts a key, while all keys with these lowest bits are pinned.
    Evict(Option<u8>),
    SaveAndRestore,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..12_u8, 0..100_u64).prop_map(|(key, size)| Step::Ask(key, size)),
        1 => (0..12_u8).prop_map(Step::Remove),
        4 => prop::option::of(0..4_u8).prop_map(Step::Evict),
        1 => Just(Step::SaveAndRestore),
    ];
    prop::collection::vec(step, 0..200)
}

fn agree<P: Policy<u8>>(rule: Rule, new: impl Fn() -> P, steps: Vec<Step>) {
    let (mut policy, mut model) = (new(), Model::default());
    for step in steps {
        match step {
            Step::Ask(key, size) => {
                let access = Access::new(key, size, 0);
                let hit = policy.hit(&access);
                if !hit {
                    policy.miss(&access);
                    policy.insert(&access);
                }
                assert_eq!(hit, model.ask(rule, key, size));
            }
            Step::Remove(key) => {
                policy.remove(&key);
                model.remove(key);
            }
            Step::Evict(bits) => {
                let pinned = |key: u8| Some(key % 4) == bits;
                let victim = policy.evict(&mut |key| pinned(*key));
                assert_eq!(victim, model.evict(rule, pinned));
            }
            Step::SaveAndRestore => {
                let saved = policy.save();
                policy = new();
                assert_eq!(policy.restore(&saved), Ok(()));
            }
        }
        let mut order = Vec::new();
        policy.visit(&mut |key, size| order.push((*key, size)));
        let expected = model.queue.iter().map(|(key, size, _)| (*key, *size));
        assert!(expected.eq(order), "{rule:?}");
    }
}

proptest! {
    #[test]
    fn queues_agree_with_their_models(steps in steps()) {
        agree(Rule::Fifo, fifo::new, steps.clone());
        agree(Rule::Lru, Lru::new, steps.clone());
        agree(Rule::Sieve, sieve::new, steps);
    }
}
