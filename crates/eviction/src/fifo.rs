//! First in, first out: evicts the key that entered first, whatever was asked for since.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2),
//! 1966, section "Simple algorithms".

use crate::queued::{Queued, Rule};
use crate::queues::Queues;
use crate::table::Slot;
use crate::{Access, Key};

pub(crate) const NAME: &str = "fifo";

/// One queue, in the order of entering.
pub type Fifo<K> = Queued<K, Entered>;

/// The rule of [`Fifo`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Entered;

impl<K: Key> Fifo<K> {
    /// One that holds nothing.
    pub fn new() -> Self {
        Self::of(Entered)
    }
}

impl<K: Key> Default for Fifo<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl Rule for Entered {
    const NAME: &'static str = NAME;
    const HOLDING: usize = 1;
    type State = ();

    fn hit<K: Key>(&mut self, _: &mut Queues<K>, _: Slot, _: &Access<K>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::play::play;
    use crate::{Policy, Victim};

    #[test]
    fn the_queue_is_in_the_order_of_entering() {
        for (trace, victims, queue) in [
            ("*", ".", ""),
            ("a b c a b", "", "abc"),
            ("a b c a *", "a", "bc"),
            ("a b a * a", "a", "ba"),
            ("a b c -b b", "", "acb"),
            ("!x a !a", "", "a"),
        ] {
            let mut fifo = Fifo::new();
            let found = (play(&mut fifo, trace), fifo.show());
            assert_eq!(found, (victims.into(), queue.into()), "{trace}");
        }
    }

    #[test]
    fn a_held_key_keeps_its_place() {
        let mut fifo = Fifo::new();
        play(&mut fifo, "a b c");
        let victim = fifo.evict(&mut |key| *key == 'a');
        assert_eq!(victim, Some(Victim { key: 'b', size: 1 }));
        assert_eq!(fifo.show(), "ac");
    }
}
