//! Policy `arc`: two recency queues, for keys that were requested once and for keys that were
//! requested again. Hits on ghosts (evicted keys that the policy remembers) move the share of each
//! queue.
//!
//! Megiddo and Modha, "ARC: A self-tuning, low overhead replacement cache", FAST '03, section 3
//! (figure 4). Where the paper counts pages, this policy counts bytes: a ghost hit moves the target
//! by the size of the object, and not by one page.

use pierhead_eviction::building_blocks::queue_policy::{QueuePolicy, QueueRule};
use pierhead_eviction::building_blocks::queues::Queues;
use pierhead_eviction::building_blocks::table::Slot;
use pierhead_eviction::{Access, Key, StateError, Victim};

pub(crate) const NAME: &str = "arc";

/// The list T1 of the paper: the queue of keys that were requested once.
const T1: usize = 0;
/// The list T2 of the paper: the queue of keys that were requested again.
const T2: usize = 1;
/// The list B1 of the paper: the queue of ghosts (remembered keys) of [`T1`].
const B1: usize = 2;
/// The list B2 of the paper: the queue of ghosts (remembered keys) of [`T2`].
const B2: usize = 3;
/// The queue of ghosts that were requested and may enter the cache soon.
const RETURNING: usize = 4;

/// Parameters of [`Arc`].
#[derive(Clone, Debug, PartialEq)]
pub struct ArcParameters {
    /// The unit by which a ghost hit moves the target. This unit is multiplied by the ratio of the
    /// sizes of the two queues of ghosts.
    pub step: Step,
    /// Whether ghosts are bounded: the bytes of each queue of ghosts by the capacity, and the
    /// number of all ghosts by the number of resident keys. The default is true. libcachesim
    /// removes at most one ghost for each new ghost, which bounds neither bytes nor number if sizes
    /// differ.
    pub bounded: bool,
}

/// The unit by which a ghost hit moves the target. This unit is multiplied by the ratio of the
/// sizes of the two queues of ghosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// The unit is the size of the object.
    #[default]
    Size,
    /// The unit is one byte, as in libcachesim. If objects are large, the target stays near 0, and
    /// keys that were requested once are evicted first.
    Byte,
}

impl Default for ArcParameters {
    fn default() -> Self {
        Self {
            step: Step::Size,
            bounded: true,
        }
    }
}

impl ArcParameters {
    /// Returns the parameters of libcachesim 0.3.5.
    pub fn libcachesim() -> Self {
        Self {
            step: Step::Byte,
            bounded: false,
        }
    }
}

/// The policy: two recency queues with ghosts. All operations are O(1).
pub type Arc<K> = QueuePolicy<K, Adaptive>;

/// The rule of [`Arc`].
#[derive(Clone, Debug)]
pub struct Adaptive {
    parameters: ArcParameters,
    capacity: u64,
    /// Target size in bytes of [`T1`]. The paper calls this size p.
    target: f64,
    last: Miss,
}

/// The last miss, which the policy stores because the algorithm of the paper makes room for a
/// specific page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Miss {
    ghost: Option<usize>,
    size: u64,
}

/// Creates an empty policy for a cache of `capacity` bytes.
pub fn new<K: Key>(capacity: u64, parameters: ArcParameters) -> Arc<K> {
    QueuePolicy::of(Adaptive {
        parameters,
        capacity,
        target: 0.0,
        last: Miss::default(),
    })
}

impl Adaptive {
    /// Evicts the front key of a queue of resident keys. The evicted key becomes a ghost.
    fn demote<K: Key>(
        queues: &mut Queues<K>,
        queue: usize,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let slot = queues.first_unpinned(queue, pinned)?;
        Some(queues.evict_to_ghosts(slot, queue + B1))
    }

    /// The procedure REPLACE of the paper's figure 4.
    fn replace<K: Key>(
        &self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let once = queues.list(T1).bytes() as f64;
        let again_returns = self.last.ghost == Some(B2);
        let over = once > self.target || once == self.target && again_returns;
        let (first, other) = match over {
            true => (T1, T2),
            false => (T2, T1),
        };
        Self::demote(queues, first, pinned).or_else(|| Self::demote(queues, other, pinned))
    }

    /// Case IV of the paper's figure 4: the requested key is unknown.
    fn make_room<K: Key>(
        &self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let bytes = |queue: usize| queues.list(queue).bytes();
        let once = bytes(T1).saturating_add(bytes(B1));
        let all = once.saturating_add(bytes(T2)).saturating_add(bytes(B2));
        if once.saturating_add(self.last.size) > self.capacity {
            if let Some(oldest) = queues.list(B1).front() {
                queues.drop(oldest);
            } else if let Some(slot) = queues.first_unpinned(T1, pinned) {
                return queues.drop(slot).map(Victim::from);
            }
        } else if all >= self.capacity.saturating_mul(2)
            && let Some(oldest) = queues.list(B2).front()
        {
            queues.drop(oldest);
        }
        self.replace(queues, pinned)
    }

    fn trim<K: Key>(&self, queues: &mut Queues<K>) {
        let first = match self.parameters.bounded {
            true => B1,
            false => RETURNING,
        };
        for ghosts in first..=RETURNING {
            queues.trim(ghosts, self.capacity);
        }
        queues.trim_together(first..RETURNING + 1, 1.0);
    }
}

impl QueueRule for Adaptive {
    const NAME: &'static str = NAME;
    const RESIDENT_QUEUES: usize = 2;
    const GHOST_QUEUES: usize = 3;
    type State = (f64, Option<usize>, u64);

    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, _: &Access<K>) {
        queues.move_to(slot, T2);
    }

    fn miss<K: Key>(&mut self, queues: &mut Queues<K>, ghost: Option<Slot>, access: &Access<K>) {
        self.last = Miss {
            ghost: None,
            size: access.size,
        };
        let Some(slot) = ghost else {
            return;
        };
        let queue = queues.queue(slot);
        self.last.ghost = Some(queue);
        let bytes = |queue: usize| queues.list(queue).bytes() as f64;
        let unit = match self.parameters.step {
            Step::Size => access.size as f64,
            Step::Byte => 1.0,
        };
        let step = |own: usize, other: usize| unit * (bytes(other) / bytes(own).max(1.0)).max(1.0);
        match queue {
            B1 => self.target += step(B1, B2),
            B2 => self.target -= step(B2, B1),
            _ => return,
        }
        self.target = self.target.clamp(0.0, self.capacity as f64);
        queues.move_to(slot, RETURNING);
        self.trim(queues);
    }

    fn enter<K: Key>(&mut self, queues: &mut Queues<K>, ghost: Option<usize>, access: &Access<K>) {
        let queue = if ghost.is_some() { T2 } else { T1 };
        queues.add(queue, access.key.clone(), access.size);
    }

    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let victim = match self.last.ghost {
            Some(_) => self.replace(queues, pinned),
            None => self.make_room(queues, pinned),
        };
        self.trim(queues);
        victim
    }

    fn resize(&mut self, capacity: u64) {
        self.target = self.target.min(capacity as f64);
        self.capacity = capacity;
    }

    fn state<K: Key>(&self, _: &Queues<K>) -> Self::State {
        (self.target, self.last.ghost, self.last.size)
    }

    fn resume<K: Key>(&mut self, _: &Queues<K>, state: Self::State) -> Result<(), StateError> {
        let (target, ghost, size) = state;
        if target.is_nan() {
            return Err(StateError::Content("its target is not a number"));
        }
        self.target = target.clamp(0.0, self.capacity as f64);
        self.last = Miss { ghost, size };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::testing::play;
    use pierhead_eviction::{Diagnostics as _, PersistentState as _, Policy};

    fn new(parameters: ArcParameters) -> Arc<char> {
        super::new(10, parameters)
    }

    #[test]
    fn keys_move_as_in_figure_4() {
        for (trace, victims, queues) in [
            ("*", ".", "||||"),
            // Case I of the paper: the request is a hit.
            ("a b c b a", "", "c|ba|||"),
            // Case IV of the paper: a key that was requested once leaves first, since the target
            // begins at 0.
            ("a b c a !x *", "b", "c|a|b||"),
            ("a b a b !x *", "a", "|b||a|"),
            // Case II of the paper: the key enters the queue of keys that were requested again.
            ("a b * a", "a", "b|a|||"),
            ("a b * !a", "a", "b||||a"),
            // The target is 5, so a key that was requested again leaves while T1 has only 4
            // bytes.
            ("a5 b4 c c !x * !a5 *", "ac", "b|||c|a"),
            // Case III of the paper: the target falls to the 4 bytes of T1, which is enough for
            // the ghost that was hit.
            ("a5 b4 c c !x * !a5 * d d !c *", "acb", "|d|b||ac"),
            // Case IV A of the paper without ghosts: no ghost is made.
            ("a9 !b2 *", "a", "||||"),
            // Case IV A of the paper with a ghost: the oldest ghost is removed.
            ("a5 * b5 !c *", "ab", "||b||"),
            ("a b -a !x *", "b", "||b||"),
        ] {
            let mut arc = new(ArcParameters::default());
            let found = (play(&mut arc, trace), arc.show());
            assert_eq!(found, (victims.into(), queues.into()), "{trace}");
        }
    }

    #[test]
    fn a_step_of_one_byte_hardly_moves_the_target() {
        let mut arc = new(ArcParameters::libcachesim());
        assert_eq!(play(&mut arc, "a5 b4 c c !x * !a5 *"), "ab");
    }

    #[test]
    fn a_pinned_key_keeps_its_position_and_all_pinned_gives_no_victim() {
        let mut arc = new(ArcParameters::default());
        play(&mut arc, "a b c d c d");
        assert_eq!(arc.evict(&mut |_| true), None);
        let mut next = |free: &str| {
            let victim = arc.evict(&mut |key| !free.contains(*key));
            (victim.map(|victim| victim.key), arc.show())
        };
        assert_eq!(next("bcd"), (Some('b'), "a|cd|b||".into()));
        assert_eq!(next("d"), (Some('d'), "a|c|b|d|".into()));
    }

    #[test]
    fn ghosts_are_bounded_by_their_bytes_and_by_the_number_of_resident_keys() {
        let mut arc = new(ArcParameters::default());
        assert_eq!(play(&mut arc, "a6 a b6 b !x * *"), "ab");
        assert_eq!(arc.show(), "|||b|");
        let mut many = super::new(1 << 30, ArcParameters::default());
        for key in 0..1000_u32 {
            many.insert(&Access::new(key, 1, 0));
            many.evict(&mut |_| false);
        }
        assert_eq!(many.ghosts(), 256);
        for key in 1000..2000_u32 {
            many.insert(&Access::new(key, 1, 0));
            many.hit(&Access::new(key, 1, 0));
            many.evict(&mut |_| false);
            many.miss(&Access::new(key - 100, 1, 0));
        }
        assert_eq!(many.ghosts(), 256, "all kinds together");
        let mut unbounded = super::new(1 << 30, ArcParameters::libcachesim());
        for key in 0..1000_u32 {
            let access = Access::new(key, 1, 0);
            unbounded.insert(&access);
            unbounded.evict(&mut |_| false);
            unbounded.miss(&access);
        }
        assert_eq!(unbounded.ghosts(), 256, "requested ghosts are bounded");
    }

    #[test]
    fn a_target_of_nan_is_refused() {
        let queues: Vec<Vec<(char, u64, u8)>> = vec![Vec::new(); 5];
        let state = |target: f64| {
            pierhead_eviction::building_blocks::saved::seal(
                NAME,
                &(&queues, (target, None::<usize>, 0_u64)),
            )
        };
        assert_eq!(new(ArcParameters::default()).restore(&state(3.0)), Ok(()));
        assert!(
            new(ArcParameters::default())
                .restore(&state(f64::NAN))
                .is_err()
        );
    }
}
