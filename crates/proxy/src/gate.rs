//! Where bytes of blobs wait for processor time, so that whatever is short finds some.
//!
//! A manifest, a tag or a refusal costs a tenth of a millisecond and passes by. What is long is cut into pieces, and each of them passes here, one after
//! the other: in the order in which they came, so many at once as there are threads, and not before the quota has room.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use pierhead_rest::Quota;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// Bytes that leave at once: about a tenth of a millisecond, which is what a manifest waits for behind a blob.
pub(crate) const PIECE: u64 = 256 << 10;

/// The longest that the one whose turn it is waits, so that one client who asks for manifests without a pause, which may use all there is, does not
/// keep everybody's blobs back: a thread still sends 50 MB/s, for about a fiftieth of a core.
const MOST: Duration = Duration::from_millis(5);

/// The timers of the runtime are no finer.
const LEAST: Duration = Duration::from_millis(1);

/// See the head of this module.
pub(crate) struct Gate {
    quota: Quota,
    places: Semaphore,
    waited: Counter<f64, AtomicU64>,
}

impl Gate {
    /// `waited` counts the seconds that pieces waited here.
    pub(crate) fn new(quota: Quota, threads: usize, waited: Counter<f64, AtomicU64>) -> Self {
        Self {
            quota,
            places: Semaphore::new(threads.max(1)),
            waited,
        }
    }

    /// Returns when the next piece may leave. Cancel safe: whoever gives up leaves its place to the next.
    pub(crate) async fn pass(&self) {
        let begun = Instant::now();
        // It is never closed.
        let place = self.places.acquire().await;
        let first = Instant::now();
        // One timer a place, however many wait behind: they are woken one by one, as each before them has passed.
        while let Some(left) = MOST.checked_sub(first.elapsed()) {
            let wait = self.quota.wait();
            if wait.is_zero() {
                break;
            }
            sleep(wait.clamp(LEAST, left.max(LEAST))).await;
        }
        // Before the piece the thread looks whether somebody short has come.
        tokio::task::yield_now().await;
        drop(place);
        self.waited.inc_by(begun.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use pierhead_rest::{Allowance, Reading};

    use super::*;

    /// Processor time that the test says was used; the other clock is the runtime's, which stands still until all wait.
    #[derive(Clone, Default)]
    struct Used(Arc<Mutex<Duration>>);

    impl Used {
        fn gate(&self, threads: usize) -> Arc<Gate> {
            let (used, begun) = (self.clone(), Instant::now());
            let allowance = Allowance {
                thousandths: 500,
                period: Duration::from_millis(100),
                share: 90,
            };
            let quota = Quota::with_clock(allowance, move || Reading {
                now: begun.elapsed(),
                used: *used.0.lock().unwrap_or_else(PoisonError::into_inner),
            });
            Arc::new(Gate::new(quota, threads, Counter::default()))
        }

        fn use_up(&self, millis: u64) {
            *self.0.lock().unwrap() += Duration::from_millis(millis);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_after_the_other_as_they_came_and_as_time_is_earned() {
        let used = Used::default();
        let gate = used.gate(1);
        used.use_up(3);
        let (begun, passed) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let waiting: Vec<_> = (0..5)
            .map(|nth| {
                let (gate, used, passed) = (gate.clone(), used.clone(), passed.clone());
                tokio::spawn(async move {
                    gate.pass().await;
                    // Nine of it are earned in twenty, so that nobody waits for as long as is waited at most.
                    used.use_up(1);
                    let millis = begun.elapsed().as_millis();
                    passed.lock().unwrap().push((nth, millis));
                })
            })
            .collect();
        for one in waiting {
            one.await.unwrap();
        }
        let passed = passed.lock().unwrap().clone();
        let order: Vec<_> = passed.iter().map(|(nth, _)| *nth).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        for (nth, millis) in passed {
            let earned = 20 * nth / 9;
            assert!((earned..earned + 6).contains(&millis), "{nth}: {millis}");
        }
        assert!(gate.waited.get() > 0.02, "{}", gate.waited.get());
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_its_place_to_the_next() {
        let used = Used::default();
        let gate = used.gate(1);
        used.use_up(40);
        let [first, second] = [(); 2].map(|()| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.pass().await })
        });
        tokio::task::yield_now().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        second.await.unwrap();
        assert_eq!(gate.places.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_for_what_others_use() {
        let used = Used::default();
        let gate = used.gate(2);
        let begun = Instant::now();
        let busy = tokio::spawn({
            let used = used.clone();
            async move {
                loop {
                    used.use_up(10);
                    sleep(LEAST).await;
                }
            }
        });
        for _ in 0..3 {
            gate.pass().await;
        }
        assert!(begun.elapsed() >= 2 * MOST && begun.elapsed() <= 4 * MOST);
        busy.abort();
    }
}
