//! What the server has of images: indexed, packed and planned in the background, handed out at once.
//!
//! Everything here follows from blobs and can be made anew from them. From the bottom up: `shelf` (which files there
//! are), `documents` (manifest and config), `steps` (what is done for an image), `queue` (by whom and when), `serve`
//! (what is handed out).

mod documents;
mod figures;
mod kept;
mod layers;
mod pace;
mod pairs;
mod queue;
mod serve;
mod shelf;
mod steps;
mod stream;

pub use figures::Stat;
pub use stream::{Bundle, Opened, Piece, Stream};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pierhead_oci::Digest;

use crate::api::{Progress, Stage as At};
use crate::directory::{Directory, ImageRow, Stage};
use crate::layer::Limits;
use crate::pack::{self, Known as _, Packs};
use crate::{Blobs, Error};
use figures::Figures;
use kept::Kept;
use queue::Queue;
use shelf::Shelf;

/// What a library may take of the machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder: `index/`, `packs/`, `plans/` and `directory/` in it are the library's.
    pub data: PathBuf,
    /// Bytes of packs on disk.
    pub packs: u64,
    /// Bytes of plans on disk, with the patches in them.
    pub plans: u64,
    /// Threads of work in the background: each has a layer, a table and frames in memory, up to 100 MB.
    pub workers: usize,
    /// Percent of a core that each of them takes at most.
    pub share: u32,
    /// Level of zstd for packs.
    pub level: i32,
    /// Older versions of a repository that patches to a new one are made from.
    pub pairs: usize,
    /// What a layer may ask for.
    pub limits: Limits,
}

impl Config {
    /// Defaults for all but the folder and the bytes.
    pub fn new(data: impl Into<PathBuf>, packs: u64, plans: u64) -> Self {
        Self {
            data: data.into(),
            packs,
            plans,
            workers: 1,
            share: 50,
            level: pack::Settings::default().level,
            pairs: 2,
            limits: Limits::default(),
        }
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
    images: Mutex<HashMap<Digest, Row>>,
    queue: Mutex<Queue>,
    wake: Condvar,
    stop: Arc<AtomicBool>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    kept: Mutex<Vec<(crate::Content, Arc<Kept>)>>,
    planning: Mutex<()>,
    figures: Figures,
    /// Packs that had been evicted when places were looked through.
    tidied: AtomicU64,
}

/// As an [`ImageRow`], in memory.
struct Row {
    row: ImageRow,
    /// While it is being worked on.
    progress: Option<Progress>,
}

impl Library {
    /// Opens what is there, finds again what is missing, and begins to work.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(config: Config, blobs: Arc<dyn Blobs>) -> Result<Self, Error> {
        let shelf = Shelf::open(&config.data)?;
        let packs = Packs::open(pack::Config::new(Shelf::packs(&config.data), config.packs))?;
        let (directory, damage) = Directory::open(&Shelf::directory(&config.data))?;
        if let Some(what) = damage {
            tracing::warn!(what, "the directory cannot be used; it is made anew");
        }
        if directory.is_new() {
            packs.scan(&mut |frame| {
                // Ranges of a large content lie in order of their offsets, more or less: found again by the next packing.
                match &frame.members[..] {
                    members if members.iter().all(|part| part.offset == 0) => members
                        .iter()
                        .try_for_each(|part| directory.put(&part.content, &[frame.place])),
                    _ => Ok(()),
                }
            })?;
        }
        let mut images = HashMap::new();
        let mut queue = Queue::default();
        let mut waiting = Vec::new();
        directory.images(|manifest, row| {
            if row.stage == Stage::Waiting {
                waiting.push((row.came, manifest));
            }
            let progress = None;
            images.insert(manifest, Row { row, progress });
        })?;
        waiting.sort();
        for (_, manifest) in waiting {
            queue.image(manifest);
        }
        let library = Self {
            inner: Arc::new(Inner {
                config,
                blobs,
                shelf,
                directory: Arc::new(directory),
                packs: Arc::new(packs),
                images: Mutex::new(images),
                queue: Mutex::new(queue),
                wake: Condvar::new(),
                stop: Arc::default(),
                workers: Mutex::default(),
                kept: Mutex::default(),
                planning: Mutex::default(),
                figures: Figures::default(),
                tidied: AtomicU64::new(0),
            }),
        };
        queue::start(&library.inner)?;
        Ok(library)
    }

    /// Has an image indexed and packed, unless that was done. Does not block.
    pub fn offer(&self, image: Image) {
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
        let progress = Some(progress);
        images.insert(image.manifest, Row { row, progress });
        drop(images);
        lock(&inner.queue).image(image.manifest);
        inner.wake.notify_one();
    }

    /// How far an image is. Does not block.
    pub fn state(&self, manifest: &Digest) -> State {
        let images = lock(&self.inner.images);
        let Some(row) = images.get(manifest) else {
            return State::Unknown;
        };
        match &row.row.stage {
            Stage::Ready => State::Ready,
            Stage::Refused(why) => State::Refused(why.clone()),
            Stage::Waiting => State::Working(row.progress.unwrap_or(Progress {
                stage: At::Wait,
                done: 0,
                total: 0,
            })),
        }
    }

    /// Config and layers of an image that is ready. Does not block.
    pub fn blobs(&self, manifest: &Digest) -> Option<Vec<Digest>> {
        let images = lock(&self.inner.images);
        let row = images.get(manifest)?;
        (row.row.stage == Stage::Ready).then(|| row.row.blobs.clone())
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

/// A poisoned lock guards values that are whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
