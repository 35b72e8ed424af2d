//! The maintenance thread of the cache: saves the catalog and the policy state, trains the policy,
//! and deletes old partial fills (bytes of interrupted fills).

use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pierhead_host::{BackgroundTask, BackgroundWork};

use crate::clock::now;
use crate::store::Store;
use crate::store::catalog::Catalog;
use crate::store::policy_state::{PolicyState, PolicyStateFile, limit};
use crate::store::state::Victim;
use crate::store::tag_store::TagStore;

/// Interval at which the policy is trained while requests arrive.
const TRAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of training steps per interval. A step takes well under 1 ms, so training takes
/// at most 10 % of a core.
const MAX_TRAIN_STEPS: u32 = 100;

/// Name of the maintenance thread, which is also its label in the panic counter.
const TASK: BackgroundTask = BackgroundTask::CacheMaintenance;

/// The state of the maintenance thread. Dropping this value stops the thread.
pub(crate) struct Maintenance {
    store: Arc<Store>,
    tags: Arc<TagStore>,
    /// The open catalog. `None` once the cache is closed.
    catalog: Mutex<Option<Catalog>>,
    policy_state: Mutex<SavedPolicy>,
    stop: Arc<StopSignal>,
}

/// The file of the policy state, and facts about the last save.
struct SavedPolicy {
    /// The file. `None` once the cache is closed, because another process may then own the folder.
    file: Option<PolicyStateFile>,
    /// Value of the access counter at the last save.
    tick: u64,
    at: Instant,
    /// Whether the last save failed. The first of several failures in a row is logged.
    failed: bool,
    /// Set when the policy state exceeded the limit of its file: memory of the policy, and the
    /// limit. Encoding the state holds the lock for a long time, so the save is not tried again
    /// until the policy is smaller or the limit is higher.
    too_large: Option<(usize, usize)>,
}

impl SavedPolicy {
    /// Whether the state of a policy that uses this memory may fit into the limit of the file.
    fn may_fit(&self, memory: usize, limit: usize) -> bool {
        self.too_large
            .is_none_or(|(then, bound)| memory < then || limit > bound)
    }
}

#[derive(Default)]
struct StopSignal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// The loop of the maintenance thread. The loop runs until the thread is stopped or the cache is
/// dropped.
fn run(
    maintenance: &Weak<Maintenance>,
    stop: &StopSignal,
    background: &BackgroundWork,
    interval: Duration,
) {
    let (mut wait, mut written, mut tick) = (interval, Instant::now(), 0);
    loop {
        // While background work is paused, training that is due is counted as paused work in the
        // metrics.
        let pause = background.is_paused().then(|| background.count_pause());
        if !stop.wait(wait) {
            return;
        }
        drop(pause);
        let Some(maintenance) = maintenance.upgrade() else {
            return;
        };
        // On an idle machine, the thread wakes up only once per interval, to save power.
        wait = match maintenance.train(&mut tick) {
            true => interval.min(TRAIN_INTERVAL),
            false => interval,
        };
        if written.elapsed() < interval {
            continue;
        }
        written = Instant::now();
        maintenance.expire();
        // Evicts blobs that readers had open when the capacity was reduced.
        maintenance.store.shrink();
        maintenance.flush();
        maintenance.save_when_due();
        maintenance.store.retry_unreadable();
        maintenance.tags.retry_unreadable();
        maintenance.store.pool.trim();
    }
}

impl Maintenance {
    /// Starts the maintenance thread. After a panic, the thread continues from the start.
    pub(crate) fn start(
        store: Arc<Store>,
        tags: Arc<TagStore>,
        (catalog, policy_state): (Catalog, PolicyStateFile),
    ) -> std::io::Result<Arc<Self>> {
        let (interval, stop) = (store.config.flush_interval, Arc::<StopSignal>::default());
        let background = store.config.background.clone();
        let maintenance = Arc::new(Self {
            store,
            tags,
            catalog: Mutex::new(Some(catalog)),
            policy_state: Mutex::new(SavedPolicy {
                file: Some(policy_state),
                tick: 0,
                at: Instant::now(),
                failed: false,
                too_large: None,
            }),
            stop: stop.clone(),
        });
        let weak = Arc::downgrade(&maintenance);
        let panics = background.panics().clone();
        std::thread::Builder::new()
            .name(TASK.name().into())
            .spawn(move || {
                let work = || run(&weak, &stop, &background, interval);
                panics.restart(TASK, work, |pause| stop.wait(pause));
            })?;
        Ok(maintenance)
    }

    /// Runs training that the policy has postponed. Trains in small steps, because requests wait
    /// for the lock during a step. Returns `false` when there was no access since `tick`. Updates
    /// `tick`.
    fn train(&self, tick: &mut u64) -> bool {
        let background = &self.store.config.background;
        for _ in 0..MAX_TRAIN_STEPS {
            if background.is_paused() || background.cpu_wait(false).is_some() {
                // While background work is paused, training stays due, even without further
                // requests.
                return true;
            }
            if !self.store.state.lock().ranking.train() {
                break;
            }
            std::thread::yield_now();
        }
        let now = self.store.state.lock().tick_after();
        std::mem::replace(tick, now) != now
    }

    /// Deletes partial fills that are older than the configured age.
    fn expire(&self) {
        let oldest = now().saturating_sub(self.store.config.partial_ttl.as_secs());
        let next = || self.store.state.lock().partials.pop_before(oldest);
        for (digest, partial) in std::iter::from_fn(next) {
            self.store.delete(Victim::Partial(digest, partial));
        }
    }

    /// Writes changes of blobs and tags to the catalog. Blocks.
    pub(crate) fn flush(&self) {
        let mut catalog = self.catalog.lock();
        let Some(catalog) = catalog.as_mut() else {
            return;
        };
        let blobs = self.store.state.lock().take_changed();
        let tags = self.tags.take_dirty();
        if (!blobs.is_empty() || !tags.is_empty()) && !catalog.write(&blobs, &tags) {
            let (blobs, tags) = (self.store.state.lock().take_all(), self.tags.take_all());
            catalog.write(&blobs, &tags);
        }
    }

    fn save_when_due(&self) {
        if self.policy_state.lock().at.elapsed() >= self.store.config.policy_state_interval {
            self.save();
        }
    }

    /// Saves the policy state if there was an access since the last save. Blocks.
    fn save(&self) {
        let mut saved = self.policy_state.lock();
        let saved = &mut *saved;
        let Some(file) = &saved.file else { return };
        saved.at = Instant::now();
        let (policy_state, memory, limit, whole) = {
            let mut state = self.store.state.lock();
            if state.tick_after() == saved.tick {
                return;
            }
            let (memory, limit) = (state.ranking.policy.memory(), limit(state.capacity));
            let whole = saved.may_fit(memory, limit);
            (
                PolicyState::of(&mut state, now(), whole),
                memory,
                limit,
                whole,
            )
        };
        let tick = policy_state.tick + 1;
        match file.write(policy_state, limit) {
            Ok(fits) => {
                if !fits {
                    saved.too_large = Some((memory, limit));
                    tracing::warn!(
                        limit,
                        "the policy state exceeds its limit and is not saved; after a restart, blobs are ranked by their last access"
                    );
                } else if whole {
                    saved.too_large = None;
                }
                (saved.tick, saved.failed) = (tick, false);
            }
            Err(error) if !saved.failed => {
                saved.failed = true;
                tracing::warn!(%error, "cannot save the policy state; after a restart, blobs are ranked by their last access");
            }
            Err(_) => {}
        }
    }

    /// Saves catalog and policy state a last time, and stops the thread. Blocks.
    pub(crate) fn close(&self) {
        self.flush();
        self.save();
        self.catalog.lock().take();
        self.policy_state.lock().file.take();
        self.stop.stop();
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

impl StopSignal {
    /// Waits for `interval`. Returns `false` when the thread must stop.
    fn wait(&self, interval: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.changed
            .wait_while_for(&mut stopped, |stopped| !*stopped, interval);
        !*stopped
    }

    fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}
