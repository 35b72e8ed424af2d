//! The bundle server: indexes, packs and plans images in the background, and serves bundles of them.
//!
//! Everything here follows from blobs and can be made anew from them. From the bottom up: `shelf` (which files there
//! are), `documents` (manifest and config), `steps` (what is done for an image), `queue` (by whom and when), `plans`
//! (what is kept), `planning` (what is made when it is asked for), `earlier` (what was
//! handed out and is no longer what is made), `serve` (what is handed out).

mod chunked;
mod documents;
mod earlier;
mod figures;
mod files;
mod hot;
mod improve;
mod kept;
mod layers;
mod order;
mod out;
mod outcome;
mod pace;
mod pairs;
mod planning;
mod plans;
mod prune;
mod queue;
mod serve;
mod shelf;
mod start_order;
mod steps;
mod stream;
mod tables;
mod traces;
mod wear;

pub use figures::Stat;
pub use hot::Touched;
pub use stream::{Bundle, Opened, Piece, Stream};
pub use traces::Noted;
pub use wear::{Unworn, Wear};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use pierhead_host::{BackgroundWork, ClientKey, KeyedLock};
use pierhead_oci::Digest;

use crate::directory::{Directory, ImageRow, Stage};
use crate::pack::{self, Known as _, Packs};
use figures::Figures;
use files::Files;
use kept::Kept;
use pierhead_bundle::api::{Progress, Stage as At};
use pierhead_toc::layer::Limits;
use pierhead_toc::{Blobs, Error};
use queue::Queue;
use shelf::Shelf;
use tables::Tables;

/// Bytes that each of [`Config::workers`] takes at most: 60 MB (a layer, a table, frames) while it makes an image ready, and 150 MB while it
/// makes patches or packs better.
pub const WORKER_MEMORY: u64 = 60_000_000 + 150_000_000;
/// Bytes of decoded frames that are kept for the next read, of all files that are being read.
pub const RECENT_MEMORY: usize = 32 << 20;

/// CPU time after which a client's image yields to another client's. Most images are ready sooner.
const TURN: Duration = Duration::from_secs(3);
/// Number of interruptions after which an image waits for all others. The time doubles only until then, so 12 s is the longest.
const MAX_YIELDS: u32 = 3;

/// Bytes of tables in memory: a dozen of 84 000 files each.
const TABLES_MEMORY: u64 = 64 << 20;

/// What a library may take of the machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder: `index/`, `packs/`, `plans/` and `directory/` in it are the library's.
    pub data: PathBuf,
    /// Bytes of packs on disk.
    pub packs: u64,
    /// Bytes of plans on disk, with the patches in them.
    pub plans: u64,
    /// Memory for the tables of base images, for all plans in progress together, in bytes. A base image whose table does
    /// not fit counts as unknown. The table of the wanted image is not counted.
    pub tables: u64,
    /// Threads that make images ready, and as many for what can wait, which rest meanwhile. A pair takes [`WORKER_MEMORY`].
    pub workers: usize,
    /// CPU time of indexing one image before another client's image interrupts it. It doubles with the first two
    /// interruptions, since an interrupted image starts over with the layer in progress. After three interruptions the
    /// image waits for all others.
    pub turn: Duration,
    /// Percent of a core that each of them takes at most, unless somebody waits for what it does.
    pub share: u32,
    /// Level of zstd that packs have in the end.
    pub level: i32,
    /// Level of zstd that they have at first.
    pub quick: i32,
    /// Older versions of a repository that patches to a new one are made from.
    pub pairs: usize,
    /// Bytes that are read and compressed for one update while somebody waits; beyond it the answer is chunks. At
    /// level 3, against as many bytes, the default takes about a second and a half.
    pub waiting: u64,
    /// Bytes that are decoded and compressed again for one answer out of chunks, as long as it is no longer than the
    /// changed files: the default takes about a second.
    pub apart: u64,
    /// How long a bundle that was handed out can be gone on with after its last use, once there is another one.
    pub earlier: Duration,
    /// What a layer may ask for.
    pub limits: Limits,
    /// What nobody waits for rests while this is due.
    pub rest: BackgroundWork,
    /// Who is told what is written, and says when it is enough for now.
    pub wear: Arc<dyn Wear>,
}

impl Config {
    /// Defaults for all but the folder and the bytes.
    pub fn new(data: impl Into<PathBuf>, packs: u64, plans: u64) -> Self {
        /// Half of a core leaves the other half to clients on the smallest machines.
        const WORKER_CPU_PERCENT: u32 = 50;
        /// About a second of one core.
        const MAX_RECOMPRESSED_BYTES: u64 = 256 << 20;
        /// Enough for a worker to come back after a restart.
        const RESUME_WINDOW: Duration = Duration::from_secs(15 * 60);
        Self {
            data: data.into(),
            packs,
            plans,
            tables: TABLES_MEMORY,
            workers: 1,
            turn: TURN,
            share: WORKER_CPU_PERCENT,
            level: pack::Settings::default().level,
            quick: QUICK,
            pairs: 2,
            waiting: 96 << 20,
            apart: MAX_RECOMPRESSED_BYTES,
            earlier: RESUME_WINDOW,
            limits: Limits::default(),
            rest: BackgroundWork::default(),
            wear: Arc::new(Unworn),
        }
    }
}

impl Config {
    /// CPU time before this attempt can be interrupted. It doubles with each of the first interruptions, and later with each
    /// long attempt.
    fn slice(&self, image: &queue::Waiting) -> Duration {
        let doublings = match image.is_long {
            true => (MAX_YIELDS - 1).saturating_add(image.long_tries),
            false => image.yields.min(MAX_YIELDS - 1),
        };
        self.turn.saturating_mul(2_u32.saturating_pow(doublings))
    }
}

/// An image that came to be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its manifest; of an index, one of its children.
    pub manifest: Digest,
    /// `registry/repository`: images of one repository are updates of each other.
    pub repository: String,
}

/// How far an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody offered it.
    Unknown,
    /// It is being worked on, or waits for that.
    Working(Progress),
    /// It can be bundled.
    Ready,
    /// It never can be, and why: for people.
    Refused(String),
}

/// An image that a worker says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Have {
    /// Its manifest.
    pub manifest: Digest,
    /// Whether it may be used: it is known here, and whoever asks may pull it.
    pub is_known: bool,
    /// Whether the worker can rebuild its layers, and has so all of its contents.
    pub has_layers: bool,
}

/// Images that are known at once; those that came first are forgotten beyond it. Each takes some hundred bytes.
const MAX_IMAGES: usize = 20_000;

/// Plans that are made at once: each has tables, a frame and its old versions in memory.
const PLANNING: usize = 4;

/// 100 MB/s a core and more, where level 18 makes 3: `docs/formats/disk.md` has the figures.
const QUICK: i32 = 3;

/// The library; clones share everything. Methods block on the disk unless they say that they do not.
#[derive(Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    config: Config,
    blobs: Arc<dyn Blobs>,
    shelf: Shelf,
    directory: Arc<Directory>,
    packs: Arc<Packs>,
    files: Files,
    tables: Tables,
    images: Mutex<HashMap<Digest, Row>>,
    queue: Mutex<Queue>,
    wake: Condvar,
    stop: Arc<AtomicBool>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    kept: Mutex<Vec<(pierhead_toc::FileDigest, Arc<Kept>)>>,
    /// Plans, by the client whose request made them.
    owned: Mutex<plans::Owned>,
    /// Serializes the updates of traces: each reads, changes and writes a file.
    noting: Mutex<()>,
    /// Held by [`Library::prune`].
    pruning: Mutex<()>,
    /// Plans that a request or a response may still use.
    alive: Mutex<Vec<Weak<Kept>>>,
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
    figures: Figures,
    told: wear::Told,
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

impl Library {
    /// Opens what is there, finds again what is missing, and begins to work.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(config: Config, blobs: Arc<dyn Blobs>) -> Result<Self, Error> {
        let shelf = Shelf::open(&config.data)?;
        let packs = Packs::open(pack::Config::new(Shelf::packs(&config.data), config.packs))?;
        if packs.stat().packs == 0 {
            // Where packs were deleted their numbers begin again, and a plan would name another image's records.
            shelf.shrink_plans(0)?;
        }
        let (directory, damage) = Directory::open(&Shelf::directory(&config.data))?;
        if let Some(what) = damage {
            tracing::warn!(what, "the directory cannot be used; it is made anew");
        }
        if directory.is_new() {
            places(&packs, &directory, &mut || Ok(()))?;
        }
        let mut images = HashMap::new();
        let mut queue = Queue::default();
        let (mut waiting, mut quick) = (Vec::new(), Vec::new());
        directory.images(|manifest, row| {
            match row.stage {
                Stage::Waiting => waiting.push((row.came, manifest)),
                Stage::Quick(_) => quick.push((row.came, manifest)),
                _ => {}
            }
            images.insert(manifest, Row::new(row, None, ClientKey::OPERATOR));
        })?;
        waiting.sort();
        for (_, manifest) in waiting {
            queue.image(manifest, ClientKey::OPERATOR);
        }
        quick.sort();
        for (_, manifest) in quick {
            queue.improve(manifest);
        }
        let (_, plans) = shelf.bytes();
        let (directory, packs) = (Arc::new(directory), Arc::new(packs));
        let library = Self {
            inner: Arc::new(Inner {
                config,
                blobs,
                shelf,
                files: Files::new(&packs, &directory),
                tables: Tables::default(),
                directory,
                packs,
                images: Mutex::new(images),
                queue: Mutex::new(queue),
                wake: Condvar::new(),
                stop: Arc::default(),
                workers: Mutex::default(),
                kept: Mutex::default(),
                owned: Mutex::default(),
                noting: Mutex::default(),
                pruning: Mutex::default(),
                alive: Mutex::default(),
                packing: RwLock::default(),
                indexing_runs: AtomicU64::default(),
                busy: Arc::default(),
                planning: KeyedLock::with_max_holders(PLANNING),
                pairing: KeyedLock::with_max_holders(PLANNING),
                plans: AtomicU64::new(plans),
                figures: Figures::default(),
                told: wear::Told::default(),
                has_unused_packs: AtomicBool::default(),
                tidied: AtomicU64::new(0),
            }),
        };
        queue::start(&library.inner)?;
        Ok(library)
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
    /// whole core; clients take turns. Returns `Refused` when indexing has not started and [`Config::wear`] allows no
    /// more writes. Does not block.
    pub fn awaited_by(&self, client: ClientKey, manifest: &Digest) -> State {
        // One lock for both: one who is overlooked would never be seen again.
        let images = lock(&self.inner.images);
        let row = images.get(manifest);
        let state = state(row);
        // Whoever asks does without, rather than wait for another day.
        if matches!(state, State::Working(progress) if progress.stage == At::Wait)
            && !self.inner.may_write(true)
        {
            return State::Refused(wear::WHY.to_owned());
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
        Stage::Ready | Stage::Quick(_) => State::Ready,
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
                if pack::is_quick(frame.place.pack)
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
