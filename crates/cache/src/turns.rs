//! One at a time for each key, and nobody waits for another key.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock;

/// Keys that somebody has. An fsync lies within a turn: fixed stripes would let it block strangers.
pub(crate) struct Turns<K> {
    taken: Mutex<HashSet<K>>,
    given: Condvar,
}

/// Held for as long as the turn lasts.
pub(crate) struct Turn<'a, K: Eq + Hash> {
    turns: &'a Turns<K>,
    key: K,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self {
            taken: Mutex::default(),
            given: Condvar::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> Turns<K> {
    /// Blocks until nobody has `key`.
    pub(crate) fn take(&self, key: K) -> Turn<'_, K> {
        let taken = self
            .given
            .wait_while(lock(&self.taken), |taken| taken.contains(&key));
        taken.unwrap_or_else(PoisonError::into_inner).insert(key);
        Turn { turns: self, key }
    }
}

impl<K: Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        lock(&self.turns.taken).remove(&self.key);
        self.turns.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Turns;

    #[test]
    fn one_key_is_one_at_a_time_and_others_do_not_wait() {
        let (turns, inside) = (Turns::default(), AtomicU32::new(0));
        let held = turns.take(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = turns.take(1);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        drop(held);
        assert!(turns.taken.lock().unwrap().is_empty());
        drop(turns.take(0));
    }
}
