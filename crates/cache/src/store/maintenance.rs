//! Maintenance in the background: saves the catalog and the policy state, deletes old partial fills.

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

/// While there are requests, the policy is given time this often,
const TRAIN_EVERY: Duration = Duration::from_secs(1);
/// for so many steps of well under a millisecond: a tenth of a core at the very most.
const TRAIN_STEPS: u32 = 100;

/// Name of the thread, and its label in the panic counter.
const TASK: BackgroundTask = BackgroundTask::CacheMaintenance;

/// Dropping it stops the thread.
pub(crate) struct Maintenance {
    store: Arc<Store>,
    tags: Arc<TagStore>,
    /// `None` once closed.
    catalog: Mutex<Option<Catalog>>,
    policy_state: Mutex<SavedPolicy>,
    stop: Arc<Stop>,
}

/// Where the policy state is saved, and what was saved last.
struct SavedPolicy {
    /// `None` once closed: the folder may be another's by then.
    file: Option<PolicyStateFile>,
    /// The access counter of the last time.
    tick: u64,
    at: Instant,
    /// Whether it failed the last time: that is said once.
    failed: bool,
    /// The memory of the policy when its state was longer than that limit. It is not asked for another, which takes
    /// long under the lock, before it is smaller.
    too_large: Option<(usize, usize)>,
}

impl SavedPolicy {
    /// Whether a policy of so much memory may have a state within the limit.
    fn may_fit(&self, memory: usize, limit: usize) -> bool {
        self.too_large
            .is_none_or(|(then, bound)| memory < then || limit > bound)
    }
}

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// Until it is stopped, or the cache is gone.
fn run(maintenance: &Weak<Maintenance>, stop: &Stop, rest: &BackgroundWork, interval: Duration) {
    let (mut wait, mut written, mut tick) = (interval, Instant::now(), 0);
    loop {
        // Postponed training counts as paused work.
        let resting = rest.is_paused().then(|| rest.count_pause());
        if !stop.wait(wait) {
            return;
        }
        drop(resting);
        let Some(maintenance) = maintenance.upgrade() else {
            return;
        };
        // Does not wake an idle machine.
        wait = match maintenance.train(&mut tick) {
            true => interval.min(TRAIN_EVERY),
            false => interval,
        };
        if written.elapsed() < interval {
            continue;
        }
        written = Instant::now();
        maintenance.expire();
        // Evicts what readers still held when the capacity was lowered.
        maintenance.store.shrink();
        maintenance.flush();
        maintenance.save_when_due();
        maintenance.store.retry_unreadable();
        maintenance.tags.retry_unreadable();
        maintenance.store.pool.trim();
    }
}

impl Maintenance {
    /// Starts the thread. It starts over after a panic.
    pub(crate) fn start(
        store: Arc<Store>,
        tags: Arc<TagStore>,
        (catalog, policy_state): (Catalog, PolicyStateFile),
    ) -> std::io::Result<Arc<Self>> {
        let (interval, stop) = (store.config.flush_interval, Arc::<Stop>::default());
        let rest = store.config.rest.clone();
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
        let panics = rest.panics().clone();
        std::thread::Builder::new()
            .name(TASK.name().into())
            .spawn(move || {
                let work = || run(&weak, &stop, &rest, interval);
                panics.restart(TASK, work, |pause| stop.wait(pause));
            })?;
        Ok(maintenance)
    }

    /// Lets the policy do what it put off, a little at a time, since requests wait for the lock. `false` when there
    /// was no access since `tick`, which is brought up to date.
    fn train(&self, tick: &mut u64) -> bool {
        let rest = &self.store.config.rest;
        for _ in 0..TRAIN_STEPS {
            if rest.is_paused() || rest.cpu_wait(false).is_some() {
                // What is put off is not forgotten, though nobody may ask for anything meanwhile.
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

    /// Deletes partial fills that nobody has continued for long.
    fn expire(&self) {
        let oldest = now().saturating_sub(self.store.config.leftover_age.as_secs());
        let next = || self.store.state.lock().partials.pop_before(oldest);
        for (digest, partial) in std::iter::from_fn(next) {
            self.store.delete(Victim::Partial(digest, partial));
        }
    }

    /// Tells the catalog what has changed. Blocks.
    pub(crate) fn flush(&self) {
        let mut catalog = self.catalog.lock();
        let Some(catalog) = catalog.as_mut() else {
            return;
        };
        let blobs = self.store.state.lock().take_changed();
        let names = self.tags.take_dirty();
        if (!blobs.is_empty() || !names.is_empty()) && !catalog.write(&blobs, &names) {
            let (blobs, names) = (self.store.state.lock().take_all(), self.tags.take_all());
            catalog.write(&blobs, &names);
        }
    }

    fn save_when_due(&self) {
        if self.policy_state.lock().at.elapsed() >= self.store.config.policy_state_interval {
            self.save();
        }
    }

    /// Saves the policy state if there was an access since the last time. Blocks.
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
                        "the policy state is larger than its limit; a restart will go by their last access"
                    );
                } else if whole {
                    saved.too_large = None;
                }
                (saved.tick, saved.failed) = (tick, false);
            }
            Err(error) if !saved.failed => {
                saved.failed = true;
                tracing::warn!(%error, "the policy state cannot be saved; a restart will go by their last access");
            }
            Err(_) => {}
        }
    }

    /// The last flush. Blocks.
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

impl Stop {
    /// Waits for `interval`; `false` when it is over.
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
