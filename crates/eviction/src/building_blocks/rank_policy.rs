//! `RankPolicy`: the common code of all policies that evict the key with the lowest priority. Each
//! policy implements a [`RankRule`] that computes priorities.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::building_blocks::heap::Heap;
use crate::building_blocks::saved;
use crate::building_blocks::table::{Slot, Table};
use crate::{Access, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim};

/// The rule by which a policy computes priorities. Keys with high priorities stay in the cache.
pub trait RankRule: Send {
    /// The type of the rule's data about one key (note), at most 8 bytes.
    type Note: Clone + Send + Serialize + DeserializeOwned;
    /// The type of the state of the rule, which is saved in addition to the notes.
    type State: Serialize + DeserializeOwned;

    /// Name of the policy, which its saved states also contain.
    const NAME: &'static str;

    /// Called at each request, before all other methods, whether or not the key is resident.
    fn request(&mut self) {}

    /// Returns note and priority of a key that enters the cache.
    fn enter<K>(&self, access: &Access<K>) -> (Self::Note, f64);

    /// Returns the new priority of a key that is requested again. The key entered with `size`.
    fn hit<K>(&self, access: &Access<K>, size: u64, note: &mut Self::Note) -> f64;

    /// Called when a key with this priority was evicted.
    fn on_evict(&mut self, _priority: f64) {}

    /// Returns the state of the rule, for [`RankRule::resume`].
    fn state(&self) -> Self::State;

    /// Restores a saved state of the rule.
    ///
    /// # Errors
    /// The state is invalid. In that case, nothing changes.
    fn resume(&mut self, state: Self::State) -> Result<(), StateError>;
}

/// Checks a saved age (the number L in GDSF). The age must be finite and at least 0.
pub fn age(saved: f64) -> Result<f64, StateError> {
    if saved.is_finite() && saved >= 0.0 {
        return Ok(saved);
    }
    Err(StateError::Content(
        "its age is not a finite number of at least 0",
    ))
}

/// A policy that keeps all priorities in one indexed heap. Each request takes O(log n) time. Among
/// keys with equal priorities, the key whose priority was set first is evicted first.
#[derive(Debug)]
pub struct RankPolicy<K, R: RankRule> {
    rule: R,
    table: Table<K, R::Note>,
    heap: Heap,
}

/// The saved form: the state of the rule, and for each key its size, note and priority. The key
/// with the lowest priority is first.
type State<K, R> = (
    <R as RankRule>::State,
    Vec<(K, u64, <R as RankRule>::Note, f64)>,
);

impl<K: Key, R: RankRule> RankPolicy<K, R> {
    /// Creates an empty policy with this rule.
    pub fn by(rule: R) -> Self {
        Self {
            rule,
            table: Table::default(),
            heap: Heap::default(),
        }
    }

    /// Returns the keys and their priorities in the order of eviction. Takes O(n log n) time.
    pub fn iter(&self) -> impl Iterator<Item = (&K, f64)> {
        let ordered = self.heap.ordered();
        ordered.map(|(slot, priority)| (&self.table.get(slot).key, priority))
    }

    fn take(&mut self, slot: Slot) -> Option<Victim<K>> {
        self.heap.remove(&mut self.table, slot);
        self.table.take(slot).map(Victim::from)
    }
}

impl<K: Key, R: RankRule> Policy<K> for RankPolicy<K, R> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        self.rule.request();
        let Some(slot) = self.table.find(&access.key) else {
            return false;
        };
        let size = self.table.get(slot).size;
        let priority = self.rule.hit(access, size, self.table.note(slot));
        self.heap.set(&mut self.table, slot, priority);
        true
    }

    fn insert(&mut self, access: &Access<K>) {
        if !self.table.contains(&access.key) {
            let (note, priority) = self.rule.enter(access);
            let slot = self.table.add(access.key.clone(), access.size, note);
            self.heap.push(&mut self.table, slot, priority);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.table.find(key) {
            self.take(slot);
        }
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let slot = self.heap.first_unpinned(&self.table, pinned)?;
        self.rule.on_evict(self.heap.priority(&self.table, slot));
        self.take(slot)
    }
}

impl<K: Key, R: RankRule> Contents<K> for RankPolicy<K, R> {
    crate::policy::contents_by_field!(table, K);

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        for (slot, _) in self.heap.ordered() {
            let entry = self.table.get(slot);
            visit(&entry.key, entry.size);
        }
    }
}

impl<K: Key, R: RankRule> PersistentState for RankPolicy<K, R> {
    fn save(&self) -> Vec<u8> {
        let entries = self.heap.ordered().map(|(slot, priority)| {
            let entry = self.table.get(slot);
            (entry.key.clone(), entry.size, entry.note.clone(), priority)
        });
        let state: State<K, R> = (self.rule.state(), entries.collect());
        saved::seal(R::NAME, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let (state, entries): State<K, R> = saved::open(R::NAME, saved)?;
        let (mut table, mut heap) = (Table::default(), Heap::default());
        for (key, size, note, priority) in entries {
            if table.contains(&key) {
                return Err(StateError::Content("a key is in it twice"));
            }
            // Negative infinity is valid: it is the priority of a key that is never requested
            // again. Positive infinity is invalid.
            if priority.is_nan() || priority == f64::INFINITY {
                return Err(StateError::Content(
                    "a priority is not a number below infinity",
                ));
            }
            let slot = table.add(key, size, note);
            heap.push(&mut table, slot, priority);
        }
        self.rule.resume(state)?;
        (self.table, self.heap) = (table, heap);
        Ok(())
    }
}

impl<K: Key, R: RankRule> Diagnostics for RankPolicy<K, R> {
    fn memory(&self) -> usize {
        self.table.memory() + self.heap.memory()
    }
}

#[cfg(test)]
mod tests {
    use crate::Gdsf;
    use crate::testing::refuses_an_age_that_is_not_finite;

    #[test]
    fn an_age_or_a_priority_that_is_not_finite_is_refused_and_changes_nothing() {
        refuses_an_age_that_is_not_finite(Gdsf::<char>::default);
    }
}
