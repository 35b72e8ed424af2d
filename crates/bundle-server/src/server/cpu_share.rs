//! Limits the CPU time of background work to a share of one core, and stops this work promptly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pierhead_host::BackgroundWork;

use pierhead_toc::Error;
use pierhead_toc::layer::Pace;

/// The longest sleep of background work, and so the longest delay of a shutdown.
pub(super) const NAP: Duration = Duration::from_millis(200);

/// Interval between checks for work of higher priority.
const PRIORITY_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Number of naps (1 s together) after which a paused job ends when memory is short. The end of the
/// job releases its 60 to 150 MB of memory, which may be the cause of the shortage.
const MAX_NAPS_WITHOUT_MEMORY: u32 = 5;
/// Number of naps (5 minutes together) after which a paused job ends under any other pressure. This
/// limit is long, since a job that ends has to repeat its work.
const MAX_NAPS: u32 = 1500;

/// Maximum wait of one unit of work for CPU time. This limit lets background work make slow
/// progress even on a host that is always busy.
const MAX_CPU_WAIT: Duration = Duration::from_secs(1);

/// CPU limits of one background thread. The limits never change the results of the thread's work.
pub(super) struct CpuShare {
    /// Maximum CPU time of the thread in percent of a core.
    percent: u32,
    stop: Arc<AtomicBool>,
    /// Whether a client waits for this job. While a client waits, the job may use a whole core.
    with_awaited: Arc<AtomicBool>,
    /// Number of jobs of higher priority. While this number is not 0, the job of this thread
    /// pauses.
    priority_jobs: Arc<AtomicUsize>,
    background: BackgroundWork,
    /// Tells whether the job continues in spite of a pause, because a client waits for a later job
    /// in the queue.
    is_wanted: Arc<dyn Fn() -> bool>,
    /// Start of the current measurement of the CPU share.
    since: Instant,
    /// CPU time of this thread at `since`.
    cpu_at_since: Duration,
    /// CPU time of this thread when the job began.
    cpu_at_begin: Duration,
    /// CPU time of earlier attempts at the job.
    used_before: Duration,
    /// Maximum CPU time of all attempts at the job together.
    budget: Option<Duration>,
    /// CPU time after which the job ends if another client waits, and the function that tells
    /// whether a client waits.
    slice: Option<(Duration, Box<dyn Fn() -> bool>)>,
}

impl CpuShare {
    pub(super) fn new(percent: u32, stop: Arc<AtomicBool>) -> Self {
        let now = thread_cpu_time();
        Self {
            percent: percent.clamp(1, 100),
            stop,
            with_awaited: Arc::default(),
            priority_jobs: Arc::default(),
            background: BackgroundWork::default(),
            is_wanted: Arc::new(|| false),
            since: Instant::now(),
            cpu_at_since: now,
            cpu_at_begin: now,
            used_before: Duration::ZERO,
            budget: None,
            slice: None,
        }
    }

    /// Ends the job with [`Error::Stopped`] when the job has used `slice` of CPU time and another
    /// client waits.
    pub(super) fn with_time_slice(self, slice: Duration, waits: Box<dyn Fn() -> bool>) -> Self {
        Self {
            slice: Some((slice, waits)),
            ..self
        }
    }

    /// Counts the CPU time of earlier attempts against the budget.
    pub(super) fn with_used(self, used_before: Duration) -> Self {
        Self {
            used_before,
            ..self
        }
    }

    /// Returns the CPU time of this attempt and of all earlier attempts at the job.
    pub(super) fn used(&self) -> Duration {
        self.used_before + thread_cpu_time().saturating_sub(self.cpu_at_begin)
    }

    /// Adds `more` to the CPU time budget of the job. Does nothing for a job without a budget.
    pub(super) fn allow(&mut self, more: Duration) {
        let budget = self.budget.unwrap_or_default();
        self.budget = Some(budget.saturating_add(more));
    }

    /// Fails when the job exceeds its CPU time budget, or when the job must yield to another
    /// client.
    fn check_time(&self) -> Result<(), Error> {
        if self.budget.is_none() && self.slice.is_none() {
            return Ok(());
        }
        let used = thread_cpu_time().saturating_sub(self.cpu_at_begin);
        if let Some(budget) = self.budget
            && self.used() > budget
        {
            return Err(Error::Image(format!(
                "indexing it takes more than its {} s of CPU time",
                budget.as_secs()
            )));
        }
        match &self.slice {
            Some((slice, waits)) if used >= *slice && waits() => Err(Error::Stopped),
            _ => Ok(()),
        }
    }

    /// Lets the job take a whole core while `with_awaited` is true: this means that a client waits
    /// for the job.
    pub(super) fn with_awaited(self, with_awaited: Arc<AtomicBool>) -> Self {
        Self {
            with_awaited,
            ..self
        }
    }

    /// Pauses the job while `background` is paused.
    pub(super) fn with_background(self, background: BackgroundWork) -> Self {
        Self { background, ..self }
    }

    /// Continues the job in spite of a pause while `is_wanted` returns true.
    pub(super) fn continue_while(self, is_wanted: Arc<dyn Fn() -> bool>) -> Self {
        Self { is_wanted, ..self }
    }

    /// Pauses the job while `priority_jobs` is not 0.
    pub(super) fn with_priority_jobs(self, priority_jobs: Arc<AtomicUsize>) -> Self {
        Self {
            priority_jobs,
            ..self
        }
    }
}

impl Pace for CpuShare {
    /// Sleeps to keep the CPU limits. Returns [`Error::Stopped`] at shutdown, and also after a long
    /// pause, so that the job releases its memory.
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        self.check_time()?;
        let mut naps = 0;
        let mut waited = Duration::ZERO;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let is_awaited = self.with_awaited.load(Ordering::Relaxed);
            if self.background.is_paused() && !is_awaited && !(self.is_wanted)() {
                let most = match self.background.is_memory_short() {
                    true => MAX_NAPS_WITHOUT_MEMORY,
                    false => MAX_NAPS,
                };
                if naps >= most {
                    return Err(Error::Stopped);
                }
                self.background.wait_while_paused(NAP);
                naps += 1;
                continue;
            }
            if self.priority_jobs.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(PRIORITY_CHECK_INTERVAL);
                continue;
            }
            if waited < MAX_CPU_WAIT
                && let Some(wait) = self.background.cpu_wait(is_awaited)
            {
                let wait = wait.min(NAP);
                std::thread::sleep(wait);
                waited += wait;
                continue;
            }
            if self.percent >= 100 {
                return Ok(());
            }
            if is_awaited {
                break;
            }
            let worked = thread_cpu_time().saturating_sub(self.cpu_at_since);
            let due = worked * 100 / self.percent;
            let Some(wait) = due.checked_sub(self.since.elapsed()) else {
                break;
            };
            if wait < Duration::from_millis(5) {
                return Ok(());
            }
            std::thread::sleep(wait.min(NAP));
        }
        // Starts a new measurement, so that unused CPU time does not accumulate for a later burst.
        (self.since, self.cpu_at_since) = (Instant::now(), thread_cpu_time());
        Ok(())
    }
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short_of_memory() -> BackgroundWork {
        let background = BackgroundWork::default();
        background.set_memory_short(true);
        background.set_paused(true);
        background
    }

    fn share(background: &BackgroundWork) -> CpuShare {
        CpuShare::new(100, Arc::default()).with_background(background.clone())
    }

    #[test]
    fn a_job_ends_when_memory_is_short_unless_a_client_waits() {
        let background = short_of_memory();
        assert!(matches!(share(&background).pause(0), Err(Error::Stopped)));
        assert_eq!(background.pauses(), u64::from(MAX_NAPS_WITHOUT_MEMORY));
        assert!(
            share(&background)
                .with_awaited(Arc::new(true.into()))
                .pause(0)
                .is_ok()
        );
        assert!(
            share(&background)
                .continue_while(Arc::new(|| true))
                .pause(0)
                .is_ok()
        );
        background.set_paused(false);
        assert!(share(&background).pause(0).is_ok());
    }

    #[test]
    fn a_job_ends_when_its_time_is_used_up_or_another_client_waits() {
        let share = || CpuShare::new(100, Arc::default());
        let mut bounded = share();
        bounded.allow(Duration::from_secs(3600));
        assert!(bounded.pause(0).is_ok());
        bounded.budget = Some(Duration::ZERO);
        let over = bounded.pause(0);
        let mut again = share().with_used(Duration::from_secs(3600));
        again.allow(Duration::from_secs(3599));
        assert!(again.pause(0).is_err(), "earlier attempts count");
        assert!(
            matches!(&over, Err(Error::Image(why)) if why.contains("CPU time")),
            "{over:?}"
        );
        let slice = |slice, waits: bool| {
            share()
                .with_time_slice(slice, Box::new(move || waits))
                .pause(0)
        };
        assert!(matches!(slice(Duration::ZERO, true), Err(Error::Stopped)));
        assert!(slice(Duration::ZERO, false).is_ok());
        assert!(slice(Duration::from_secs(3600), true).is_ok());
    }

    #[test]
    fn a_job_that_waits_for_other_work_counts_as_paused() {
        let (background, stop) = (BackgroundWork::default(), Arc::<AtomicBool>::default());
        background.set_paused(true);
        let (with_background, stopping) = (background.clone(), stop.clone());
        let waits = std::thread::spawn(move || {
            let share = CpuShare::new(100, stopping).with_background(with_background);
            share
                .with_priority_jobs(Arc::new(1.into()))
                .pause(0)
                .is_err()
        });
        // The job pauses within milliseconds, so the time limit of this test is generous.
        let started = Instant::now();
        while background.pauses() == 0 && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pauses = background.pauses();
        stop.store(true, Ordering::Relaxed);
        background.set_paused(false);
        assert!(waits.join().unwrap());
        assert!(pauses > 0, "the pause was not counted");
    }
}
