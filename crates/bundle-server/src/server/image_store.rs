//! The images that the server knows: in memory, and in the [`ImageDatabase`] on disk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pierhead_bundle::api::{Progress, Stage as ProgressStage};
use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::image::{Image, RankedBases, RequestBase, State};
use super::job_queue::{JobQueue, QueuedImage};
use crate::Error;
use crate::image_database::{ImageDatabase, ImageRow, Stage};

/// Maximum number of images. Above this number, a new image replaces the oldest image. Each image
/// takes some hundred bytes.
const MAX_IMAGES: usize = 20_000;
/// Maximum number of base images in one plan. Planning reads the TOC of each base image.
const MAX_BASES: usize = 16;
/// The progress of an image that still waits in the queue.
const QUEUED: Progress = Progress {
    stage: ProgressStage::Wait,
    done: 0,
    total: 0,
};

/// All known images. Lock order: the lock of the images before the lock of the [`JobQueue`].
pub(super) struct ImageStore {
    entries: Mutex<HashMap<Digest, ImageEntry>>,
    database: Arc<ImageDatabase>,
}

/// An image in memory: its [`ImageRow`], and the state that is not stored on disk.
struct ImageEntry {
    row: ImageRow,
    /// The progress of indexing: `Some` while a thread works on the image, or while the image waits
    /// in the queue.
    progress: Option<Progress>,
    /// Whether a client waits for the image.
    is_awaited: Arc<AtomicBool>,
    /// The client that pulled the image first.
    client: ClientKey,
    /// The error of the last attempt to index the image, as a text for clients, until the next
    /// attempt begins.
    failure: Option<String>,
}

impl ImageEntry {
    fn new(row: ImageRow, progress: Option<Progress>, client: ClientKey) -> Self {
        Self {
            row,
            progress,
            is_awaited: Arc::default(),
            client,
            failure: None,
        }
    }

    fn state(&self) -> State {
        match &self.row.stage {
            Stage::Ready | Stage::Fast(_) => State::Ready,
            Stage::Refused(reason) => State::Refused(reason.clone()),
            Stage::Waiting => State::Working(self.progress.unwrap_or(QUEUED)),
        }
    }
}

/// Numbers of images by state.
#[derive(Default)]
pub(super) struct ImageCounts {
    pub(super) ready: u64,
    pub(super) waiting: u64,
    pub(super) refused: u64,
    /// Number of layers that wait for better compression.
    pub(super) fast_layers: u64,
}

impl ImageStore {
    /// Reads all images from the database, and queues those that are not finished.
    pub(super) fn open(database: Arc<ImageDatabase>, queue: &JobQueue) -> Result<Self, Error> {
        let mut entries = HashMap::new();
        let (mut waiting, mut fast) = (Vec::new(), Vec::new());
        database.images(|manifest, row| {
            match row.stage {
                Stage::Waiting => waiting.push((row.sequence, manifest)),
                Stage::Fast(_) => fast.push((row.sequence, manifest)),
                _ => {}
            }
            entries.insert(manifest, ImageEntry::new(row, None, ClientKey::OPERATOR));
        })?;
        waiting.sort();
        for (_, manifest) in waiting {
            queue.index(manifest, ClientKey::OPERATOR);
        }
        fast.sort();
        queue.optimize(fast.into_iter().map(|(_, manifest)| manifest));
        Ok(Self {
            entries: Mutex::new(entries),
            database,
        })
    }

    /// Adds an image and queues it for indexing, unless the image is already known.
    pub(super) fn offer(&self, client: ClientKey, image: Image, queue: &JobQueue) {
        {
            let mut entries = self.entries.lock();
            match entries.get(&image.manifest) {
                Some(it) if it.row.stage != Stage::Waiting || it.progress.is_some() => return,
                _ => {}
            }
            if entries.len() >= MAX_IMAGES {
                let oldest = entries.iter().min_by_key(|(_, it)| it.row.sequence);
                let oldest = oldest.map(|(manifest, _)| *manifest);
                if let Some(oldest) = oldest {
                    entries.remove(&oldest);
                }
            }
            let last = entries.values().map(|it| it.row.sequence).max();
            let row = ImageRow {
                repository: image.repository,
                sequence: last.unwrap_or(0) + 1,
                blobs: Vec::new(),
                stage: Stage::Waiting,
            };
            entries.insert(image.manifest, ImageEntry::new(row, Some(QUEUED), client));
        }
        queue.index(image.manifest, client);
    }

    /// Returns the state of an image.
    pub(super) fn state(&self, manifest: &Digest) -> State {
        let entries = self.entries.lock();
        entries
            .get(manifest)
            .map_or(State::Unknown, ImageEntry::state)
    }

    /// Marks an image as awaited by `client`, and moves it forward in the queue. Returns `None`,
    /// and changes nothing, when the indexing of the image has not begun and `may_begin` is
    /// `false`.
    pub(super) fn prioritize(
        &self,
        manifest: &Digest,
        client: ClientKey,
        may_begin: impl FnOnce() -> bool,
        queue: &JobQueue,
    ) -> Option<State> {
        // The same lock covers the check and the mark. If it did not, `requeue` could run between
        // the two steps and miss the mark.
        let entries = self.entries.lock();
        let Some(entry) = entries.get(manifest) else {
            return Some(State::Unknown);
        };
        let state = entry.state();
        if let State::Working(progress) = state {
            if progress.stage == ProgressStage::Wait && !may_begin() {
                return None;
            }
            entry.is_awaited.store(true, Ordering::Relaxed);
            queue.prioritize(manifest, client);
        }
        Some(state)
    }

    /// Returns an image to the queue. The lock covers both the mark that a client waits and the
    /// queue, so that a client that begins to wait now finds the image in the queue.
    pub(super) fn requeue(&self, image: QueuedImage, queue: &JobQueue) {
        let manifest = image.manifest;
        {
            let entries = self.entries.lock();
            let entry = entries.get(&manifest);
            let is_awaited = entry.is_some_and(|it| it.is_awaited.load(Ordering::Relaxed));
            queue.push(QueuedImage {
                is_awaited,
                ..image
            });
        }
        self.set_progress(&manifest, ProgressStage::Wait, 0, 0);
    }

    /// Sends a ready image back to the stage of a new one. Returns the client of the image, or
    /// `None` when the image is not ready.
    pub(super) fn reset(&self, manifest: &Digest) -> Option<ClientKey> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(manifest)?;
        if !entry.row.stage.is_ready() {
            return None;
        }
        entry.row.stage = Stage::Waiting;
        // Clears the mark that a client waits. The next request for the image sets this mark again.
        entry.is_awaited.store(false, Ordering::Relaxed);
        Some(entry.client)
    }

    /// Returns a shared flag that tells whether a client waits for the image. The flag changes
    /// while the image is indexed.
    pub(super) fn is_awaited(&self, manifest: &Digest) -> Arc<AtomicBool> {
        let entries = self.entries.lock();
        let entry = entries.get(manifest);
        entry.map(|it| it.is_awaited.clone()).unwrap_or_default()
    }

    /// Returns why the last attempt to index the image failed, as a text for clients, while the
    /// image waits for the next attempt.
    pub(super) fn failure(&self, manifest: &Digest) -> Option<String> {
        self.entries.lock().get(manifest)?.failure.clone()
    }

    pub(super) fn set_failure(&self, manifest: &Digest, failure: Option<String>) {
        if let Some(entry) = self.entries.lock().get_mut(manifest) {
            entry.failure = failure;
        }
    }

    /// Sets the progress of indexing that waiting clients see.
    pub(super) fn set_progress(
        &self,
        manifest: &Digest,
        stage: ProgressStage,
        done: u64,
        total: u64,
    ) {
        if let Some(entry) = self.entries.lock().get_mut(manifest) {
            entry.progress = Some(Progress { stage, done, total });
        }
    }

    /// Writes the row of an image to disk, so that the server knows the image after a crash.
    pub(super) fn save(&self, manifest: &Digest) -> Result<(), Error> {
        let row = self
            .entries
            .lock()
            .get(manifest)
            .map(|entry| entry.row.clone());
        match row {
            Some(row) => self.database.put_image(manifest, Some(&row)),
            None => Ok(()),
        }
    }

    /// Writes the rows of all images to disk again, after the image database was replaced.
    pub(super) fn save_all(
        &self,
        pause: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows: Vec<_> = self
            .entries
            .lock()
            .iter()
            .filter(|(_, entry)| !matches!(entry.row.stage, Stage::Refused(_)))
            .map(|(manifest, entry)| (*manifest, entry.row.clone()))
            .collect();
        for (manifest, row) in rows {
            self.database.put_image(&manifest, Some(&row))?;
            pause()?;
        }
        Ok(())
    }

    /// Records the stage of an image whose work ended. With `None` as the stage, removes the image.
    pub(super) fn settle(&self, manifest: &Digest, stage: Option<Stage>) -> Result<(), Error> {
        let row = {
            let mut entries = self.entries.lock();
            match (stage, entries.get_mut(manifest)) {
                (Some(stage), Some(entry)) => {
                    entry.row.stage = stage;
                    entry.progress = None;
                    Some(entry.row.clone())
                }
                _ => {
                    entries.remove(manifest);
                    None
                }
            }
        };
        // The refusal is not stored: after a restart with another version or other limits, the
        // server may accept the image.
        let saved = row
            .as_ref()
            .filter(|row| !matches!(row.stage, Stage::Refused(_)));
        self.database.put_image(manifest, saved)?;
        self.database.flush()
    }

    /// Returns the digests of the config and the layers of an image. The list is empty until the
    /// server has read the manifest of the image.
    pub(super) fn blobs(&self, manifest: &Digest) -> Vec<Digest> {
        let entries = self.entries.lock();
        let entry = entries.get(manifest);
        entry.map(|it| it.row.blobs.clone()).unwrap_or_default()
    }

    /// Returns the digests of the config and the layers of a ready image.
    pub(super) fn blobs_of_ready(&self, manifest: &Digest) -> Option<Vec<Digest>> {
        let entries = self.entries.lock();
        let row = &entries.get(manifest)?.row;
        row.stage.is_ready().then(|| row.blobs.clone())
    }

    /// Sets the digests of the config and the layers of an image.
    pub(super) fn set_blobs(&self, manifest: &Digest, blobs: Vec<Digest>) {
        if let Some(entry) = self.entries.lock().get_mut(manifest) {
            entry.row.blobs = blobs;
        }
    }

    /// Returns the number of layers of a ready image, and the number of its layers that wait for
    /// better compression.
    pub(super) fn layers_of_ready(&self, manifest: &Digest) -> Option<(usize, usize)> {
        let entries = self.entries.lock();
        let row = &entries.get(manifest)?.row;
        let waiting = match &row.stage {
            Stage::Ready => 0,
            Stage::Fast(layers) => layers.len(),
            _ => return None,
        };
        // Subtracts 1, since the first blob is the config.
        Some((row.blobs.len().saturating_sub(1), waiting))
    }

    pub(super) fn repository(&self, manifest: &Digest) -> Option<String> {
        let entries = self.entries.lock();
        entries.get(manifest).map(|it| it.row.repository.clone())
    }

    pub(super) fn is_ready(&self, manifest: &Digest) -> bool {
        let entries = self.entries.lock();
        entries
            .get(manifest)
            .is_some_and(|it| it.row.stage.is_ready())
    }

    /// Whether the image has fast frames that wait for optimization.
    pub(super) fn is_fast(&self, manifest: &Digest) -> bool {
        let entries = self.entries.lock();
        let stage = entries.get(manifest).map(|it| &it.row.stage);
        matches!(stage, Some(Stage::Fast(_)))
    }

    /// Returns all images with fast frames, which wait for optimization.
    pub(super) fn fast_images(&self) -> Vec<Digest> {
        let entries = self.entries.lock();
        let fast = entries
            .iter()
            .filter(|(_, it)| matches!(it.row.stage, Stage::Fast(_)));
        fast.map(|(manifest, _)| *manifest).collect()
    }

    /// Returns the images that are ready for bundles, the latest first.
    pub(super) fn ready_images(&self) -> Vec<Digest> {
        let mut ready: Vec<_> = self
            .entries
            .lock()
            .iter()
            .filter(|(_, it)| it.row.stage.is_ready())
            .map(|(manifest, it)| (Reverse(it.row.sequence), *manifest))
            .collect();
        ready.sort_unstable();
        ready.into_iter().map(|(_, manifest)| manifest).collect()
    }

    /// Returns the images that are ready for bundles, each with the digest of its config.
    pub(super) fn configs_of_ready(&self) -> Vec<(Digest, Option<Digest>)> {
        self.configs(|entry| entry.row.stage.is_ready())
    }

    /// Returns the images that no thread works on, each with the digest of its config.
    pub(super) fn configs_of_settled(&self) -> Vec<(Digest, Option<Digest>)> {
        self.configs(|entry| entry.progress.is_none())
    }

    fn configs(&self, is_chosen: impl Fn(&ImageEntry) -> bool) -> Vec<(Digest, Option<Digest>)> {
        let entries = self.entries.lock();
        let chosen = entries.iter().filter(|(_, entry)| is_chosen(entry));
        chosen
            .map(|(manifest, entry)| (*manifest, entry.row.blobs.first().copied()))
            .collect()
    }

    /// Returns all images that are not refused, each with a flag that says whether indexing has
    /// read the manifest of the image.
    pub(super) fn accepted(&self) -> Vec<(Digest, bool)> {
        let entries = self.entries.lock();
        let accepted = entries
            .iter()
            .filter(|(_, it)| !matches!(it.row.stage, Stage::Refused(_)));
        accepted
            .map(|(manifest, it)| (*manifest, !it.row.blobs.is_empty()))
            .collect()
    }

    /// Returns the manifests of all known images.
    pub(super) fn manifests(&self) -> HashSet<Digest> {
        self.entries.lock().keys().copied().collect()
    }

    /// Returns the ready images of the same repository, including this image, the latest first.
    pub(super) fn versions(&self, manifest: &Digest) -> Vec<Digest> {
        self.versions_before(manifest, u64::MAX)
    }

    /// Returns the ready images of the same repository that arrived before this image, the latest
    /// first.
    pub(super) fn older_versions(&self, manifest: &Digest) -> Vec<Digest> {
        let sequence = self
            .entries
            .lock()
            .get(manifest)
            .map(|entry| entry.row.sequence);
        sequence.map_or_else(Vec::new, |before| self.versions_before(manifest, before))
    }

    fn versions_before(&self, manifest: &Digest, before: u64) -> Vec<Digest> {
        let entries = self.entries.lock();
        let Some(new) = entries.get(manifest) else {
            return Vec::new();
        };
        let mut versions: Vec<_> = entries
            .iter()
            .filter(|(_, it)| it.row.repository == new.row.repository)
            .filter(|(_, it)| it.row.stage.is_ready() && it.row.sequence < before)
            .map(|(digest, it)| (Reverse(it.row.sequence), *digest))
            .collect();
        versions.sort_unstable();
        versions.into_iter().map(|(_, digest)| digest).collect()
    }

    /// Returns the base images that a plan uses: the usable ones, without duplicates, sorted.
    /// The order of this list does not depend on the order in the request: same repository first,
    /// then most layers in common, then latest.
    pub(super) fn rank_bases(&self, want: &Digest, base_images: &[RequestBase]) -> RankedBases {
        let mut usable: BTreeMap<Digest, RequestBase> = BTreeMap::new();
        for base in base_images.iter().filter(|base| base.is_usable) {
            usable.entry(base.manifest).or_insert(*base).has_layers |= base.has_layers;
        }
        let mut ranked: Vec<_> = {
            let entries = self.entries.lock();
            let wanted = entries.get(want);
            let layers: HashSet<_> = wanted.iter().flat_map(|it| &it.row.blobs).collect();
            let rank = |manifest: &Digest| {
                let row = &entries.get(manifest)?.row;
                let is_same = wanted.is_some_and(|it| it.row.repository == row.repository);
                let shared = row.blobs.iter().filter(|it| layers.contains(it));
                Some((is_same, shared.count(), row.sequence))
            };
            usable
                .into_values()
                .map(|base| (Reverse(rank(&base.manifest)), base))
                .collect()
        };
        // This sort is stable: images of equal rank stay sorted by digest.
        ranked.sort_by_key(|(rank, _)| *rank);
        let base_images = ranked.into_iter().map(|(_, base)| base);
        RankedBases(base_images.take(MAX_BASES).collect())
    }

    pub(super) fn counts(&self) -> ImageCounts {
        let mut counts = ImageCounts::default();
        let mut fast = HashSet::new();
        for entry in self.entries.lock().values() {
            match &entry.row.stage {
                Stage::Ready => counts.ready += 1,
                Stage::Fast(layers) => {
                    counts.ready += 1;
                    fast.extend(layers.iter().copied());
                }
                Stage::Waiting => counts.waiting += 1,
                Stage::Refused(_) => counts.refused += 1,
            }
        }
        counts.fast_layers = fast.len() as u64;
        counts
    }
}
