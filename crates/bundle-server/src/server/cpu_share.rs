//! Limits the CPU time of background work to a share of one core, and stops it promptly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pierhead_host::BackgroundWork;

use pierhead_toc::Error;
use pierhead_toc::layer::Pace;

/// The longest sleep, and so the longest delay of a stop.
pub(super) const NAP: Duration = Duration::from_millis(200);

/// Interval between checks for work of higher priority.
const REST: Duration = Duration::from_millis(20);

/// For how many naps in a row a job rests before it gives up what it holds and begins again later: a second where memory is
/// what is short, for the 60 to 150 MB that it holds may be all that presses; else five minutes, for its work is worth more than that.
const SHORT_OF_MEMORY: u32 = 5;
const SHORT: u32 = 1500;

/// Longest wait of one unit for CPU time. On a machine that is always busy, background work so still makes slow progress.
const CROWDED: Duration = Duration::from_secs(1);

/// CPU limits of one background thread. They never change its results.
pub(super) struct CpuShare {
    /// Percent of a core.
    percent: u32,
    stop: Arc<AtomicBool>,
    /// Whether a client waits for this job. The job then gets a whole core.
    awaited: Arc<AtomicBool>,
    /// Number of jobs of higher priority. This job pauses while it is not 0.
    before: Arc<AtomicUsize>,
    rest: BackgroundWork,
    /// Whether the job goes on although it should pause, since a client waits for a job behind it.
    wanted: Arc<dyn Fn() -> bool>,
    since: Instant,
    /// CPU time of this thread at `since`.
    spent: Duration,
    /// CPU time of this thread when the job began.
    began: Duration,
    /// CPU time of earlier attempts at the job.
    earlier: Duration,
    /// Most CPU time of the whole job, with its earlier attempts.
    budget: Option<Duration>,
    /// CPU time after which the job ends when another client waits.
    slice: Option<(Duration, Box<dyn Fn() -> bool>)>,
}

impl CpuShare {
    pub(super) fn new(percent: u32, stop: Arc<AtomicBool>) -> Self {
        let now = processor_time();
        Self {
            percent: percent.clamp(1, 100),
            stop,
            awaited: Arc::default(),
            before: Arc::default(),
            rest: BackgroundWork::default(),
            wanted: Arc::new(|| false),
            since: Instant::now(),
            spent: now,
            began: now,
            earlier: Duration::ZERO,
            budget: None,
            slice: None,
        }
    }

    /// Ends the job with [`Error::Stopped`] once it took `slice` of CPU time and another client waits.
    pub(super) fn yielding(self, slice: Duration, waits: Box<dyn Fn() -> bool>) -> Self {
        Self {
            slice: Some((slice, waits)),
            ..self
        }
    }

    /// Counts the CPU time of earlier attempts against the budget.
    pub(super) fn having_used(self, earlier: Duration) -> Self {
        Self { earlier, ..self }
    }

    /// CPU time of this attempt and of the earlier ones.
    pub(super) fn used(&self) -> Duration {
        self.earlier + processor_time().saturating_sub(self.began)
    }

    /// Adds `more` to the CPU time budget of the job. A job without a budget has no bound.
    pub(super) fn allow(&mut self, more: Duration) {
        let budget = self.budget.unwrap_or_default();
        self.budget = Some(budget.saturating_add(more));
    }

    /// Fails when the job exceeds its budget, or when it must yield to another client.
    fn check_time(&self) -> Result<(), Error> {
        if self.budget.is_none() && self.slice.is_none() {
            return Ok(());
        }
        let used = processor_time().saturating_sub(self.began);
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

    /// For what somebody may wait for.
    pub(super) fn awaited(self, awaited: Arc<AtomicBool>) -> Self {
        Self { awaited, ..self }
    }

    /// For what rests while `rest` is due.
    pub(super) fn resting(self, rest: BackgroundWork) -> Self {
        Self { rest, ..self }
    }

    /// For what goes on all the same while something is `wanted`.
    pub(super) fn unless(self, wanted: Arc<dyn Fn() -> bool>) -> Self {
        Self { wanted, ..self }
    }

    /// For what rests while there are any `before` it.
    pub(super) fn after(self, before: Arc<AtomicUsize>) -> Self {
        Self { before, ..self }
    }
}

impl Pace for CpuShare {
    /// [`Error::Stopped`] also when it rested for so long that what is held is worth less than the room that it takes.
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        self.check_time()?;
        let mut naps = 0;
        let mut stood = Duration::ZERO;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let is_awaited = self.awaited.load(Ordering::Relaxed);
            if self.rest.is_paused() && !is_awaited && !(self.wanted)() {
                let most = match self.rest.is_memory_short() {
                    true => SHORT_OF_MEMORY,
                    false => SHORT,
                };
                if naps >= most {
                    return Err(Error::Stopped);
                }
                self.rest.wait_while_paused(NAP);
                naps += 1;
                continue;
            }
            if self.before.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(REST);
                continue;
            }
            if stood < CROWDED
                && let Some(wait) = self.rest.cpu_wait(is_awaited)
            {
                let wait = wait.min(NAP);
                std::thread::sleep(wait);
                stood += wait;
                continue;
            }
            if self.percent >= 100 {
                return Ok(());
            }
            if is_awaited {
                break;
            }
            let worked = processor_time().saturating_sub(self.spent);
            let due = worked * 100 / self.percent;
            let Some(wait) = due.checked_sub(self.since.elapsed()) else {
                break;
            };
            if wait < Duration::from_millis(5) {
                return Ok(());
            }
            std::thread::sleep(wait.min(NAP));
        }
        // What was not used is not saved up for a burst.
        (self.since, self.spent) = (Instant::now(), processor_time());
        Ok(())
    }
}

fn processor_time() -> Duration {
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
        let rest = BackgroundWork::default();
        rest.set_memory_short(true);
        rest.set_paused(true);
        rest
    }

    fn share(rest: &BackgroundWork) -> CpuShare {
        CpuShare::new(100, Arc::default()).resting(rest.clone())
    }

    #[test]
    fn who_holds_memory_that_is_short_gives_it_back_unless_somebody_waits() {
        let rest = short_of_memory();
        assert!(matches!(share(&rest).pause(0), Err(Error::Stopped)));
        assert_eq!(rest.pauses(), u64::from(SHORT_OF_MEMORY));
        assert!(share(&rest).awaited(Arc::new(true.into())).pause(0).is_ok());
        assert!(share(&rest).unless(Arc::new(|| true)).pause(0).is_ok());
        rest.set_paused(false);
        assert!(share(&rest).pause(0).is_ok());
    }

    #[test]
    fn a_job_ends_when_its_time_is_used_up_or_another_client_waits() {
        let share = || CpuShare::new(100, Arc::default());
        let mut bounded = share();
        bounded.allow(Duration::from_secs(3600));
        assert!(bounded.pause(0).is_ok());
        bounded.budget = Some(Duration::ZERO);
        let over = bounded.pause(0);
        let mut again = share().having_used(Duration::from_secs(3600));
        again.allow(Duration::from_secs(3599));
        assert!(again.pause(0).is_err(), "earlier attempts count");
        assert!(
            matches!(&over, Err(Error::Image(why)) if why.contains("CPU time")),
            "{over:?}"
        );
        let slice = |slice, waits: bool| share().yielding(slice, Box::new(move || waits)).pause(0);
        assert!(matches!(slice(Duration::ZERO, true), Err(Error::Stopped)));
        assert!(slice(Duration::ZERO, false).is_ok());
        assert!(slice(Duration::from_secs(3600), true).is_ok());
    }

    #[test]
    fn who_waits_for_other_work_is_seen_to_rest() {
        let (rest, stop) = (BackgroundWork::default(), Arc::<AtomicBool>::default());
        rest.set_paused(true);
        let (resting, stopping) = (rest.clone(), stop.clone());
        let waits = std::thread::spawn(move || {
            let share = CpuShare::new(100, stopping).resting(resting);
            share.after(Arc::new(1.into())).pause(0).is_err()
        });
        // Generous: it is the first thing that it does.
        let started = Instant::now();
        while rest.pauses() == 0 && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let rests = rest.pauses();
        stop.store(true, Ordering::Relaxed);
        rest.set_paused(false);
        assert!(waits.join().unwrap());
        assert!(rests > 0, "it waited unseen");
    }
}
