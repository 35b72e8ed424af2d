//! Policy `fifo`, first in, first out: evicts the key that entered first.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
//! 5(2), 1966, section "Simple algorithms".

use pierhead_eviction::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use pierhead_eviction::building_blocks::queues::Queues;
use pierhead_eviction::building_blocks::table::Slot;
use pierhead_eviction::{Access, Key};

pub(crate) const NAME: &str = "fifo";

/// The policy: one queue of keys, in the order in which they entered.
pub type Fifo<K> = QueuePolicy<K, Entered>;

/// The rule of [`Fifo`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Entered;

/// Creates an empty policy.
pub fn new<K: Key>() -> Fifo<K> {
    QueuePolicy::of(Entered)
}

impl QueueRule for Entered {
    const NAME: &'static str = NAME;
    const RESIDENT_QUEUES: usize = 1;
    type State = ();

    fn hit<K: Key>(&mut self, _: &mut Queues<K>, _: Slot, _: &Access<K>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::testing::play;
    use pierhead_eviction::{Policy, Victim};

    #[test]
    fn the_queue_is_in_the_order_of_entry() {
        for (trace, victims, queue) in [
            ("*", ".", ""),
            ("a b c a b", "", "abc"),
            ("a b c a *", "a", "bc"),
            ("a b a * a", "a", "ba"),
            ("a b c -b b", "", "acb"),
            ("!x a !a", "", "a"),
        ] {
            let mut fifo = new();
            let found = (play(&mut fifo, trace), fifo.show());
            assert_eq!(found, (victims.into(), queue.into()), "{trace}");
        }
    }

    #[test]
    fn a_pinned_key_keeps_its_position() {
        let mut fifo = new();
        play(&mut fifo, "a b c");
        let victim = fifo.evict(&mut |key| *key == 'a');
        assert_eq!(victim, Some(Victim { key: 'b', size: 1 }));
        assert_eq!(fifo.show(), "ac");
    }
}
