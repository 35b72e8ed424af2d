//! Policy `belady-size`, libcachesim's Belady-size (Yang et al.): evicts the key with the largest
//! product of its size and the distance to its next request. The policy knows the future of the
//! trace, so it serves only for comparisons, and the daemon does not offer it.
//!
//! libcachesim computes the product for a sample of keys. This policy divides keys into size
//! classes of 1/8 of a power of two. In each class, the policy knows the key with the farthest next
//! request. The product of the victim is therefore at least 8/9 of the largest product. Optimal
//! eviction with sizes is NP-hard, so other policies may have better results than this policy.

use crate::policy::belady::Future;
use pierhead_eviction::building_blocks::heap::Heap;
use pierhead_eviction::building_blocks::saved;
use pierhead_eviction::building_blocks::sizes::class;
use pierhead_eviction::building_blocks::table::{Slot, Table};
use pierhead_eviction::{
    Access, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim,
};

pub(crate) const NAME: &str = "belady-size";

/// The policy: one heap of next requests per size class, with at most 512 classes. A request takes
/// O(log n) time, and an eviction O(number of classes). A key that is never requested again does
/// not enter.
#[derive(Debug)]
pub struct BeladySize<K> {
    future: Future,
    table: Table<K, ()>,
    classes: Vec<Heap>,
}

impl<K: Key> BeladySize<K> {
    /// Creates an empty policy that knows these future requests. Each call of [`Policy::hit`] is
    /// one request.
    pub fn new(future: Future) -> Self {
        Self {
            future,
            table: Table::default(),
            classes: Vec::new(),
        }
    }

    fn enter(&mut self, key: K, size: u64, nearness: f64) {
        let class = class(size);
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Heap::default);
        }
        let slot = self.table.add(key, size, ());
        self.classes[class].push(&mut self.table, slot, nearness);
    }

    fn take(&mut self, slot: Slot) -> Option<Victim<K>> {
        let class = class(self.table.get(slot).size);
        self.classes[class].remove(&mut self.table, slot);
        self.table.take(slot).map(Victim::from)
    }

    /// Returns the size of the key times the number of requests until the next request for the key.
    /// The second number is the size, which decides between keys that are never requested again.
    fn worth(&self, class: &Heap, slot: Slot) -> (f64, u64) {
        let size = self.table.get(slot).size;
        let next = -class.priority(&self.table, slot);
        let distance = next - self.future.requests() as f64 + 1.0;
        (size.max(1) as f64 * distance, size)
    }

    /// Returns all keys with their sizes and priorities, class by class.
    fn entries(&self) -> impl Iterator<Item = (&K, u64, f64)> {
        let ordered = self.classes.iter().flat_map(Heap::ordered);
        ordered.map(|(slot, priority)| {
            let entry = self.table.get(slot);
            (&entry.key, entry.size, priority)
        })
    }
}

impl<K: Key> Policy<K> for BeladySize<K> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        self.future.request();
        let Some(slot) = self.table.find(&access.key) else {
            return false;
        };
        let class = class(self.table.get(slot).size);
        let nearness = self.future.nearness();
        self.classes[class].set(&mut self.table, slot, nearness);
        true
    }

    fn refuses(&self, _access: &Access<K>) -> bool {
        self.future.next().is_none()
    }

    fn insert(&mut self, access: &Access<K>) {
        if !self.table.contains(&access.key) {
            let nearness = self.future.nearness();
            self.enter(access.key.clone(), access.size, nearness);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.table.find(key) {
            self.take(slot);
        }
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let farthest = self
            .classes
            .iter()
            .filter_map(|class| {
                let slot = class.first_unpinned(&self.table, pinned)?;
                Some((self.worth(class, slot), slot))
            })
            .max_by(|(one, _), (other, _)| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let (_, slot) = farthest?;
        self.take(slot)
    }
}

impl<K: Key> Contents<K> for BeladySize<K> {
    pierhead_eviction::contents_by_field!(table, K);

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        self.entries().for_each(|(key, size, _)| visit(key, size));
    }
}

impl<K: Key> PersistentState for BeladySize<K> {
    fn save(&self) -> Vec<u8> {
        let entries: Vec<(&K, u64, f64)> = self.entries().collect();
        saved::seal(NAME, &(self.future.requests(), entries))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let (requests, entries): (u64, Vec<(K, u64, f64)>) = saved::open(NAME, saved)?;
        let mut restored = Self::new(self.future.clone());
        restored.future.resume(requests);
        for (key, size, nearness) in entries {
            if restored.contains(&key) {
                return Err(StateError::Content("a key is in it twice"));
            }
            if nearness.is_nan() || nearness == f64::INFINITY {
                return Err(StateError::Content("a priority is not a number"));
            }
            restored.enter(key, size, nearness);
        }
        *self = restored;
        Ok(())
    }
}

impl<K: Key> Diagnostics for BeladySize<K> {
    fn memory(&self) -> usize {
        let heaps: usize = self.classes.iter().map(Heap::memory).sum();
        self.table.memory() + heaps + self.classes.capacity() * size_of::<Heap>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::testing::play;

    fn of(future: &str) -> BeladySize<char> {
        BeladySize::new(Future::of(future.chars()))
    }

    #[test]
    fn the_largest_size_times_distance_leaves_first() {
        for (trace, future, victims) in [
            // A key of 9 bytes and a distance of 2 requests is evicted before a key of 1 byte and a
            // distance of 4 requests.
            ("a1 b9 * * *", "abxbxa", "ba."),
            // A key of 3 bytes and a distance of 5 requests is evicted before a key of 4 bytes and
            // a distance of 2 requests.
            ("a3 b4 * *", "abxbxxa", "ab"),
            // Keys that are never requested again are evicted first, the largest of them first.
            ("a1 b3 c9 d2 * * * *", "abcdc", "bdac"),
            ("a1 b9 b * *", "abbxxxa", "ba"),
            ("a1 b9 -b * *", "abba", "a."),
        ] {
            assert_eq!(play(&mut of(future), trace), victims, "{trace}");
        }
    }

    #[test]
    fn a_key_that_is_never_requested_again_is_refused() {
        let mut belady = of("aba");
        let access = Access::new('a', 1, 0);
        assert!(!belady.hit(&access) && !belady.refuses(&access));
        let access = Access::new('b', 1, 0);
        assert!(!belady.hit(&access) && belady.refuses(&access));
    }

    #[test]
    fn a_restored_policy_continues_in_the_same_future() {
        let mut saved = of("abxbxxa");
        play(&mut saved, "a3 b8");
        let mut restored = of("abxbxxa");
        restored.restore(&saved.save()).expect("its own state");
        // A key of 3 bytes and a distance of 4 requests is evicted before a key of 8 bytes and a
        // distance of 1 request. If the restored policy had started again at the beginning of the
        // trace, the order would be reversed.
        assert_eq!(play(&mut restored, "!x * *"), "ab");
    }
}
