//! `KeyedLock`: a lock for each key. Each key has at most one holder, and a thread waits only for
//! the holder of its own key.

use std::collections::HashSet;
use std::hash::Hash;

use parking_lot::{Condvar, Mutex};

/// A lock for each value of `K`.
///
/// The lock uses memory only for the keys that are held. A fixed number of locks, each shared by
/// many keys, would need no memory per key. But then the disk write of one holder would block
/// holders of other keys.
#[derive(Debug)]
pub struct KeyedLock<K> {
    state: Mutex<State<K>>,
    released: Condvar,
    max_holders: usize,
}

#[derive(Debug)]
struct State<K> {
    held: HashSet<K>,
    /// Number of threads that wait in [`KeyedLock::lock`].
    waiting: usize,
}

/// Holds the lock of one key until the guard is dropped.
#[derive(Debug)]
#[must_use = "dropping it releases the key"]
pub struct KeyGuard<'a, K: Eq + Hash> {
    lock: &'a KeyedLock<K>,
    key: K,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self::with_max_holders(usize::MAX)
    }
}

impl<K> KeyedLock<K> {
    /// Creates a lock whose holders can hold at most `max_holders` different keys at the same time.
    /// If `max_holders` is 0, `lock` never returns.
    pub fn with_max_holders(max_holders: usize) -> Self {
        Self {
            state: Mutex::new(State {
                held: HashSet::new(),
                waiting: 0,
            }),
            released: Condvar::new(),
            max_holders,
        }
    }

    /// Returns the number of threads that wait for a key. With this number, a test waits until
    /// another thread has reached a lock.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl<K: Clone + Eq + Hash> KeyedLock<K> {
    /// Blocks until `key` is free and fewer keys than the maximum are held. If a thread locks a key
    /// that it already holds, it waits forever.
    pub fn lock(&self, key: K) -> KeyGuard<'_, K> {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.released.wait_while(&mut state, |state| {
            state.held.contains(&key) || state.held.len() >= self.max_holders
        });
        state.waiting -= 1;
        state.held.insert(key.clone());
        KeyGuard { lock: self, key }
    }
}

impl<K: Eq + Hash> Drop for KeyGuard<'_, K> {
    fn drop(&mut self) {
        self.lock.state.lock().held.remove(&self.key);
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::KeyedLock;

    #[test]
    fn a_key_has_one_holder_and_other_keys_are_not_blocked() {
        let (lock, inside) = (KeyedLock::default(), AtomicUsize::new(0));
        let other = lock.lock(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _guard = lock.lock(1);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        drop(other);
        assert!(lock.state.lock().held.is_empty());
        drop(lock.lock(0));
    }

    #[test]
    fn a_waiting_thread_is_counted() {
        let lock = KeyedLock::default();
        let guard = lock.lock(1);
        assert_eq!(lock.waiting(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock(1)));
            let start = std::time::Instant::now();
            while lock.waiting() == 0 {
                assert!(start.elapsed() < std::time::Duration::from_secs(60));
                std::thread::yield_now();
            }
            drop(guard);
        });
        assert_eq!(lock.waiting(), 0);
    }

    #[test]
    fn different_keys_have_at_most_the_maximum_of_holders() {
        let (lock, inside) = (KeyedLock::with_max_holders(2), AtomicUsize::new(0));
        let peak = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for key in 0..6 {
                let (lock, inside, peak) = (&lock, &inside, &peak);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let _guard = lock.lock(key);
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        peak.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(peak.into_inner(), 2);
    }
}
