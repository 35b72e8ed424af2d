//! S3-FIFO: a small queue for what is new, a main one for what was asked for again, and ghosts of what
//! left the small one.
//!
//! Yang et al., "FIFO queues are all you need for cache eviction", SOSP '23, section 4 (Algorithm 1), with
//! the sizes in bytes, and with its authors' later change that until the first eviction the main queue
//! takes what the small one has no room for.

use crate::building_blocks::parameter::{ParameterError, check, share};
use crate::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use crate::building_blocks::queues::Queues;
use crate::building_blocks::table::Slot;
use crate::{Access, Key, StateError, Victim};

pub(crate) const NAME: &str = "s3-fifo";

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;
/// Ghosts that were asked for and may enter soon: their bytes are no longer the ghosts'.
const RETURNING: usize = 3;

/// Requests that are told apart: section 4.1 keeps two bits for each key.
const MOST: u8 = 3;

/// What can be chosen about [`S3Fifo`].
#[derive(Clone, Debug, PartialEq)]
pub struct S3FifoParameters {
    /// The part of the bytes that the small queue gets, from 0 to below 1. Default 0.1 (section 4.2).
    pub small: f64,
    /// How many bytes the ghosts stood for, as a part of the bytes held, from 0 to 10. Default 0.9: as
    /// many as the main queue (section 4.2).
    pub ghosts: f64,
    /// How many ghosts there may be for each key that is held, from 0. Default 1: where small objects leave
    /// a cache of large ones, their bytes alone would let them be many more.
    pub ghosts_per_key: f64,
    /// How often a key of the small queue has to be asked for again to get into the main one, from 1 to 3.
    /// Default 2.
    pub threshold: u8,
    /// Whether what is at least as large as the small queue goes past the cache. Default no: a layer that
    /// never gets in is a miss each time. libcachesim does it.
    pub refuse_large: bool,
}

impl Default for S3FifoParameters {
    fn default() -> Self {
        Self {
            small: 0.1,
            ghosts: 0.9,
            ghosts_per_key: 1.0,
            threshold: 2,
            refuse_large: false,
        }
    }
}

impl S3FifoParameters {
    /// The rules of libcachesim 0.3.5.
    pub fn libcachesim() -> Self {
        Self {
            refuse_large: true,
            ghosts_per_key: f64::INFINITY,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), ParameterError> {
        check(NAME, "small", self.small, &(0.0..1.0), "from 0 to below 1")?;
        check(NAME, "ghosts", self.ghosts, &(0.0..=10.0), "from 0 to 10")?;
        check(
            NAME,
            "ghosts_per_key",
            self.ghosts_per_key,
            &(0.0..),
            "from 0",
        )?;
        check(
            NAME,
            "threshold",
            self.threshold,
            &(1..=MOST),
            "from 1 to 3",
        )
    }
}

/// A small queue, a main queue, and ghosts. Eviction is O(1) amortised: a key moves on for each time that
/// it was asked for, and for no other reason.
pub type S3Fifo<K> = QueuePolicy<K, SmallAndMain>;

/// The rule of [`S3Fifo`].
#[derive(Clone, Debug)]
pub struct SmallAndMain {
    parameters: S3FifoParameters,
    capacity: u64,
    evicted: bool,
}

impl<K: Key> S3Fifo<K> {
    /// One that holds nothing, for a cache of `capacity` bytes.
    ///
    /// # Errors
    /// When a parameter is out of its range.
    pub fn new(capacity: u64, parameters: S3FifoParameters) -> Result<Self, ParameterError> {
        parameters.check()?;
        Ok(Self::with(capacity, parameters))
    }

    /// As [`S3Fifo::new`], with parameters that are within their ranges.
    pub(crate) fn with(capacity: u64, parameters: S3FifoParameters) -> Self {
        Self::of(SmallAndMain {
            parameters,
            capacity,
            evicted: false,
        })
    }
}

impl SmallAndMain {
    fn small(&self) -> u64 {
        share(self.capacity, self.parameters.small)
    }

    fn trim<K: Key>(&self, queues: &mut Queues<K>, ghosts: usize) {
        let bytes = share(self.capacity, self.parameters.ghosts);
        queues.trim(ghosts, bytes);
        queues.trim_together(GHOST..RETURNING + 1, self.parameters.ghosts_per_key);
    }

    fn evict_small<K: Key>(
        &self,
        queues: &mut Queues<K>,
        held: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let mut next = queues.list(SMALL).front();
        while let Some(slot) = next {
            next = queues.after(slot);
            if held(&queues.get(slot).key) {
                continue;
            }
            if *queues.frequency(slot) < self.parameters.threshold {
                let victim = queues.bury(slot, GHOST);
                self.trim(queues, GHOST);
                return Some(victim);
            }
            queues.shift(slot, MAIN);
            *queues.frequency(slot) = 0;
        }
        None
    }

    fn evict_main<K: Key>(
        queues: &mut Queues<K>,
        held: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let mut next = queues.list(MAIN).front();
        while let Some(slot) = next {
            next = queues.after(slot);
            if held(&queues.get(slot).key) {
                continue;
            }
            let frequency = queues.frequency(slot);
            if *frequency == 0 {
                return queues.drop(slot).map(Victim::from);
            }
            *frequency -= 1;
            queues.shift(slot, MAIN);
            // What was last is so still, and those before it were held.
            next = next.or(Some(slot));
        }
        None
    }
}

impl QueueRule for SmallAndMain {
    const NAME: &'static str = NAME;
    const HOLDING: usize = 2;
    const GHOSTS: usize = 2;
    const MOST: u8 = MOST;
    /// Whether something was evicted already.
    type State = bool;

    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, _: &Access<K>) {
        let frequency = queues.frequency(slot);
        *frequency = (*frequency + 1).min(MOST);
    }

    fn miss<K: Key>(&mut self, queues: &mut Queues<K>, ghost: Option<Slot>, _: &Access<K>) {
        if let Some(slot) = ghost {
            queues.shift(slot, RETURNING);
            self.trim(queues, RETURNING);
        }
    }

    fn refuses<K: Key>(&self, _: &Queues<K>, access: &Access<K>) -> bool {
        self.parameters.refuse_large && access.size >= self.small()
    }

    fn enter<K: Key>(&mut self, queues: &mut Queues<K>, ghost: Option<usize>, access: &Access<K>) {
        let small_is_full = queues.list(SMALL).bytes() >= self.small();
        let main = ghost.is_some() || (!self.evicted && small_is_full);
        let queue = if main { MAIN } else { SMALL };
        queues.add(queue, access.key.clone(), access.size);
    }

    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        held: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        self.evicted = true;
        let main_is_over = queues.list(MAIN).bytes() > self.capacity - self.small();
        if main_is_over && let Some(victim) = Self::evict_main(queues, held) {
            return Some(victim);
        }
        self.evict_small(queues, held)
            .or_else(|| Self::evict_main(queues, held))
    }

    fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    fn state<K: Key>(&self, _: &Queues<K>) -> bool {
        self.evicted
    }

    fn resume<K: Key>(&mut self, _: &Queues<K>, evicted: bool) -> Result<(), StateError> {
        self.evicted = evicted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::testing::play;
    use crate::{Diagnostics as _, PersistentState as _, Policy};

    /// A small queue of 3 bytes, a main one of 7, ghosts of 9.
    fn new(parameters: S3FifoParameters) -> S3Fifo<char> {
        let parameters = S3FifoParameters {
            small: 0.3,
            ..parameters
        };
        S3Fifo::new(10, parameters).expect("within their ranges")
    }

    #[test]
    fn keys_move_from_small_to_main_to_ghosts() {
        for (trace, victims, queues) in [
            ("*", ".", "|||"),
            ("a b c a a a a a", "", "a3bc|||"),
            // Until the first eviction, main takes what small has no room for.
            ("a b c d e", "", "abc|de||"),
            ("a b c d e * f", "a", "bcf|de|a|"),
            // Once more is not often enough, twice is.
            ("a b c a b b *", "a", "b2c||a|"),
            ("a b c a b b * *", "ac", "|b|ac|"),
            // A ghost enters main; asked for without entering, it waits.
            ("a b * a", "a", "b|a||"),
            ("a b c * * !a", "ab", "c||b|a"),
            // Main is over its bytes and gives one back that was not asked for lately.
            ("a3 b4 c4 b b *", "c", "a|b1||"),
            // Small is empty.
            ("a b * * a b * ", "aba", "|b||"),
            ("a b * * a b a * *", "abba", "|||"),
            // Removed by its owner: no ghost.
            ("a b -a *", "b", "||b|"),
        ] {
            let mut s3 = new(S3FifoParameters::default());
            let found = (play(&mut s3, trace), s3.show());
            assert_eq!(found, (victims.into(), queues.into()), "{trace}");
        }
    }

    #[test]
    fn ghosts_are_bounded_by_their_bytes_and_by_what_is_held() {
        let mut s3 = new(S3FifoParameters::default());
        play(&mut s3, "a5 * b4 * c1 *");
        assert_eq!(s3.show(), "||bc|");
        let mut none = new(S3FifoParameters {
            ghosts: 0.0,
            ..S3FifoParameters::default()
        });
        play(&mut none, "a5 * b4 * c1 *");
        assert_eq!(none.show(), "|||");
        let mut many = S3Fifo::new(1 << 30, S3FifoParameters::default()).expect("the defaults are");
        for key in 0..1000_u32 {
            many.insert(&Access::new(key, 1, 0));
            many.evict(&mut |_| false);
        }
        assert_eq!(many.ghosts(), 256);
        for key in 1000..1500_u32 {
            many.insert(&Access::new(key, 1, 0));
            many.evict(&mut |_| false);
            many.miss(&Access::new(key, 1, 0));
        }
        assert_eq!(many.ghosts(), 256, "those that were asked for among them");
    }

    #[test]
    fn large_objects_are_refused_when_that_is_asked_for() {
        for (refuse_large, size, refused) in [(false, 9, false), (true, 2, false), (true, 3, true)]
        {
            let s3 = new(S3FifoParameters {
                refuse_large,
                ..S3FifoParameters::default()
            });
            assert_eq!(s3.refuses(&Access::new('a', size, 0)), refused, "{size}");
        }
    }

    #[test]
    fn held_keys_keep_place_and_frequency_and_all_held_is_an_end() {
        let mut s3 = new(S3FifoParameters::default());
        play(&mut s3, "a b c d e * f b b d e e e e");
        assert_eq!(s3.show(), "b2cf|d1e3|a|");
        assert_eq!(s3.evict(&mut |_| true), None);
        assert_eq!(s3.show(), "b2cf|d1e3|a|");
        let mut next = |free: &str| {
            let victim = s3.evict(&mut |key| !free.contains(*key));
            (victim.map(|victim| victim.key), s3.show())
        };
        assert_eq!(next("cf"), (Some('c'), "b2f|d1e3|ac|".into()));
        assert_eq!(next("e"), (Some('e'), "b2f|d1|ac|".into()));
        assert_eq!(next("be"), (Some('b'), "f|d1|ac|".into()));
    }

    #[test]
    fn a_key_that_was_asked_for_more_often_than_is_counted_is_refused() {
        let state = |frequency: u8| {
            let mut queues: Vec<Vec<(char, u64, u8)>> = vec![Vec::new(); 4];
            queues[SMALL].push(('a', 1, frequency));
            crate::building_blocks::saved::seal(NAME, &(queues, true))
        };
        let mut s3 = new(S3FifoParameters::default());
        assert_eq!(s3.restore(&state(MOST)), Ok(()));
        assert!(s3.restore(&state(MOST + 1)).is_err());
        assert!(s3.restore(&state(u8::MAX)).is_err());
        assert_eq!(s3.show(), "a3|||");
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let good = S3FifoParameters::default();
        for (parameters, name) in [
            (
                S3FifoParameters {
                    small: 1.0,
                    ..good.clone()
                },
                "small",
            ),
            (
                S3FifoParameters {
                    small: f64::NAN,
                    ..good.clone()
                },
                "small",
            ),
            (
                S3FifoParameters {
                    ghosts: -0.1,
                    ..good.clone()
                },
                "ghosts",
            ),
            (
                S3FifoParameters {
                    ghosts_per_key: -1.0,
                    ..good.clone()
                },
                "ghosts_per_key",
            ),
            (
                S3FifoParameters {
                    ghosts_per_key: f64::NAN,
                    ..good.clone()
                },
                "ghosts_per_key",
            ),
            (
                S3FifoParameters {
                    threshold: 0,
                    ..good.clone()
                },
                "threshold",
            ),
            (
                S3FifoParameters {
                    threshold: 4,
                    ..good.clone()
                },
                "threshold",
            ),
        ] {
            let error = S3Fifo::<char>::new(10, parameters).map(|_| ());
            assert_eq!(error.map_err(|error| error.parameter), Err(name));
        }
    }
}
