//! Policy `sieve`: a queue in the order of entry, and a hand that moves through it. The hand evicts
//! a key that was not requested since the hand's last visit. The hand spares all other keys, and
//! leaves these keys in their places.
//!
//! Zhang et al., "SIEVE is Simpler than LRU", NSDI '24, section 3 (Algorithm 1). Sizes are in
//! bytes, but the rule ignores sizes.

use pierhead_eviction::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use pierhead_eviction::building_blocks::queues::Queues;
use pierhead_eviction::building_blocks::table::Slot;
use pierhead_eviction::{Access, Key, StateError, Victim};

pub(crate) const NAME: &str = "sieve";

/// The policy: one queue in the order of entry, with a hand. An eviction takes amortised O(1) time:
/// each time the hand moves on without an eviction, it clears the mark that a hit has set.
pub type Sieve<K> = QueuePolicy<K, Hand>;

/// The rule of [`Sieve`]: the position of the hand. With `None`, the hand is at the oldest key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hand(Option<Slot>);

/// Creates an empty policy.
pub fn new<K: Key>() -> Sieve<K> {
    QueuePolicy::of(Hand::default())
}

impl QueueRule for Hand {
    const NAME: &'static str = NAME;
    const RESIDENT_QUEUES: usize = 1;
    /// The frequency of a key is only a mark: 1 if the key was requested since the hand's last
    /// visit.
    const MAX_FREQUENCY: u8 = 1;
    /// Number of keys that are older than the key at the hand; `None` means that the hand is at the
    /// oldest key.
    type State = Option<u32>;

    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, _: &Access<K>) {
        *queues.frequency(slot) = 1;
    }

    fn leave<K: Key>(&mut self, queues: &Queues<K>, slot: Slot) {
        if self.0 == Some(slot) {
            self.0 = queues.after(slot);
        }
    }

    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let oldest = queues.list(0).front()?;
        let mut at = self.0.unwrap_or(oldest);
        // The first round clears all marks, so the second round finds a key, unless all keys are
        // pinned.
        for _ in 0..2 * queues.len() {
            if !pinned(&queues.get(at).key) && std::mem::take(queues.frequency(at)) == 0 {
                self.0 = queues.after(at);
                return queues.drop(at).map(Victim::from);
            }
            at = queues.after(at).unwrap_or(oldest);
        }
        None
    }

    fn state<K: Key>(&self, queues: &Queues<K>) -> Option<u32> {
        let older = queues.position(self.0?)?;
        u32::try_from(older).ok()
    }

    fn resume<K: Key>(&mut self, queues: &Queues<K>, older: Option<u32>) -> Result<(), StateError> {
        let at = older.map(|older| queues.nth(0, older as usize));
        if at == Some(None) {
            return Err(StateError::Content("the hand points beyond the queue"));
        }
        self.0 = at.flatten();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::testing::play;
    use pierhead_eviction::{PersistentState as _, Policy};

    #[test]
    fn the_hand_spares_requested_keys_and_does_not_move_them() {
        for (trace, victims, queue) in [
            ("*", ".", ""),
            ("a b c a a", "", "a1bc"),
            ("a b c a *", "b", "ac"),
            // The hand stays between a and c. The hand visits older keys only in the next round.
            ("a b c a * d *", "bc", "ad"),
            ("a b c a b c *", "a", "bc"),
            ("a b c b * *", "ac", "b"),
            // A small version of the paper's figure 2: new keys are evicted before old keys that
            // are requested.
            ("a b c d b * e b * *", "acd", "be"),
            ("a b c d b * -c *", "ad", "b"),
            ("a b -a -b c *", "c", ""),
            ("a b * * a b a * *", "abba", ""),
        ] {
            let mut sieve = new();
            let found = (play(&mut sieve, trace), sieve.show());
            assert_eq!(found, (victims.into(), queue.into()), "{trace}");
        }
    }

    #[test]
    fn a_pinned_key_keeps_its_mark_and_all_pinned_gives_no_victim() {
        let mut sieve = new();
        play(&mut sieve, "a b c d a c");
        assert_eq!(sieve.evict(&mut |_| true), None);
        assert_eq!(sieve.show(), "a1bc1d");
        let victim = sieve.evict(&mut |key| "ab".contains(*key));
        assert_eq!(victim.map(|victim| victim.key), Some('d'));
        assert_eq!(sieve.show(), "a1bc");
    }

    #[test]
    fn a_hand_beyond_the_queue_is_refused() {
        let mut sieve = new::<char>();
        play(&mut sieve, "a b c a *");
        let state = pierhead_eviction::building_blocks::saved::seal(
            NAME,
            &(vec![vec![('a', 1_u64, 0_u8)]], Some(1_u32)),
        );
        let before = sieve.save();
        assert!(sieve.restore(&state).is_err());
        assert_eq!(sieve.save(), before);
    }
}
