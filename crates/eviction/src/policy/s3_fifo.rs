//! Policy `s3-fifo`: a small queue for new keys, a main queue for keys that were requested again,
//! and ghosts (remembered keys without content) of the keys that were evicted from the small queue.
//!
//! Yang et al., "FIFO queues are all you need for cache eviction", SOSP '23, section 4 (Algorithm
//! 1), with sizes in bytes. Before the first eviction, keys for which the small queue has no room
//! enter the main queue. The authors made this change after the paper.

use crate::building_blocks::parameter::{ParameterError, check, share};
use crate::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use crate::building_blocks::queues::Queues;
use crate::building_blocks::table::Slot;
use crate::{Access, Key, StateError, Victim};

pub(crate) const NAME: &str = "s3-fifo";

const SMALL_QUEUE: usize = 0;
const MAIN_QUEUE: usize = 1;
const GHOST_QUEUE: usize = 2;
/// The queue of ghosts that were requested and may enter soon. The bytes of these ghosts are not
/// counted in [`GHOST_QUEUE`].
const RETURNING_QUEUE: usize = 3;

/// Maximum frequency of a key. In section 4.1 of the paper, a frequency has two bits.
const MAX_FREQUENCY: u8 = 3;

/// The parameters of the policy [`S3Fifo`].
#[derive(Clone, Debug, PartialEq)]
pub struct S3FifoParameters {
    /// The share of the small queue in the capacity, from 0 to below 1. The default is 0.1 (section
    /// 4.2 of the paper).
    pub small: f64,
    /// The sum of the sizes of all ghosts, as a share of the capacity, from 0 to 10. The default is
    /// 0.9, which is the share of the main queue (section 4.2 of the paper).
    pub ghosts: f64,
    /// Maximum number of ghosts per resident key, at least 0. The default is 1. Without this bound,
    /// small objects that leave a cache of large objects would make many more ghosts.
    pub ghosts_per_key: f64,
    /// Number of requests after which a key moves from the small to the main queue, from 1 to 3.
    /// The default is 2.
    pub threshold: u8,
    /// Whether the policy refuses a key that is at least as large as the small queue. The default
    /// is `false`, because each request for a refused layer is a miss. libcachesim refuses such
    /// keys.
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
    /// Returns the parameters of libcachesim 0.3.5.
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
            &(1..=MAX_FREQUENCY),
            "from 1 to 3",
        )
    }
}

/// The policy: a small queue, a main queue, and ghosts. An eviction takes O(1) time, amortised,
/// because a key moves at most once per request.
pub type S3Fifo<K> = QueuePolicy<K, SmallAndMain>;

/// The rule of the policy [`S3Fifo`], which moves keys between the queues.
#[derive(Clone, Debug)]
pub struct SmallAndMain {
    parameters: S3FifoParameters,
    capacity: u64,
    evicted: bool,
}

impl<K: Key> S3Fifo<K> {
    /// Creates an empty policy for a cache of `capacity` bytes.
    ///
    /// # Errors
    /// A parameter of the policy is out of its range.
    pub fn new(capacity: u64, parameters: S3FifoParameters) -> Result<Self, ParameterError> {
        parameters.check()?;
        Ok(Self::with(capacity, parameters))
    }

    /// Creates a policy like [`S3Fifo::new`]. The parameters must be in their ranges.
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
        queues.trim_together(
            GHOST_QUEUE..RETURNING_QUEUE + 1,
            self.parameters.ghosts_per_key,
        );
    }

    fn evict_small<K: Key>(
        &self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let mut next = queues.list(SMALL_QUEUE).front();
        while let Some(slot) = next {
            next = queues.after(slot);
            if pinned(&queues.get(slot).key) {
                continue;
            }
            if *queues.frequency(slot) < self.parameters.threshold {
                let victim = queues.evict_to_ghosts(slot, GHOST_QUEUE);
                self.trim(queues, GHOST_QUEUE);
                return Some(victim);
            }
            queues.move_to(slot, MAIN_QUEUE);
            *queues.frequency(slot) = 0;
        }
        None
    }

    fn evict_main<K: Key>(
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let mut next = queues.list(MAIN_QUEUE).front();
        while let Some(slot) = next {
            next = queues.after(slot);
            if pinned(&queues.get(slot).key) {
                continue;
            }
            let frequency = queues.frequency(slot);
            if *frequency == 0 {
                return queues.drop(slot).map(Victim::from);
            }
            *frequency -= 1;
            queues.move_to(slot, MAIN_QUEUE);
            // The last key of the queue stays last, because all keys before it are pinned.
            next = next.or(Some(slot));
        }
        None
    }
}

impl QueueRule for SmallAndMain {
    const NAME: &'static str = NAME;
    const RESIDENT_QUEUES: usize = 2;
    const GHOST_QUEUES: usize = 2;
    const MAX_FREQUENCY: u8 = MAX_FREQUENCY;
    /// Whether the policy has evicted a key before.
    type State = bool;

    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, _: &Access<K>) {
        let frequency = queues.frequency(slot);
        *frequency = (*frequency + 1).min(MAX_FREQUENCY);
    }

    fn miss<K: Key>(&mut self, queues: &mut Queues<K>, ghost: Option<Slot>, _: &Access<K>) {
        if let Some(slot) = ghost {
            queues.move_to(slot, RETURNING_QUEUE);
            self.trim(queues, RETURNING_QUEUE);
        }
    }

    fn refuses<K: Key>(&self, _: &Queues<K>, access: &Access<K>) -> bool {
        self.parameters.refuse_large && access.size >= self.small()
    }

    fn enter<K: Key>(&mut self, queues: &mut Queues<K>, ghost: Option<usize>, access: &Access<K>) {
        let small_is_full = queues.list(SMALL_QUEUE).bytes() >= self.small();
        let main = ghost.is_some() || (!self.evicted && small_is_full);
        let queue = if main { MAIN_QUEUE } else { SMALL_QUEUE };
        queues.add(queue, access.key.clone(), access.size);
    }

    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        self.evicted = true;
        let main_is_over = queues.list(MAIN_QUEUE).bytes() > self.capacity - self.small();
        if main_is_over && let Some(victim) = Self::evict_main(queues, pinned) {
            return Some(victim);
        }
        self.evict_small(queues, pinned)
            .or_else(|| Self::evict_main(queues, pinned))
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

    /// Creates a policy with a small queue of 3 bytes, a main queue of 7 bytes, and ghosts of 9
    /// bytes.
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
            // Before the first eviction, the main queue takes the keys for which the small queue
            // has no room.
            ("a b c d e", "", "abc|de||"),
            ("a b c d e * f", "a", "bcf|de|a|"),
            // One more request for a key does not move the key to the main queue. Two more requests
            // move the key.
            ("a b c a b b *", "a", "b2c||a|"),
            ("a b c a b b * *", "ac", "|b|ac|"),
            // A ghost that enters again goes to the main queue. A ghost that is requested and does
            // not enter waits in the last queue.
            ("a b * a", "a", "b|a||"),
            ("a b c * * !a", "ab", "c||b|a"),
            // The main queue is larger than its share, so a key of this queue without recent
            // requests is evicted.
            ("a3 b4 c4 b b *", "c", "a|b1||"),
            // The small queue is empty, so the main queue evicts.
            ("a b * * a b * ", "aba", "|b||"),
            ("a b * * a b a * *", "abba", "|||"),
            // A key that is removed without an eviction leaves no ghost.
            ("a b -a *", "b", "||b|"),
        ] {
            let mut s3 = new(S3FifoParameters::default());
            let found = (play(&mut s3, trace), s3.show());
            assert_eq!(found, (victims.into(), queues.into()), "{trace}");
        }
    }

    #[test]
    fn ghosts_are_bounded_by_their_bytes_and_by_the_number_of_resident_keys() {
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
        assert_eq!(many.ghosts(), 256, "with the requested ghosts");
    }

    #[test]
    fn large_objects_are_refused_only_if_the_parameter_says_so() {
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
    fn pinned_keys_keep_position_and_frequency_and_all_pinned_gives_no_victim() {
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
    fn a_saved_frequency_above_the_maximum_is_refused() {
        let state = |frequency: u8| {
            let mut queues: Vec<Vec<(char, u64, u8)>> = vec![Vec::new(); 4];
            queues[SMALL_QUEUE].push(('a', 1, frequency));
            crate::building_blocks::saved::seal(NAME, &(queues, true))
        };
        let mut s3 = new(S3FifoParameters::default());
        assert_eq!(s3.restore(&state(MAX_FREQUENCY)), Ok(()));
        assert!(s3.restore(&state(MAX_FREQUENCY + 1)).is_err());
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
