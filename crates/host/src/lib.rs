//! Whether work that can wait should: one switch, asked between two units of work, and the processor time that is left.
//!
//! Who turns it knows why (this machine is short of something), who asks knows what may wait. Neither knows the other.
//!
//! And how clients share what there is only so much of: [`FairShare`], and what background tasks do when they panic: [`Panics`].

#![forbid(unsafe_code)]

mod fair;
mod keyed_lock;
mod panics;
mod quota;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub use fair::{ClientKey, FairShare, WaiterId};
pub use keyed_lock::{KeyGuard, KeyedLock};
pub use panics::{Panics, Watch};
pub use quota::{Allowance, Quota, Reading, thread_time};

/// A handle; clones share the switch. By default nothing ever rests.
#[derive(Clone, Debug, Default)]
pub struct Rest(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_due: AtomicBool,
    is_memory_short: AtomicBool,
    /// Guards nothing but the wait: whoever turns the switch holds it, so that no wake is lost.
    turning: Mutex<()>,
    turned: Condvar,
    resting: AtomicUsize,
    rests: AtomicU64,
    quota: Option<Quota>,
    panics: Panics,
}

impl Rest {
    /// For a process that has to keep within a quota of processor time.
    pub fn within(quota: Option<Quota>) -> Self {
        Self(Arc::new(Inner {
            quota,
            ..Inner::default()
        }))
    }

    /// How long to wait before the next unit of work, so that those who are served have the processor time that they need; none mostly, and
    /// always where there is no quota. `awaited`: somebody waits for that work as for any answer.
    pub fn crowded(&self, awaited: bool) -> Option<Duration> {
        let quota = self.0.quota.as_ref()?;
        let wait = match awaited {
            true => quota.wait(),
            false => quota.wait_behind(),
        };
        (!wait.is_zero()).then_some(wait)
    }

    /// Where panics of work in the background are counted.
    pub fn panics(&self) -> &Panics {
        &self.0.panics
    }

    /// Whether to rest. One relaxed load: it may be asked as often as one likes.
    pub fn is_due(&self) -> bool {
        self.0.is_due.load(Ordering::Relaxed)
    }

    /// Turns the switch, and wakes who naps.
    pub fn set(&self, is_due: bool) {
        let _turning = self
            .0
            .turning
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.0.is_due.store(is_due, Ordering::Relaxed);
        self.0.turned.notify_all();
    }

    /// Says whether memory is among what is short: to be said before [`Self::set`], so that whoever is due to rest knows it.
    pub fn set_memory_short(&self, is_short: bool) {
        self.0.is_memory_short.store(is_short, Ordering::Relaxed);
    }

    /// Whether who rests should give back what he holds, rather than wait with it.
    pub fn is_memory_short(&self) -> bool {
        self.0.is_memory_short.load(Ordering::Relaxed)
    }

    /// Counts the caller among those who rest, until what is returned is dropped.
    pub fn enter(&self) -> Resting<'_> {
        self.0.resting.fetch_add(1, Ordering::Relaxed);
        self.0.rests.fetch_add(1, Ordering::Relaxed);
        Resting(&self.0)
    }

    /// Rests until the switch is turned back, at most so long: who has something else to look at looks at it in between. Blocks.
    pub fn nap(&self, most: Duration) {
        let _resting = self.enter();
        let turning = self
            .0
            .turning
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .0
            .turned
            .wait_timeout_while(turning, most, |()| self.is_due());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Workers that rest at this moment.
    pub fn resting(&self) -> usize {
        self.0.resting.load(Ordering::Relaxed)
    }

    /// How often one began to, so far. A long rest is many naps.
    pub fn rests(&self) -> u64 {
        self.0.rests.load(Ordering::Relaxed)
    }
}

/// Somebody rests. See [`Rest::enter`].
#[derive(Debug)]
pub struct Resting<'a>(&'a Inner);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.resting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rests_is_counted_and_woken() {
        let rest = Rest::default();
        assert!(!rest.is_due());
        rest.nap(Duration::MAX);
        assert_eq!(
            (rest.resting(), rest.rests()),
            (0, 1),
            "nothing to wait for"
        );
        rest.set(true);
        let other = rest.clone();
        let resting = std::thread::spawn(move || other.nap(Duration::MAX));
        while rest.resting() == 0 {
            std::thread::yield_now();
        }
        assert!(rest.is_due() && !resting.is_finished());
        rest.set(false);
        resting.join().unwrap_or_else(|_| panic!("it only waits"));
        assert_eq!((rest.resting(), rest.rests()), (0, 2));
    }

    #[test]
    fn a_nap_ends_while_it_is_still_due() {
        let rest = Rest::default();
        rest.set(true);
        rest.nap(Duration::from_millis(1));
        assert!(rest.is_due());
        assert_eq!(rest.resting(), 0);
    }
}
