//! The pause switch of background work (indexing, patches, maintenance), and the CPU budget of that
//! work. Workers read the switch between two units of work.
//!
//! The owner of the switch pauses work when the host is short of a resource. A worker decides which
//! parts of its work can pause. The owner and the workers do not depend on each other.

mod panics;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use panics::{PanicGuard, Panics, WatchedFuture};
pub use task::BackgroundTask;

use crate::cpu_budget::CpuBudget;

/// The pause switch of background work. Clones share one switch. By default, work never pauses.
#[derive(Clone, Debug, Default)]
pub struct BackgroundWork(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_paused: AtomicBool,
    is_memory_short: AtomicBool,
    /// A lock that is held while the switch changes, so that no worker misses the notification.
    switch_lock: Mutex<()>,
    switched: Condvar,
    paused_workers: AtomicUsize,
    pauses: AtomicU64,
    cpu_budget: Option<CpuBudget>,
    panics: Panics,
}

impl BackgroundWork {
    /// Creates the switch of a process that keeps within `cpu_budget`.
    pub fn with_cpu_budget(cpu_budget: Option<CpuBudget>) -> Self {
        Self(Arc::new(Inner {
            cpu_budget,
            ..Inner::default()
        }))
    }

    /// Returns how long a worker has to wait before its next unit of work, so that requests find
    /// CPU time. `None` if the worker need not wait. Without a budget, no worker has to wait.
    /// `is_awaited` means that a client waits for the work.
    pub fn cpu_wait(&self, is_awaited: bool) -> Option<Duration> {
        let budget = self.0.cpu_budget.as_ref()?;
        let wait = match is_awaited {
            true => budget.wait(),
            false => budget.wait_background(),
        };
        (!wait.is_zero()).then_some(wait)
    }

    /// Returns the counts of panics of background tasks.
    pub fn panics(&self) -> &Panics {
        &self.0.panics
    }

    /// Whether background work is paused. Costs one relaxed atomic load.
    pub fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::Relaxed)
    }

    /// Sets the switch. If work may continue, wakes the workers that wait.
    pub fn set_paused(&self, is_paused: bool) {
        let _lock = self.0.switch_lock.lock();
        self.0.is_paused.store(is_paused, Ordering::Relaxed);
        self.0.switched.notify_all();
    }

    /// Records whether the host is short of memory. The caller calls this before
    /// [`Self::set_paused`], so that a worker that pauses reads the new value.
    pub fn set_memory_short(&self, is_short: bool) {
        self.0.is_memory_short.store(is_short, Ordering::Relaxed);
    }

    /// Whether the host is short of memory, in which case a worker that pauses must free its
    /// memory.
    pub fn is_memory_short(&self) -> bool {
        self.0.is_memory_short.load(Ordering::Relaxed)
    }

    /// Counts the caller among the paused workers until the returned guard is dropped.
    pub fn count_pause(&self) -> PausedWorker<'_> {
        self.0.paused_workers.fetch_add(1, Ordering::Relaxed);
        self.0.pauses.fetch_add(1, Ordering::Relaxed);
        PausedWorker(&self.0)
    }

    /// Blocks while work is paused, at most for `timeout`. A worker that has other duties calls
    /// this function repeatedly, and does its other duties between two calls.
    pub fn wait_while_paused(&self, timeout: Duration) {
        let _paused = self.count_pause();
        let mut lock = self.0.switch_lock.lock();
        self.0
            .switched
            .wait_while_for(&mut lock, |()| self.is_paused(), timeout);
    }

    /// Returns the number of workers that are paused at this time.
    pub fn paused_workers(&self) -> usize {
        self.0.paused_workers.load(Ordering::Relaxed)
    }

    /// Returns the number of waits in [`Self::wait_while_paused`] that have begun. One long pause
    /// consists of several waits, so it counts several times.
    pub fn pauses(&self) -> u64 {
        self.0.pauses.load(Ordering::Relaxed)
    }
}

/// Counts one worker as paused until this value is dropped. See [`BackgroundWork::count_pause`].
#[derive(Debug)]
pub struct PausedWorker<'a>(&'a Inner);

impl Drop for PausedWorker<'_> {
    fn drop(&mut self) {
        self.0.paused_workers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_worker_is_counted_and_woken() {
        let work = BackgroundWork::default();
        assert!(!work.is_paused());
        work.wait_while_paused(Duration::MAX);
        assert_eq!(
            (work.paused_workers(), work.pauses()),
            (0, 1),
            "work is not paused"
        );
        work.set_paused(true);
        let other = work.clone();
        let paused = std::thread::spawn(move || other.wait_while_paused(Duration::MAX));
        while work.paused_workers() == 0 {
            std::thread::yield_now();
        }
        assert!(work.is_paused() && !paused.is_finished());
        work.set_paused(false);
        paused.join().unwrap_or_else(|_| panic!("it only waits"));
        assert_eq!((work.paused_workers(), work.pauses()), (0, 2));
    }

    #[test]
    fn a_wait_ends_at_its_timeout_while_work_is_paused() {
        let work = BackgroundWork::default();
        work.set_paused(true);
        work.wait_while_paused(Duration::from_millis(1));
        assert!(work.is_paused());
        assert_eq!(work.paused_workers(), 0);
    }
}
