//! The bundle server: indexes, packs and plans images in the background, and serves bundles of them.
//!
//! Everything here follows from blobs and can be made anew from them. From the bottom up: `paths` (which files there
//! are), `documents` (manifest and config), `steps` (what is done for an image), `queue` (by whom and when), `plans`
//! (what is kept), `planning` (what is made when it is asked for), `earlier` (what was
//! handed out and is no longer what is made), `serve` (what is handed out).

mod chunk_reuse;
mod config;
mod counters;
mod cpu_share;
mod documents;
mod frame_writer;
mod hot_ranges;
mod image;
mod image_contents;
mod image_job;
mod indexing;
mod job_queue;
mod open_layers;
mod optimize;
mod patches;
mod paths;
mod plan_file;
mod plan_store;
mod planner;
mod prune;
mod reorder;
mod serve;
mod start_order;
mod stream;
mod superseded;
mod toc_store;
mod trace_store;
mod write_budget;

pub use config::{Config, RECENT_MEMORY, WORKER_MEMORY};
pub use counters::Stat;
pub use hot_ranges::HotRanges;
pub use image::{Image, RequestBase, State};
pub use stream::{Bundle, Piece, SentFile, Stream};
pub use trace_store::RecordedTrace;
pub use write_budget::{UnlimitedWrites, WriteBudget};

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;

use pierhead_host::{ClientKey, KeyedLock};
use pierhead_oci::Digest;

use crate::directory::{Directory, ImageRow, Stage};
use crate::pack::{self, FrameIndex as _, Packs};
use counters::Counters;
use image_contents::Files;
use job_queue::Queue;
use paths::Paths;
use pierhead_bundle::api::{Progress, Stage as At};
use pierhead_toc::{Blobs, Error};
use plan_file::PlanFile;
use toc_store::TocStore;

/// Images that are known at once; those that came first are forgotten beyond it. Each takes some hundred bytes.
const MAX_IMAGES: usize = 20_000;

/// Plans that are made at once: each has tables, a frame and its old versions in memory.
const PLANNING: usize = 4;

/// The library; clones share everything. Methods block on the disk unless they say that they do not.
#[derive(Clone)]
pub struct BundleServer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    config: Config,
    blobs: Arc<dyn Blobs>,
    paths: Paths,
    directory: Arc<Directory>,
    packs: Arc<Packs>,
    files: Files,
    tables: TocStore,
    images: Mutex<HashMap<Digest, Row>>,
    queue: Mutex<Queue>,
    wake: Condvar,
    stop: Arc<AtomicBool>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    open_plans: Mutex<Vec<(pierhead_toc::FileDigest, Arc<PlanFile>)>>,
    /// Plans, by the client whose request made them.
    owned: Mutex<plan_store::Owned>,
    /// Serializes the updates of traces: each reads, changes and writes a file.
    trace_lock: Mutex<()>,
    /// Held by [`BundleServer::prune`].
    pruning: Mutex<()>,
    /// Plans that a request or a response may still use.
    alive: Mutex<Vec<Weak<PlanFile>>>,
    /// Plans that are being made, by what is asked.
    planning: KeyedLock<pierhead_toc::FileDigest>,
    /// Pairs that are being prepared while somebody waits. Taken after `planning`.
    pairing: KeyedLock<pierhead_toc::FileDigest>,
    /// Indexing holds it shared, because no plan names the new packs yet.
    packing: RwLock<()>,
    /// Number of times that an image was indexed. Changes only while `packing` is held.
    indexing_runs: AtomicU64,
    /// Number of images in indexing. Low-priority work pauses while it is not 0.
    busy: Arc<AtomicUsize>,
    /// Upper bound of the bytes of plans on disk. Deleting a single plan does not lower it.
    plans: AtomicU64,
    counters: Counters,
    meter: write_budget::WriteMeter,
    /// Whether unused packs still have to be deleted. Deletion waits while an image is being packed.
    has_unused_packs: AtomicBool,
    /// Number of evicted packs at the last cleanup of record positions.
    tidied: AtomicU64,
}

/// As an [`ImageRow`], in memory.
struct Row {
    row: ImageRow,
    /// While it is being worked on.
    progress: Option<Progress>,
    /// Whether somebody waits for it.
    awaited: Arc<AtomicBool>,
    /// The client that pulled the image first.
    client: ClientKey,
}

impl Row {
    fn new(row: ImageRow, progress: Option<Progress>, client: ClientKey) -> Self {
        let awaited = Arc::default();
        Self {
            row,
            progress,
            awaited,
            client,
        }
    }
}

impl BundleServer {
    /// Opens what is there, finds again what is missing, and begins to work.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(config: Config, blobs: Arc<dyn Blobs>) -> Result<Self, Error> {
        let paths = Paths::open(&config.data)?;
        let packs = Packs::open(pack::PackConfig::new(
            Paths::packs(&config.data),
            config.pack_budget,
        ))?;
        if packs.stat().packs == 0 {
            // Where packs were deleted their numbers begin again, and a plan would name another image's records.
            paths.shrink_plans(0)?;
        }
        let (directory, damage) = Directory::open(&Paths::directory(&config.data))?;
        if let Some(what) = damage {
            tracing::warn!(what, "the directory cannot be used; it is made anew");
        }
        if directory.is_new() {
            places(&packs, &directory, &mut || Ok(()))?;
        }
        let mut images = HashMap::new();
        let mut queue = Queue::default();
        let (mut waiting, mut fast) = (Vec::new(), Vec::new());
        directory.images(|manifest, row| {
            match row.stage {
                Stage::Waiting => waiting.push((row.came, manifest)),
                Stage::Fast(_) => fast.push((row.came, manifest)),
                _ => {}
            }
            images.insert(manifest, Row::new(row, None, ClientKey::OPERATOR));
        })?;
        waiting.sort();
        for (_, manifest) in waiting {
            queue.image(manifest, ClientKey::OPERATOR);
        }
        fast.sort();
        for (_, manifest) in fast {
            queue.optimize(manifest);
        }
        let (_, plans) = paths.bytes();
        let (directory, packs) = (Arc::new(directory), Arc::new(packs));
        let meter = write_budget::WriteMeter::new(config.write_budget.clone());
        let server = Self {
            inner: Arc::new(Inner {
                config,
                blobs,
                paths,
                files: Files::new(&packs, &directory),
                tables: TocStore::default(),
                directory,
                packs,
                images: Mutex::new(images),
                queue: Mutex::new(queue),
                wake: Condvar::new(),
                stop: Arc::default(),
                workers: Mutex::default(),
                open_plans: Mutex::default(),
                owned: Mutex::default(),
                trace_lock: Mutex::default(),
                pruning: Mutex::default(),
                alive: Mutex::default(),
                packing: RwLock::default(),
                indexing_runs: AtomicU64::default(),
                busy: Arc::default(),
                planning: KeyedLock::with_max_holders(PLANNING),
                pairing: KeyedLock::with_max_holders(PLANNING),
                plans: AtomicU64::new(plans),
                counters: Counters::default(),
                meter,
                has_unused_packs: AtomicBool::default(),
                tidied: AtomicU64::new(0),
            }),
        };
        job_queue::start(&server.inner)?;
        Ok(server)
    }

    /// As [`Self::offer_for`], on behalf of the operator of this host.
    pub fn offer(&self, image: Image) {
        self.offer_for(ClientKey::OPERATOR, image);
    }

    /// Queues an image that `client` pulled for indexing and packing, unless it is ready. Does not block.
    pub fn offer_for(&self, client: ClientKey, image: Image) {
        let inner = &self.inner;
        let mut images = lock(&inner.images);
        match images.get(&image.manifest) {
            Some(row) if row.row.stage != Stage::Waiting || row.progress.is_some() => return,
            _ => {}
        }
        if images.len() >= MAX_IMAGES {
            let oldest = images.iter().min_by_key(|(_, row)| row.row.came);
            let oldest = oldest.map(|(manifest, _)| *manifest);
            if let Some(oldest) = oldest {
                images.remove(&oldest);
            }
        }
        let came = images.values().map(|row| row.row.came).max().unwrap_or(0) + 1;
        let row = ImageRow {
            repository: image.repository,
            came,
            blobs: Vec::new(),
            stage: Stage::Waiting,
        };
        let progress = Progress {
            stage: At::Wait,
            done: 0,
            total: 0,
        };
        images.insert(image.manifest, Row::new(row, Some(progress), client));
        drop(images);
        lock(&inner.queue).image(image.manifest, client);
        inner.wake.notify_all();
    }

    /// As [`Self::awaited_by`], for the operator of this host.
    pub fn awaited(&self, manifest: &Digest) -> State {
        self.awaited_by(ClientKey::OPERATOR, manifest)
    }

    /// As [`Self::state`], for a client that waits. The image goes before all images without a waiting client and gets a
    /// whole core; clients take turns. Returns `Refused` when indexing has not started and [`Config::write_budget`] allows no
    /// more writes. Does not block.
    pub fn awaited_by(&self, client: ClientKey, manifest: &Digest) -> State {
        // One lock for both: one who is overlooked would never be seen again.
        let images = lock(&self.inner.images);
        let row = images.get(manifest);
        let state = state(row);
        // Whoever asks does without, rather than wait for another day.
        if matches!(state, State::Working(progress) if progress.stage == At::Wait)
            && !self.inner.meter.may_write(true)
        {
            return State::Refused(write_budget::OUT_OF_BUDGET.to_owned());
        }
        if matches!(state, State::Working(_))
            && let Some(row) = row
        {
            row.awaited.store(true, Ordering::Relaxed);
            lock(&self.inner.queue).first(manifest, client);
        }
        state
    }

    /// How far an image is. Does not block.
    pub fn state(&self, manifest: &Digest) -> State {
        state(lock(&self.inner.images).get(manifest))
    }

    /// Config and layers of an image that is ready. Does not block.
    pub fn blobs(&self, manifest: &Digest) -> Option<Vec<Digest>> {
        let images = lock(&self.inner.images);
        let row = images.get(manifest)?;
        (row.row.stage.is_ready()).then(|| row.row.blobs.clone())
    }

    /// Ends the work: what is under way is given up, and goes on at the next start.
    pub fn close(&self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        self.inner.wake.notify_all();
        let workers = std::mem::take(&mut *lock(&self.inner.workers));
        for worker in workers {
            // Its panic was told already.
            let _ = worker.join();
        }
        if let Err(error) = self.inner.directory.flush() {
            tracing::warn!(%error, "the directory was not written");
        }
    }
}

fn state(row: Option<&Row>) -> State {
    let Some(row) = row else {
        return State::Unknown;
    };
    match &row.row.stage {
        Stage::Ready | Stage::Fast(_) => State::Ready,
        Stage::Refused(why) => State::Refused(why.clone()),
        Stage::Waiting => State::Working(row.progress.unwrap_or(Progress {
            stage: At::Wait,
            done: 0,
            total: 0,
        })),
    }
}

/// Finds again where contents are packed.
fn places(
    packs: &Packs,
    directory: &Directory,
    pause: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    packs.scan(&mut |frame| {
        pause()?;
        // Ranges of a large content lie in order of their offsets, more or less: found again by the next packing.
        match &frame.members[..] {
            // Better ones come first.
            members
                if pack::is_fast(frame.place.pack)
                    && !directory.get(&members[0].content)?.is_empty() =>
            {
                Ok(())
            }
            members if pack::are_whole(members) => members
                .iter()
                .try_for_each(|part| directory.put(&part.content, &[frame.place])),
            _ => Ok(()),
        }
    })
}

/// A poisoned lock guards values that are whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
