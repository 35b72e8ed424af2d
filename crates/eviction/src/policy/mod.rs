//! The trait of eviction policies, the traits that it consists of, and the policies that the daemon
//! offers.

pub mod cherry;
pub mod gdsf;
pub mod learned;
pub mod lru;
pub mod s3_fifo;
pub mod size_split;

use crate::{Access, PersistentState};

/// A key that the policy evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim<K> {
    /// The evicted key. The owner of the key's bytes deletes them.
    pub key: K,
    /// Number of bytes that the deletion frees, which is the size with which the key entered.
    pub size: u64,
}

/// Ranks the keys of a cache and names the next key to evict.
///
/// Every implementation must pass the conformance suite of the crate `testkit`, which checks these
/// bounds:
///
/// 1. A call takes O(1) or O(log n) time for n keys.
/// 2. A key costs at most 64 bytes of memory in addition to the key itself. The policy `learned` is
///    exempt from this bound.
/// 3. A policy remembers at most as many evicted keys (ghosts) as the cache holds keys, or 256
///    ghosts if the cache holds fewer keys. A ghost costs at most as much memory as a key of the
///    cache.
pub trait Policy<K>: Contents<K> + PersistentState + Diagnostics + Send {
    /// Counts one request. Returns `true` if the cache holds the key. If the cache does not hold
    /// the key, changes nothing. The cache calls `hit` once for each request.
    fn hit(&mut self, access: &Access<K>) -> bool;

    /// Counts the request for a key that the cache does not hold, whether or not the key enters.
    /// The cache calls `miss` once, after [`Policy::hit`] returned `false` and before an eviction.
    fn miss(&mut self, _access: &Access<K>) {}

    /// Whether this key must not enter, because the keys that the cache holds are worth more.
    fn refuses(&self, _access: &Access<K>) -> bool {
        false
    }

    /// Adds a key that entered the cache. If the cache already holds the key, nothing changes.
    fn insert(&mut self, access: &Access<K>);

    /// Removes a key that left the cache without an eviction. The key does not become a ghost. A
    /// key that the cache does not hold is ignored.
    fn remove(&mut self, key: &K);

    /// Removes the next victim and returns it. Skips each key for which `pinned` returns `true`,
    /// and does not change such a key. Returns `None` if no key is left that is not pinned.
    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>>;

    /// Returns the part of this policy that adapts outside of requests. `None` if the policy has no
    /// such part.
    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        None
    }
}

/// The keys that the cache holds, as its policy knows them.
pub trait Contents<K> {
    /// Whether the cache holds the key. The call does not count as a request.
    fn contains(&self, key: &K) -> bool;

    /// Returns the number of keys that the cache holds.
    fn len(&self) -> usize;

    /// Whether the cache holds no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sum of the sizes of all keys, in bytes. For a sum above [`u64::MAX`], returns
    /// [`u64::MAX`]. The result is exact again once enough keys have left.
    fn bytes(&self) -> u64;

    /// Calls `visit` with each key and its size. The next victims come first, as far as the policy
    /// has an order.
    fn visit(&self, visit: &mut dyn FnMut(&K, u64));
}

/// Implements the methods [`Contents::contains`], [`Contents::len`] and [`Contents::bytes`] of a
/// policy by its field `$field`, such as a table, which holds exactly the keys of the cache. `$key`
/// is the type of the keys.
#[macro_export]
macro_rules! contents_by_field {
    ($field:tt, $key:ty) => {
        fn contains(&self, key: &$key) -> bool {
            self.$field.contains(key)
        }

        fn len(&self) -> usize {
            self.$field.len()
        }

        fn bytes(&self) -> u64 {
            self.$field.bytes()
        }
    };
}
pub use contents_by_field;

/// The changes of a policy that are not caused by requests.
pub trait Adaptation {
    /// Adapts to a new capacity of the cache, in bytes. A queue whose size is a share of the
    /// capacity grows or shrinks when keys enter and leave.
    fn resize(&mut self, _capacity: u64) {}

    /// Does one step of deferred work, such as the training of a model, in well under a
    /// millisecond. Returns `true` if more work is left.
    ///
    /// The number of requests so far bounds the total work. The cache calls `train` between
    /// requests, and a simulated cache calls it after each request. If a cache never calls `train`,
    /// the decisions of the policy stay valid, but the policy learns nothing.
    fn train(&mut self) -> bool {
        false
    }
}

/// Values that a policy shows to operators.
pub trait Diagnostics {
    /// Returns the memory that the policy uses, in bytes, without the heap memory of the keys.
    fn memory(&self) -> usize;

    /// Returns the number of ghosts: evicted keys that the policy remembers as a key or as a
    /// fingerprint.
    fn ghosts(&self) -> usize {
        0
    }

    /// Calls `show` with the name and the value of each gauge of this policy, such as the share of
    /// a queue.
    fn gauges(&self, _show: &mut dyn FnMut(&'static str, f64)) {}
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

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        (**self).evict(pinned)
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        (**self).adaptation()
    }
}

impl<K, P: Contents<K> + ?Sized> Contents<K> for Box<P> {
    fn contains(&self, key: &K) -> bool {
        (**self).contains(key)
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn bytes(&self) -> u64 {
        (**self).bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        (**self).visit(visit);
    }
}

impl<P: Diagnostics + ?Sized> Diagnostics for Box<P> {
    fn memory(&self) -> usize {
        (**self).memory()
    }

    fn ghosts(&self) -> usize {
        (**self).ghosts()
    }

    fn gauges(&self, show: &mut dyn FnMut(&'static str, f64)) {
        (**self).gauges(show);
    }
}
