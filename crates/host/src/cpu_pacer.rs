//! The queue in which pieces of blob responses wait for CPU time, so that short responses always
//! find CPU time.
//!
//! A short response (a manifest, a tag, an error) costs about 0.1 ms of CPU time and does not wait.
//! A blob is sent in pieces. Each piece passes this queue in the order of arrival, and waits until
//! the quota has CPU time left. At most as many pieces pass at once as there are threads. A reserve
//! of the quota is for blobs alone. Thus clients that request manifests continuously slow down
//! blobs, but do not stop them.

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

/// Bytes of one piece of a blob. Sending a piece takes about 0.1 ms. A manifest that waits behind a
/// piece is delayed by that time.
pub const PIECE_BYTES: u64 = 256 << 10;

/// Divisor of the CPU quota for the reserve of blobs: a fourth of the quota is reserved for blobs.
/// The measured cost of a piece does not include the work of hyper and TLS, which costs up to three
/// times as much as the measured work. With a reserve of a fourth, blobs stay within the quota even
/// with this unmeasured work.
const RESERVE_DIVISOR: u64 = 4;

/// Minimum wait of a piece of a blob, because the timers of the runtime have this resolution.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// The queue in which pieces of blobs wait for CPU time, as the documentation of this module
/// describes.
pub struct CpuPacer {
    quota: CpuBudget,
    /// The part of the quota that short responses cannot use.
    reserve: CpuBudget,
    /// Nanoseconds of CPU time that pieces of blobs have used.
    spent: Arc<AtomicU64>,
    permits: Semaphore,
    waited: Counter<f64, AtomicU64>,
}

impl CpuPacer {
    /// Creates a queue for `threads` threads. `waited` counts the seconds for which pieces wait.
    pub fn new(quota: CpuBudget, threads: usize, waited: Counter<f64, AtomicU64>) -> Self {
        let spent = Arc::new(AtomicU64::new(0));
        let reserve = quota.part(RESERVE_DIVISOR, {
            let spent = spent.clone();
            move || Duration::from_nanos(spent.load(Ordering::Relaxed))
        });
        Self {
            quota,
            reserve,
            spent,
            permits: Semaphore::new(threads.max(1)),
            waited,
        }
    }

    /// Waits until the caller may send its next piece. Cancel safe: if the future is dropped, its
    /// permit goes to the next call.
    pub async fn pass(&self) {
        let started_at = Instant::now();
        // `acquire` cannot fail, because the semaphore is never closed.
        let permit = self.permits.acquire().await;
        // Only the holder of a permit sleeps. The other calls wait for a permit without a timer.
        loop {
            let wait = self.wait();
            if wait.is_zero() {
                break;
            }
            sleep(wait.max(MIN_WAIT)).await;
        }
        // The yield lets the thread serve short requests that arrived before the piece.
        tokio::task::yield_now().await;
        drop(permit);
        self.waited.inc_by(started_at.elapsed().as_secs_f64());
    }

    /// Returns the time until the quota or the reserve has CPU time left.
    fn wait(&self) -> Duration {
        match self.quota.wait() {
            Duration::ZERO => Duration::ZERO,
            quota_wait => quota_wait.min(self.reserve.wait()),
        }
    }

    /// Starts a meter of CPU time. Until the meter is dropped, all CPU time of this thread counts
    /// as the cost of pieces.
    pub fn meter(&self) -> CpuMeter<'_> {
        CpuMeter {
            pacer: self,
            started_at: thread_time(),
            of_this_thread: PhantomData,
        }
    }

    fn spend(&self, cost: Duration) {
        let nanos = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
        self.spent.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// Measures the CPU time of one thread, for [`CpuPacer::meter`]. The type is not `Send`, because it
/// reads the CPU clock of the thread that created it.
pub struct CpuMeter<'a> {
    pacer: &'a CpuPacer,
    started_at: Duration,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for CpuMeter<'_> {
    fn drop(&mut self) {
        self.pacer
            .spend(thread_time().saturating_sub(self.started_at));
    }
}

/// Runs `work` on a piece that has passed `pacer`, and adds the CPU time of `work` to the cost of
/// pieces. Without a pacer, only runs `work`.
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
    use parking_lot::Mutex;

    use crate::{CpuAllowance, CpuReading};

    use super::*;

    /// The used CPU time, which the test sets. For the elapsed time, the test uses the paused clock
    /// of the runtime.
    #[derive(Clone, Default)]
    struct Used(Arc<Mutex<Duration>>);

    impl Used {
        fn pacer(&self, threads: usize) -> Arc<CpuPacer> {
            let (used, started_at) = (self.clone(), Instant::now());
            let allowance = CpuAllowance {
                thousandths: 500,
                period: Duration::from_millis(100),
                share: 90,
            };
            let quota = CpuBudget::with_clock(allowance, move || CpuReading {
                now: started_at.elapsed(),
                used: *used.0.lock(),
            });
            Arc::new(CpuPacer::new(quota, threads, Counter::default()))
        }

        fn use_up(&self, millis: u64) {
            *self.0.lock() += Duration::from_millis(millis);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_pass_in_order_as_the_quota_fills() {
        let used = Used::default();
        let pacer = used.pacer(1);
        used.use_up(3);
        // After this, the reserve is used up, too.
        pacer.spend(Duration::from_millis(10));
        let (started_at, passed) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let waiting: Vec<_> = (0..5)
            .map(|nth| {
                let (pacer, used, passed) = (pacer.clone(), used.clone(), passed.clone());
                tokio::spawn(async move {
                    pacer.pass().await;
                    // The quota fills by 9 ms in 20 ms.
                    used.use_up(1);
                    pacer.spend(Duration::from_millis(1));
                    let millis = started_at.elapsed().as_millis();
                    passed.lock().push((nth, millis));
                })
            })
            .collect();
        for one in waiting {
            one.await.unwrap();
        }
        let passed = passed.lock().clone();
        let order: Vec<_> = passed.iter().map(|(nth, _)| *nth).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        for (nth, millis) in passed {
            let earned = 20 * nth / 9;
            assert!((earned..earned + 6).contains(&millis), "{nth}: {millis}");
        }
        assert!(pacer.waited.get() > 0.02, "{}", pacer.waited.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_gives_its_permit_to_the_next() {
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
        assert_eq!(pacer.permits.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_get_their_reserve_while_others_exhaust_the_quota() {
        let used = Used::default();
        let pacer = used.pacer(2);
        // Other work uses ten times the quota, also before the first piece is sent.
        used.use_up(1000);
        tokio::spawn({
            let used = used.clone();
            async move {
                loop {
                    used.use_up(10);
                    sleep(MIN_WAIT).await;
                }
            }
        });
        let (started_at, mut spent) = (Instant::now(), Duration::ZERO);
        let piece = Duration::from_micros(500);
        while started_at.elapsed() < Duration::from_secs(1) {
            pacer.pass().await;
            pacer.spend(piece);
            spent += piece;
        }
        // The expected CPU time of the pieces is one fourth of 90 % of half a core.
        assert!((110..=115).contains(&spent.as_millis()), "{spent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_alone_use_the_quota_and_no_more() {
        let used = Used::default();
        let pacer = used.pacer(1);
        let (started_at, mut spent) = (Instant::now(), Duration::ZERO);
        let piece = Duration::from_millis(1);
        while started_at.elapsed() < Duration::from_secs(1) {
            pacer.pass().await;
            pacer.spend(piece);
            used.use_up(1);
            spent += piece;
        }
        assert!((445..=455).contains(&spent.as_millis()), "{spent:?}");
    }

    #[tokio::test]
    async fn the_cpu_time_of_a_piece_counts_and_its_waiting_time_does_not() {
        let pacer = Used::default().pacer(1);
        metered(Some(&pacer), async {
            sleep(Duration::from_millis(50)).await;
            let started_at = thread_time();
            while thread_time() - started_at < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
            sleep(Duration::from_millis(50)).await;
        })
        .await;
        let spent = Duration::from_nanos(pacer.spent.load(Ordering::Relaxed));
        assert!((4..25).contains(&spent.as_millis()), "{spent:?}");
    }
}
