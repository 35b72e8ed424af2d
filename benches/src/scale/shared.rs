//! A simulated resource that concurrent jobs share evenly, such as a link or the CPU cores of a
//! DPU.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Seconds, with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Time(pub(super) f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A resource that does one second of work per second. The counter `served` has the seconds of work
/// that each active job has received since the start. A job of `work` seconds that arrives at
/// `served` ends when the counter reaches `served + work`. So one counter serves all jobs, and an
/// event costs the logarithm of the number of jobs.
#[derive(Debug)]
pub(super) struct Shared<T> {
    now: f64,
    served: f64,
    jobs: BinaryHeap<Reverse<(Time, T)>>,
}

impl<T: Ord> Shared<T> {
    pub(super) fn new() -> Self {
        Self {
            now: 0.0,
            served: 0.0,
            jobs: BinaryHeap::new(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn count(&self) -> f64 {
        self.jobs.len() as f64
    }

    /// Adds a job with `work` seconds of work.
    pub(super) fn add(&mut self, now: f64, job: T, work: f64) {
        self.pass(now);
        self.jobs.push(Reverse((Time(self.served + work), job)));
    }

    /// The end of the next job.
    pub(super) fn next(&self) -> Option<f64> {
        let Reverse((Time(end), _)) = self.jobs.peek()?;
        Some(self.now + (end - self.served).max(0.0) * self.count())
    }

    /// Removes the job that ends at `now`.
    pub(super) fn done(&mut self, now: f64) -> Option<T> {
        self.pass(now);
        let Reverse((Time(end), job)) = self.jobs.pop()?;
        // Compensates for rounding errors.
        self.served = self.served.max(end);
        Some(job)
    }

    fn pass(&mut self, now: f64) {
        if !self.jobs.is_empty() {
            self.served += (now - self.now) / self.count();
        }
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(jobs: &[(f64, f64)]) -> Vec<(usize, f64)> {
        let mut shared = Shared::new();
        let (mut ends, mut waiting) = (Vec::new(), jobs.iter().enumerate().peekable());
        loop {
            let come = waiting.peek().map(|(_, job)| job.0);
            match (come, shared.next()) {
                (Some(come), next) if next.is_none_or(|next| come <= next) => {
                    let (nth, (_, work)) = waiting.next().unwrap();
                    shared.add(come, nth, *work);
                }
                (_, Some(next)) => ends.push((shared.done(next).unwrap(), next)),
                (_, None) => return ends,
            }
        }
    }

    #[test]
    fn jobs_share_the_resource_evenly() {
        // One job runs alone for a second, then two jobs run. The first job has one second of work
        // left, which takes two seconds. After that, the second job has one second of work left.
        let got = ends(&[(0.0, 2.0), (1.0, 2.0)]);
        for ((job, end), (wanted, at)) in got.iter().zip([(0, 3.0), (1, 4.0)]) {
            assert!(*job == wanted && (end - at).abs() < 1e-9, "{got:?}");
        }
        let many = ends(&[(5.0, 1.0); 100]);
        assert_eq!(many.len(), 100);
        assert!(many.iter().all(|(_, end)| (end - 105.0).abs() < 1e-6));
    }

    #[test]
    fn idle_time_is_not_saved() {
        let got = ends(&[(0.0, 1.0), (10.0, 1.0)]);
        assert!((got[1].1 - 11.0).abs() < 1e-9, "{got:?}");
    }
}
