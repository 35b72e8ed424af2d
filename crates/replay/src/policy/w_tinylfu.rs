//! Policy `w-tinylfu`: new keys enter a small recency window in front of a segmented main part. A
//! key that leaves the window replaces the victim of the main part only if the key was requested
//! more often than this victim.
//!
//! Einziger, Friedman and Manes, "TinyLFU: A highly efficient cache admission policy", TOS 13(4),
//! 2017, section 4.1 (figure 5), with sizes in bytes.

use serde::{Deserialize, Serialize};

use pierhead_eviction::building_blocks::parameter::{ParameterError, check, share};
use pierhead_eviction::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use pierhead_eviction::building_blocks::queues::Queues;
use pierhead_eviction::building_blocks::sketch::Sketch;
use pierhead_eviction::building_blocks::table::Slot;
use pierhead_eviction::{Access, Key, StateError, Victim};

pub(crate) const NAME: &str = "w-tinylfu";

/// The queue of the keys of the main part that were not requested since they entered the main part.
/// The victims come from this queue.
const PROBATION: usize = 0;
/// The queue of the keys of the main part that were requested since they entered the main part.
const PROTECTED: usize = 1;
const WINDOW: usize = 2;

/// Parameters of [`WTinyLfu`].
#[derive(Clone, Debug, PartialEq)]
pub struct WTinyLfuParameters {
    /// The share of the window in the capacity, from 0 to below 1. The default is 0.01 (section 4.1
    /// of the paper).
    pub window: f64,
    /// The protected share of the main part, from 0 to 1. The default is 0.8 (section 4.1 of the
    /// paper).
    pub protected: f64,
}

impl Default for WTinyLfuParameters {
    fn default() -> Self {
        Self {
            window: 0.01,
            protected: 0.8,
        }
    }
}

/// The policy: a window, a segmented main part, and a sketch of request counts of 32 KiB to 2 MiB.
/// All operations take O(1) time, amortised over the halving of the sketch.
pub type WTinyLfu<K> = QueuePolicy<K, Duel>;

/// The rule of [`WTinyLfu`].
#[derive(Debug)]
pub struct Duel {
    parameters: WTinyLfuParameters,
    capacity: u64,
    sketch: Sketch,
    /// Size of the last missed key. The cache makes room for this key.
    coming: u64,
}

/// The saved form of a [`Duel`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    sketch: Option<Sketch>,
    coming: u64,
}

/// Creates an empty policy for a cache of `capacity` bytes. `seed` is the seed for the hash
/// function of the sketch.
///
/// # Errors
/// An error if a parameter is out of its range.
pub fn new<K: Key>(
    capacity: u64,
    parameters: WTinyLfuParameters,
    seed: u64,
) -> Result<WTinyLfu<K>, ParameterError> {
    check(
        NAME,
        "window",
        parameters.window,
        &(0.0..1.0),
        "from 0 to below 1",
    )?;
    check(
        NAME,
        "protected",
        parameters.protected,
        &(0.0..=1.0),
        "from 0 to 1",
    )?;
    Ok(QueuePolicy::of(Duel {
        parameters,
        capacity,
        sketch: Sketch::new(capacity, seed),
        coming: 0,
    }))
}

impl Duel {
    fn window(&self) -> u64 {
        share(self.capacity, self.parameters.window)
    }

    fn protected(&self) -> u64 {
        share(self.capacity - self.window(), self.parameters.protected)
    }

    /// Returns the key of the main part that the policy would evict next.
    fn main_victim<K: Key>(queues: &Queues<K>, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Slot> {
        let probation = queues.first_unpinned(PROBATION, pinned);
        probation.or_else(|| queues.first_unpinned(PROTECTED, pinned))
    }
}

impl QueueRule for Duel {
    const NAME: &'static str = NAME;
    const RESIDENT_QUEUES: usize = 3;
    type State = State;

    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, access: &Access<K>) {
        self.sketch.count(&access.key);
        let queue = match queues.queue(slot) {
            WINDOW => WINDOW,
            _ => PROTECTED,
        };
        queues.move_to(slot, queue);
        while queues.list(PROTECTED).bytes() > self.protected()
            && let Some(oldest) = queues.list(PROTECTED).front()
        {
            queues.move_to(oldest, PROBATION);
        }
    }

    fn miss<K: Key>(&mut self, _: &mut Queues<K>, _: Option<Slot>, access: &Access<K>) {
        self.sketch.count(&access.key);
        self.coming = access.size;
    }

    /// Refuses a key that is too large for the window, unless it was requested more often than the
    /// main part's victim. While the cache has room, the policy refuses no key.
    fn refuses<K: Key>(&self, queues: &Queues<K>, access: &Access<K>) -> bool {
        access.size > self.window()
            && queues.bytes().saturating_add(access.size) > self.capacity
            && Self::main_victim(queues, &mut |_| false).is_some_and(|slot| {
                let victim = &queues.get(slot).key;
                self.sketch.estimate(&access.key) <= self.sketch.estimate(victim)
            })
    }

    fn enter<K: Key>(&mut self, queues: &mut Queues<K>, _: Option<usize>, access: &Access<K>) {
        queues.add(WINDOW, access.key.clone(), access.size);
        self.coming = 0;
        // The cache has already made room for the new key, so the oldest keys of the window move to
        // the main part. Otherwise, a later eviction would remove a key of the main part in favour
        // of a key of the window.
        while queues.list(WINDOW).bytes() > self.window()
            && let Some(oldest) = queues.list(WINDOW).front()
        {
            queues.move_to(oldest, PROBATION);
        }
    }

    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let candidate = queues.first_unpinned(WINDOW, pinned);
        let victim = Self::main_victim(queues, pinned);
        let overflows = queues.list(WINDOW).bytes().saturating_add(self.coming) > self.window();
        let loser = match (candidate, victim) {
            (Some(candidate), Some(victim)) if overflows => {
                let estimate = |slot| self.sketch.estimate(&queues.get(slot).key);
                if estimate(candidate) > estimate(victim) {
                    queues.move_to(candidate, PROBATION);
                    victim
                } else {
                    candidate
                }
            }
            (candidate, victim) => victim.or(candidate)?,
        };
        queues.drop(loser).map(Victim::from)
    }

    fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.sketch.resize(capacity);
    }

    fn memory(&self) -> usize {
        self.sketch.memory()
    }

    fn state<K: Key>(&self, _: &Queues<K>) -> State {
        State {
            sketch: Some(self.sketch.clone()),
            coming: self.coming,
        }
    }

    fn resume<K: Key>(&mut self, _: &Queues<K>, state: State) -> Result<(), StateError> {
        if let Some(sketch) = state.sketch {
            self.sketch.resume(sketch)?;
        }
        self.coming = state.coming;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::testing::play;
    use pierhead_eviction::{Adaptation as _, Diagnostics as _, Policy};

    /// Creates a policy with a window of 2 bytes, a protected segment of 4 bytes, and 4 bytes for
    /// the rest.
    fn new() -> WTinyLfu<char> {
        let parameters = WTinyLfuParameters {
            window: 0.2,
            protected: 0.5,
        };
        super::new(10, parameters, 1).expect("within their ranges")
    }

    #[test]
    fn the_main_part_takes_keys_that_were_requested_more_often() {
        for (trace, victims, queues) in [
            ("*", ".", "||"),
            // While the cache has room, a key that leaves the window enters the main part.
            ("a b c d", "", "ab||cd"),
            ("a b c d c", "", "ab||dc"),
            ("a b c d a", "", "b|a|cd"),
            // The protected segment is full: its oldest key moves to probation.
            ("a b c d e f g a b c d e", "", "a|bcde|fg"),
            // The two keys have equal request counts. An equal count is not enough to replace the
            // victim, so the key that leaves the window is evicted.
            ("a b c d !x *", "c", "ab||d"),
            ("a b c d c !x *", "d", "ab||c"),
            ("a b c d c d !x *", "a", "bc||d"),
            // If the new key fits into the window, no key leaves the window.
            ("a b c !x0 *", "a", "||bc"),
            ("a b * *", "ab", "||"),
            ("a b -a *", "b", "||"),
        ] {
            let mut policy = new();
            let found = (play(&mut policy, trace), policy.show());
            assert_eq!(found, (victims.into(), queues.into()), "{trace}");
        }
    }

    #[test]
    fn a_key_above_the_window_must_beat_the_victim_of_the_main_part() {
        let mut policy = new();
        let large = Access::new('x', 9, 0);
        play(&mut policy, "a1 b1 c1");
        assert!(!policy.refuses(&Access::new('y', 7, 0)), "there is room");
        let mut policy = new();
        play(&mut policy, "a3 b3 c3 !x9");
        assert!(policy.refuses(&large));
        assert!(
            !policy.refuses(&Access::new('y', 2, 0)),
            "the window decides"
        );
        play(&mut policy, "!x9");
        assert!(!policy.refuses(&large));
    }

    #[test]
    fn a_pinned_key_keeps_its_position_and_all_pinned_gives_no_victim() {
        let mut policy = new();
        play(&mut policy, "a b c d b !x");
        assert_eq!(policy.evict(&mut |_| true), None);
        let mut next = |free: &str| {
            let victim = policy.evict(&mut |key| !free.contains(*key));
            (victim.map(|victim| victim.key), policy.show())
        };
        assert_eq!(next("bd"), (Some('d'), "a|b|c".into()));
        assert_eq!(next("b"), (Some('b'), "a||c".into()));
    }

    #[test]
    fn the_sketch_follows_the_capacity() {
        let mut policy = new();
        let before = policy.memory();
        policy.resize(64 << 30);
        assert!(policy.memory() > 4 * before, "{}", policy.memory());
        policy.resize(10);
        assert_eq!(policy.memory(), before);
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for (window, protected) in [(1.0, 0.5), (-0.1, 0.5), (0.1, 1.1), (0.1, f64::NAN)] {
            let parameters = WTinyLfuParameters { window, protected };
            assert!(super::new::<char>(1, parameters, 0).is_err());
        }
    }
}
