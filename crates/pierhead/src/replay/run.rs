//! Many replays of one trace, in threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use pierhead_eviction::replay::{Tally, replay};
use pierhead_eviction::trace::Held;
use pierhead_eviction::{Future, NamedAdmission, Policy as _, Simulated};

use super::{CacheSize, Player};
use crate::cli::replay::Rules;
use crate::progress::{Progress, Unit};

/// Every player at every size.
pub(crate) struct Plan<'a> {
    pub(crate) held: &'a Held,
    pub(crate) players: &'a [Player],
    pub(crate) sizes: &'a [CacheSize],
    pub(crate) seed: u64,
    pub(crate) rules: Rules,
    pub(crate) admission: NamedAdmission,
    pub(crate) save: Option<&'a Path>,
    pub(crate) restore: Option<&'a Path>,
}

/// What came of one replay.
pub(crate) struct Figures {
    pub(crate) player: Player,
    pub(crate) size: CacheSize,
    pub(crate) capacity: u64,
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
    /// The most that the policy took, in bytes.
    pub(crate) memory: usize,
}

/// Requests between two looks at memory and progress.
const STRETCH: usize = 1 << 16;

impl Plan<'_> {
    /// Runs `jobs` replays at a time; the figures come in the order of the sizes and, for each, of the
    /// players.
    pub(crate) fn run(&self, jobs: usize, progress: bool) -> anyhow::Result<Vec<Figures>> {
        let cells: Vec<(&CacheSize, Player)> = self
            .sizes
            .iter()
            .flat_map(|size| self.players.iter().map(move |player| (size, *player)))
            .collect();
        let bar = self.bar(cells.len(), progress);
        let future = OnceLock::new();
        let next = AtomicUsize::new(0);
        let done: Vec<Mutex<Option<anyhow::Result<Figures>>>> =
            cells.iter().map(|_| Mutex::default()).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((size, player)) = cells.get(at) else {
                    break;
                };
                let figures = self.cell(size, *player, &future, &bar);
                *done[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(figures);
            }
        };
        thread::scope(|scope| {
            for _ in 1..jobs.min(cells.len()) {
                scope.spawn(work);
            }
            work();
        });
        bar.finish();
        done.into_iter()
            .map(|cell| {
                let figures = cell.into_inner().unwrap_or_else(PoisonError::into_inner);
                figures.unwrap_or_else(|| Err(anyhow!("a replay did not end")))
            })
            .collect()
    }

    fn cell(
        &self,
        size: &CacheSize,
        player: Player,
        future: &OnceLock<Future>,
        bar: &Progress,
    ) -> anyhow::Result<Figures> {
        let capacity = size.resolve(self.held.footprint());
        let foreseen = || future.get_or_init(|| self.held.future()).clone();
        let mut policy = player.build(capacity, self.seed, self.rules, foreseen)?;
        // What foresees knows its place in one trace, and a state of it fits no other.
        let state = |folder: &Path| -> Option<PathBuf> {
            (!player.foresees()).then(|| folder.join(format!("{player}-{capacity}.state")))
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
        let mut cache =
            Simulated::new(policy, capacity).admitting(self.admission.build(capacity, self.seed));
        if player.enters_first(self.rules) {
            cache = cache.entering_first();
        }
        let mut tally = Tally::default();
        let mut memory = cache.policy().memory();
        let mut took = Duration::ZERO;
        let mut accesses = self.held.iter();
        while accesses.len() > 0 {
            let before = Instant::now();
            replay(accesses.by_ref().take(STRETCH), &mut cache, &mut tally);
            took += before.elapsed();
            memory = memory.max(cache.policy().memory());
            bar.more(STRETCH as u64);
        }
        if let Some(path) = self.save.and_then(state) {
            std::fs::write(&path, cache.policy().save())
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(Figures {
            player,
            size: size.clone(),
            capacity,
            tally,
            took,
            memory,
        })
    }

    /// It goes to standard error, and shows only if that is a terminal.
    fn bar(&self, cells: usize, progress: bool) -> Progress {
        let stretches = self.held.len().div_ceil(STRETCH) * cells;
        let bar = Progress::new(!progress);
        bar.begin("", Unit::Requests, (stretches * STRETCH) as u64);
        bar
    }
}
