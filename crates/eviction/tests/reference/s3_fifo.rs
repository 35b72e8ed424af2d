//! A naive model of the policy S3-FIFO (Algorithm 1 of the paper, with sizes in bytes) that uses
//! four vectors, and tests that the policy decides like the model.

use pierhead_eviction::policy::s3_fifo::S3FifoParameters;
use pierhead_eviction::{Access, S3Fifo, Victim};
use proptest::prelude::*;

use super::{Model, agree, steps};

const CAPACITY: u64 = 1000;
/// The minimum number of resident keys from which the maximum number of ghosts is computed.
const MIN_KEYS: usize = 256;

#[derive(Clone, Copy)]
struct Entry {
    key: u8,
    size: u64,
    frequency: u8,
}

impl From<Entry> for Victim<u8> {
    fn from(entry: Entry) -> Self {
        Self {
            key: entry.key,
            size: entry.size,
        }
    }
}

struct S3Model {
    parameters: S3FifoParameters,
    small: Vec<Entry>,
    main: Vec<Entry>,
    ghosts: Vec<Entry>,
    /// Ghosts that were requested and may soon enter the cache.
    returning: Vec<Entry>,
    evicted: bool,
}

fn bytes(queue: &[Entry]) -> u64 {
    queue.iter().map(|entry| entry.size).sum()
}

fn take(queue: &mut Vec<Entry>, key: u8) -> Option<Entry> {
    let at = queue.iter().position(|entry| entry.key == key)?;
    Some(queue.remove(at))
}

// The cast is safe, because the shares of a small capacity are small numbers.
#[allow(clippy::cast_possible_truncation)]
fn share(part: f64) -> u64 {
    (CAPACITY as f64 * part) as u64
}

impl S3Model {
    fn new(parameters: S3FifoParameters) -> Self {
        Self {
            parameters,
            small: Vec::new(),
            main: Vec::new(),
            ghosts: Vec::new(),
            returning: Vec::new(),
            evicted: false,
        }
    }

    /// Limits the bytes of each of the two queues of ghosts, and the number of ghosts in both
    /// queues together.
    #[allow(clippy::cast_possible_truncation)]
    fn trim(&mut self) {
        for queue in [&mut self.ghosts, &mut self.returning] {
            while bytes(queue) > share(self.parameters.ghosts) {
                queue.remove(0);
            }
        }
        let resident = (self.small.len() + self.main.len()).max(MIN_KEYS);
        let most = (resident as f64 * self.parameters.ghosts_per_key) as usize;
        while self.ghosts.len() + self.returning.len() > most {
            if self.ghosts.len() >= self.returning.len() {
                self.ghosts.remove(0);
            } else {
                self.returning.remove(0);
            }
        }
    }

    fn evict_main(&mut self, pinned: &dyn Fn(u8) -> bool) -> Option<Victim<u8>> {
        let mut at = 0;
        while let Some(entry) = self.main.get(at).copied() {
            if pinned(entry.key) {
                at += 1;
                continue;
            }
            self.main.remove(at);
            if entry.frequency == 0 {
                return Some(entry.into());
            }
            self.main.push(Entry {
                frequency: entry.frequency - 1,
                ..entry
            });
        }
        None
    }

    fn evict_small(&mut self, pinned: &dyn Fn(u8) -> bool) -> Option<Victim<u8>> {
        let mut at = 0;
        while let Some(entry) = self.small.get(at).copied() {
            if pinned(entry.key) {
                at += 1;
                continue;
            }
            self.small.remove(at);
            let unused = Entry {
                frequency: 0,
                ..entry
            };
            if entry.frequency < self.parameters.threshold {
                self.ghosts.push(unused);
                self.trim();
                return Some(entry.into());
            }
            self.main.push(unused);
        }
        None
    }
}

impl Model for S3Model {
    fn hit(&mut self, access: &Access<u8>) -> bool {
        let mut resident = self.small.iter_mut().chain(&mut self.main);
        let found = resident.find(|entry| entry.key == access.key);
        if let Some(entry) = found {
            entry.frequency = (entry.frequency + 1).min(3);
            return true;
        }
        false
    }

    fn miss(&mut self, access: &Access<u8>) {
        let ghost = take(&mut self.ghosts, access.key);
        if let Some(ghost) = ghost.or_else(|| take(&mut self.returning, access.key)) {
            self.returning.push(ghost);
            self.trim();
        }
    }

    fn insert(&mut self, access: &Access<u8>) {
        let ghost = take(&mut self.ghosts, access.key);
        let was_ghost = ghost.or_else(|| take(&mut self.returning, access.key));
        let is_small_full = bytes(&self.small) >= share(self.parameters.small);
        let entry = Entry {
            key: access.key,
            size: access.size,
            frequency: 0,
        };
        if was_ghost.is_some() || (!self.evicted && is_small_full) {
            self.main.push(entry);
        } else {
            self.small.push(entry);
        }
    }

    fn remove(&mut self, key: u8) {
        take(&mut self.small, key);
        take(&mut self.main, key);
    }

    fn evict(&mut self, pinned: &dyn Fn(u8) -> bool) -> Option<Victim<u8>> {
        self.evicted = true;
        let is_main_over = bytes(&self.main) > CAPACITY - share(self.parameters.small);
        if is_main_over && let Some(victim) = self.evict_main(pinned) {
            return Some(victim);
        }
        self.evict_small(pinned).or_else(|| self.evict_main(pinned))
    }

    fn totals(&self) -> (usize, u64) {
        let keys = self.small.len() + self.main.len();
        (keys, bytes(&self.small) + bytes(&self.main))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn s3_fifo_moves_keys_as_in_the_paper(
        small in prop::sample::select(vec![0.0, 0.1, 0.4]),
        ghosts in prop::sample::select(vec![0.0, 0.2, 0.9]),
        // The maximum number of ghosts is 256 times this number: 0, 2, 5 or 256 ghosts.
        ghosts_per_key in prop::sample::select(vec![0.0, 0.01, 0.02, 1.0]),
        threshold in 1..=3_u8,
        steps in steps(300, (0..200_u64).boxed()),
    ) {
        let parameters = S3FifoParameters {
            small,
            ghosts,
            ghosts_per_key,
            threshold,
            refuse_large: false,
        };
        let new = || S3Fifo::new(CAPACITY, parameters.clone()).expect("within their ranges");
        agree(new, S3Model::new(parameters.clone()), steps);
    }
}
