//! Replays one trace on each policy at each cache size, in parallel threads.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use pierhead_eviction::{AdmissionName, SimulatedCache};
use pierhead_replay::policy::ParameterSet;
use pierhead_replay::tally::{Tally, replay};
use pierhead_replay::trace::RequestTrace;
use pierhead_replay::{Future, SimulatedPolicy};

use super::CacheSize;

/// The replays of one trace: each policy at each cache size.
pub(crate) struct Plan<'a> {
    pub(crate) trace: &'a RequestTrace,
    pub(crate) policies: &'a [SimulatedPolicy],
    pub(crate) sizes: &'a [CacheSize],
    pub(crate) seed: u64,
    pub(crate) parameters: ParameterSet,
    pub(crate) admission: AdmissionName,
    pub(crate) save: Option<&'a Path>,
    pub(crate) restore: Option<&'a Path>,
}

/// Result of one replay.
pub(crate) struct ReplayResult {
    pub(crate) policy: SimulatedPolicy,
    pub(crate) size: CacheSize,
    pub(crate) capacity: u64,
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
    /// Maximum memory that the policy used, in bytes.
    pub(crate) memory: usize,
}

/// Number of requests after which a replay updates the memory maximum and the progress bar.
const STRETCH: usize = 1 << 16;

impl Plan<'_> {
    /// Runs `jobs` replays in parallel. The results are sorted by cache size, and then by policy.
    pub(crate) fn run(&self, jobs: usize, progress: bool) -> anyhow::Result<Vec<ReplayResult>> {
        let cells: Vec<(&CacheSize, SimulatedPolicy)> = self
            .sizes
            .iter()
            .flat_map(|size| self.policies.iter().map(move |policy| (size, *policy)))
            .collect();
        let bar = self.bar(cells.len(), progress);
        let future = OnceLock::new();
        let next = AtomicUsize::new(0);
        let done: Vec<Mutex<Option<anyhow::Result<ReplayResult>>>> =
            cells.iter().map(|_| Mutex::default()).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((size, policy)) = cells.get(at) else {
                    break;
                };
                let result = self.cell(size, *policy, &future, &bar);
                *done[at].lock() = Some(result);
            }
        };
        thread::scope(|scope| {
            for _ in 1..jobs.min(cells.len()) {
                scope.spawn(work);
            }
            work();
        });
        bar.finish_and_clear();
        done.into_iter()
            .map(|cell| {
                let result = cell.into_inner();
                result.unwrap_or_else(|| Err(anyhow!("a replay did not end")))
            })
            .collect()
    }

    fn cell(
        &self,
        size: &CacheSize,
        simulated: SimulatedPolicy,
        future: &OnceLock<Future>,
        bar: &ProgressBar,
    ) -> anyhow::Result<ReplayResult> {
        let capacity = size.resolve(self.trace.footprint());
        let foreseen = || future.get_or_init(|| self.trace.future()).clone();
        let mut policy = simulated.build(capacity, self.seed, self.parameters, foreseen)?;
        // The state of a policy that knows the future fits only one trace, so such a state is
        // neither saved nor restored.
        let state = |folder: &Path| -> Option<PathBuf> {
            (!simulated.is_clairvoyant())
                .then(|| folder.join(format!("{simulated}-{capacity}.state")))
        };
        if let Some(path) = self.restore.and_then(state) {
            std::fs::read(&path)
                .map_err(anyhow::Error::from)
                .and_then(|saved| policy.restore(&saved).map_err(anyhow::Error::from))
                .with_context(|| {
                    format!(
                        "{}: replay without --restore-state, or save anew with --save-state",
                        path.display()
                    )
                })?;
        }
        let mut cache = SimulatedCache::new(policy, capacity)
            .admitting(self.admission.build(capacity, self.seed));
        if simulated.inserts_first(self.parameters) {
            cache = cache.inserting_first();
        }
        let mut tally = Tally::default();
        let mut memory = cache.policy().memory();
        let mut took = Duration::ZERO;
        let mut accesses = self.trace.iter();
        while accesses.len() > 0 {
            let before = Instant::now();
            replay(accesses.by_ref().take(STRETCH), &mut cache, &mut tally);
            took += before.elapsed();
            memory = memory.max(cache.policy().memory());
            bar.inc(STRETCH as u64);
        }
        if let Some(path) = self.save.and_then(state) {
            std::fs::write(&path, cache.policy().save())
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(ReplayResult {
            policy: simulated,
            size: size.clone(),
            capacity,
            tally,
            took,
            memory,
        })
    }

    /// Creates the progress bar, which is drawn on standard error. The bar is hidden if standard
    /// error is not a terminal.
    fn bar(&self, cells: usize, progress: bool) -> ProgressBar {
        let stretches = self.trace.len().div_ceil(STRETCH) * cells;
        let target = match progress {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some((stretches * STRETCH) as u64), target);
        let style = ProgressStyle::with_template(BAR);
        // A test checks that the template is valid.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    }
}

/// Template of the progress bar, at most 80 columns.
const BAR: &str = "{bar:16} {percent:>3} % of the requests, {eta} left";

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_of_the_bar_is_valid() {
        assert!(indicatif::ProgressStyle::with_template(super::BAR).is_ok());
    }
}
