//! Policy `lru`, least recently used: evicts the key whose last request is the oldest.
//!
//! Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.
//! All other policies are compared with LRU.

use crate::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use crate::building_blocks::queues::Queues;
use crate::building_blocks::table::Slot;
use crate::{Access, Key};

pub(crate) const NAME: &str = "lru";

/// The policy: one queue of keys in the order of their last requests.
pub type Lru<K> = QueuePolicy<K, Recency>;

/// The rule of [`Lru`], which moves a requested key to the back of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recency;

impl<K: Key> Lru<K> {
    /// Creates an empty LRU policy.
    pub fn new() -> Self {
        Self::of(Recency)
    }
}

impl<K: Key> Default for Lru<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueRule for Recency {
    const NAME: &'static str = NAME;
    const RESIDENT_QUEUES: usize = 1;
    type State = ();

    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, _: &Access<K>) {
        queues.move_to(slot, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::testing::play;
    use crate::{Policy, Victim};

    #[test]
    fn the_queue_is_in_the_order_of_last_requests() {
        for (trace, victims, queue) in [
            ("*", ".", ""),
            ("a b c", "", "abc"),
            ("a b c a", "", "bca"),
            ("a b c !b", "", "acb"),
            ("a !a !a", "", "a"),
            ("a b c -b !a *", "c", "a"),
            ("a b * a", "a", "ba"),
            ("a b c * * * *", "abc.", ""),
            ("!x -x a !x", "", "a"),
        ] {
            let mut lru = Lru::new();
            let found = (play(&mut lru, trace), lru.show());
            assert_eq!(found, (victims.into(), queue.into()), "{trace}");
        }
    }

    #[test]
    fn a_pinned_key_keeps_its_position() {
        let mut lru = Lru::new();
        for key in 0..3 {
            lru.insert(&Access::new(key, 5, 0));
        }
        let victim = lru.evict(&mut |key| *key == 0);
        assert_eq!(victim, Some(Victim { key: 1, size: 5 }));
        assert!(lru.iter().eq(&[0, 2]));
    }
}
