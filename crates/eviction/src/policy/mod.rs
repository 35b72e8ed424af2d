//! What every policy promises to the owner of the bytes, and the policies that the daemon offers.

pub mod cherry;
pub mod gdsf;
pub mod learned;
pub mod lru;
pub mod s3_fifo;
pub mod size_split;

use crate::{Access, StateError};

/// A key that shall go, and the size that it entered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim<K> {
    /// What to delete.
    pub key: K,
    /// The bytes that this frees.
    pub size: u64,
}

/// Ranks keys for removal. Every implementer runs the conformance suite of `testkit`.
///
/// Calls are O(1) or O(log n) in the keys held, and at most 64 bytes beside the key are kept for each. What
/// remembers keys that left (ghosts) keeps at most as many as are held, or 256 where fewer are, and each
/// costs at most what a key costs that is held: so a policy with ghosts takes at most twice as much.
pub trait Policy<K>: Send {
    /// A key was asked for: counts it and says `true` when it is held, else says `false` and changes
    /// nothing. Called once for each request.
    fn hit(&mut self, access: &Access<K>) -> bool;

    /// A key that is not held was asked for, whether or not it will enter: for those that remember
    /// more than they hold. Called once, after [`Policy::hit`] said `false` and before room is made.
    fn miss(&mut self, _access: &Access<K>) {}

    /// Whether a key had better go past the cache, because of its size.
    fn refuses(&self, _access: &Access<K>) -> bool {
        false
    }

    /// A key entered the cache. One that is held already stays as it is. It enters also when the sizes are
    /// then more than a u64 says: [`Policy::bytes`] is [`u64::MAX`] until enough has left, and exact then.
    fn insert(&mut self, access: &Access<K>);

    /// A key left the cache for a reason of its owner's. An unknown one is ignored; a held one leaves no
    /// ghost.
    fn remove(&mut self, key: &K);

    /// Names the next victim and lets go of it. A key of which `held` says `true` (pinned, being read)
    /// is passed over and keeps what is known about it. `None` when there is no other.
    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>>;

    /// Whether a key is held; counts nothing.
    fn contains(&self, key: &K) -> bool;

    /// How many keys are held.
    fn len(&self) -> usize;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sizes of all keys held, together; [`u64::MAX`] when they are more.
    fn bytes(&self) -> u64;

    /// Shows each key held and its size, the next victims first as far as there is an order.
    fn visit(&self, visit: &mut dyn FnMut(&K, u64));

    /// The bound of the owner changed; queues that are a share of it follow as keys come and go.
    fn resize(&mut self, _capacity: u64) {}

    /// Does a little of what is put off while requests are answered, such as training a model: well
    /// under a millisecond, and no more in all than the requests so far have earned. `true` when there is
    /// more to do now. An owner calls it when it has time, off the path of requests; one that never does
    /// loses nothing but what would have been learned. A replay calls it after each request.
    fn idle(&mut self) -> bool {
        false
    }

    /// Shows what an operator may want to know of it beyond its bytes, by a fixed name each: whether a gate is
    /// open, how far a boundary has moved.
    fn figures(&self, _show: &mut dyn FnMut(&'static str, f64)) {}

    /// How many keys that left are remembered, themselves or by a fingerprint.
    fn ghosts(&self) -> usize {
        0
    }

    /// Bytes of memory that all this takes, the keys' own heap apart.
    fn memory(&self) -> usize;

    /// Everything that the ranking depends on, as bytes for [`Policy::restore`].
    fn save(&self) -> Vec<u8>;

    /// Goes on where a policy of the same kind was when it was saved; its parameters are this one's.
    ///
    /// # Errors
    /// [`StateError`] when the bytes are of another version or policy, truncated or damaged; then this
    /// policy is as it was.
    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError>;
}

impl<K, P: Policy<K> + ?Sized> Policy<K> for Box<P> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        (**self).hit(access)
    }

    fn miss(&mut self, access: &Access<K>) {
        (**self).miss(access);
    }

    fn refuses(&self, access: &Access<K>) -> bool {
        (**self).refuses(access)
    }

    fn insert(&mut self, access: &Access<K>) {
        (**self).insert(access);
    }

    fn remove(&mut self, key: &K) {
        (**self).remove(key);
    }

    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        (**self).evict(held)
    }

    fn contains(&self, key: &K) -> bool {
        (**self).contains(key)
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn bytes(&self) -> u64 {
        (**self).bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        (**self).visit(visit);
    }

    fn resize(&mut self, capacity: u64) {
        (**self).resize(capacity);
    }

    fn idle(&mut self) -> bool {
        (**self).idle()
    }

    fn figures(&self, show: &mut dyn FnMut(&'static str, f64)) {
        (**self).figures(show);
    }

    fn ghosts(&self) -> usize {
        (**self).ghosts()
    }

    fn memory(&self) -> usize {
        (**self).memory()
    }

    fn save(&self) -> Vec<u8> {
        (**self).save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        (**self).restore(saved)
    }
}
