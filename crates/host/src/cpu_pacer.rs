//! Where bytes of blobs wait for processor time, so that whatever is short finds some.
//!
//! A manifest, a tag or a refusal costs a tenth of a millisecond and passes by. What is long is cut into pieces, and each of them passes here, one after
//! the other: in the order in which they came, so many at once as there are threads, and not before the quota has room. A part of the quota is
//! theirs alone: clients that ask for manifests without a pause, and so use all there is, slow blobs down and do not stop them.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{CpuBudget, thread_time};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// Bytes that leave at once: about a tenth of a millisecond, which is what a manifest waits for behind a blob.
pub const PIECE_BYTES: u64 = 256 << 10;

/// So many parts has the quota of which one is the blobs' own. What is measured of their cost leaves out what hyper and TLS do with a piece that was
/// read, which is up to three times as much; so four, and blobs alone never use more than the quota because of what is theirs.
const PARTS: u64 = 4;

/// The timers of the runtime are no finer.
const LEAST: Duration = Duration::from_millis(1);

/// See the head of this module.
pub struct CpuPacer {
    quota: CpuBudget,
    /// Of the quota, what short answers cannot take.
    own: CpuBudget,
    /// Nanoseconds of processor time that pieces have cost.
    spent: Arc<AtomicU64>,
    places: Semaphore,
    waited: Counter<f64, AtomicU64>,
}

impl CpuPacer {
    /// `waited` counts the seconds that pieces waited here.
    pub fn new(quota: CpuBudget, threads: usize, waited: Counter<f64, AtomicU64>) -> Self {
        let spent = Arc::new(AtomicU64::new(0));
        let own = quota.part(PARTS, {
            let spent = spent.clone();
            move || Duration::from_nanos(spent.load(Ordering::Relaxed))
        });
        Self {
            quota,
            own,
            spent,
            places: Semaphore::new(threads.max(1)),
            waited,
        }
    }

    /// Returns when the next piece may leave. Cancel safe: whoever gives up leaves its place to the next.
    pub async fn pass(&self) {
        let begun = Instant::now();
        // It is never closed.
        let place = self.places.acquire().await;
        // One timer a place, however many wait behind: they are woken one by one, as each before them has passed.
        loop {
            let wait = self.wait();
            if wait.is_zero() {
                break;
            }
            sleep(wait.max(LEAST)).await;
        }
        // Before the piece the thread looks whether somebody short has come.
        tokio::task::yield_now().await;
        drop(place);
        self.waited.inc_by(begun.elapsed().as_secs_f64());
    }

    /// Until the quota has room, or what of it is the blobs' own.
    fn wait(&self) -> Duration {
        match self.quota.wait() {
            Duration::ZERO => Duration::ZERO,
            crowded => crowded.min(self.own.wait()),
        }
    }

    /// Counts what the thread does until it is dropped as the cost of pieces.
    pub fn meter(&self) -> CpuMeter<'_> {
        CpuMeter {
            pacer: self,
            begun: thread_time(),
            of_this_thread: PhantomData,
        }
    }

    fn spend(&self, cost: Duration) {
        let nanos = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
        self.spent.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// See [`CpuPacer::meter`]. The clock is its thread's, so it stays there.
pub struct CpuMeter<'a> {
    pacer: &'a CpuPacer,
    begun: Duration,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for CpuMeter<'_> {
    fn drop(&mut self) {
        self.pacer.spend(thread_time().saturating_sub(self.begun));
    }
}

/// Does `work` on a piece that passed `pacer`, if there is one, and counts what it cost.
pub async fn metered<W: Future>(pacer: Option<&CpuPacer>, work: W) -> W::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        let _meter = pacer.map(CpuPacer::meter);
        work.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use crate::{CpuAllowance, CpuReading};

    use super::*;

    /// Processor time that the test says was used; the other clock is the runtime's, which stands still until all wait.
    #[derive(Clone, Default)]
    struct Used(Arc<Mutex<Duration>>);

    impl Used {
        fn pacer(&self, threads: usize) -> Arc<CpuPacer> {
            let (used, begun) = (self.clone(), Instant::now());
            let allowance = CpuAllowance {
                thousandths: 500,
                period: Duration::from_millis(100),
                share: 90,
            };
            let quota = CpuBudget::with_clock(allowance, move || CpuReading {
                now: begun.elapsed(),
                used: *used.0.lock().unwrap_or_else(PoisonError::into_inner),
            });
            Arc::new(CpuPacer::new(quota, threads, Counter::default()))
        }

        fn use_up(&self, millis: u64) {
            *self.0.lock().unwrap() += Duration::from_millis(millis);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_after_the_other_as_they_came_and_as_time_is_earned() {
        let used = Used::default();
        let pacer = used.pacer(1);
        used.use_up(3);
        // What is theirs alone is used up too.
        pacer.spend(Duration::from_millis(10));
        let (begun, passed) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let waiting: Vec<_> = (0..5)
            .map(|nth| {
                let (pacer, used, passed) = (pacer.clone(), used.clone(), passed.clone());
                tokio::spawn(async move {
                    pacer.pass().await;
                    // Nine of it are earned in twenty.
                    used.use_up(1);
                    pacer.spend(Duration::from_millis(1));
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
        assert!(pacer.waited.get() > 0.02, "{}", pacer.waited.get());
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_its_place_to_the_next() {
        let used = Used::default();
        let pacer = used.pacer(1);
        used.use_up(40);
        pacer.spend(Duration::from_millis(10));
        let [first, second] = [(); 2].map(|()| {
            let pacer = pacer.clone();
            tokio::spawn(async move { pacer.pass().await })
        });
        tokio::task::yield_now().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        second.await.unwrap();
        assert_eq!(pacer.places.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_is_the_blobs_own_however_much_others_use() {
        let used = Used::default();
        let pacer = used.pacer(2);
        // They use ten times what there is, from before the first piece comes.
        used.use_up(1000);
        tokio::spawn({
            let used = used.clone();
            async move {
                loop {
                    used.use_up(10);
                    sleep(LEAST).await;
                }
            }
        });
        let (begun, mut spent) = (Instant::now(), Duration::ZERO);
        let piece = Duration::from_micros(500);
        while begun.elapsed() < Duration::from_secs(1) {
            pacer.pass().await;
            pacer.spend(piece);
            spent += piece;
        }
        // A quarter of nine tenths of half a core.
        assert!((110..=115).contains(&spent.as_millis()), "{spent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn blobs_alone_use_what_there_is_and_no_more() {
        let used = Used::default();
        let pacer = used.pacer(1);
        let (begun, mut spent) = (Instant::now(), Duration::ZERO);
        let piece = Duration::from_millis(1);
        while begun.elapsed() < Duration::from_secs(1) {
            pacer.pass().await;
            pacer.spend(piece);
            used.use_up(1);
            spent += piece;
        }
        assert!((445..=455).contains(&spent.as_millis()), "{spent:?}");
    }

    #[tokio::test]
    async fn what_a_piece_costs_is_counted_and_what_it_waits_for_is_not() {
        let pacer = Used::default().pacer(1);
        metered(Some(&pacer), async {
            sleep(Duration::from_millis(50)).await;
            let begun = thread_time();
            while thread_time() - begun < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
            sleep(Duration::from_millis(50)).await;
        })
        .await;
        let spent = Duration::from_nanos(pacer.spent.load(Ordering::Relaxed));
        assert!((4..25).contains(&spent.as_millis()), "{spent:?}");
    }
}
