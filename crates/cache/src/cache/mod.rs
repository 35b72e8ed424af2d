//! The public API of the cache: open, look up, claim, store, pin and evict blobs.

mod collector;
mod fast_tier;
mod stat;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pierhead_host::Panics;
use pierhead_oci::{Body, Digest, Manifest, MediaType};
use prometheus_client::registry::Registry;

use self::collector::StateCollector;
use crate::blob::StoredBlob;
use crate::blob::background_reader::BackgroundReader;
use crate::blocking::blocking;
use crate::clock::now;
use crate::config::Config;
use crate::error::Error;
use crate::fill::Fill;
use crate::fill::blob_reader::BlobReader;
use crate::fill::blob_reader::TailReader;
use crate::fill::shared_fill::{Order, SharedFill};
use crate::origin::Origin;
use crate::store::Store;
use crate::store::catalog::Catalog;
use crate::store::data_folder::DataFolder;
use crate::store::maintenance::Maintenance;
use crate::store::origins::Origins;
use crate::store::pins::Pins;
use crate::store::placer::Placer;
use crate::store::policy_state::PolicyStateFile;
use crate::store::ranking::Eviction;
use crate::store::ranking::Ranking;
use crate::store::recovery;
use crate::store::state::State;
use crate::store::tag_store::TagStore;
use crate::tier::{DiskTier, Tier};

/// Maximum number of parts of a manifest that are counted. Real images have at most some hundred
/// parts.
const MAX_PARTS: usize = 1000;

/// A handle of the cache. All clones share one state. Async code may call every method whose
/// documentation does not say that the method blocks.
#[derive(Clone)]
pub struct Cache {
    pub(crate) store: Arc<Store>,
    tags: Arc<TagStore>,
    pins: Arc<Pins>,
    maintenance: Arc<Maintenance>,
}

/// What the caller of [`Cache::claim`] gets: the blob, or a role in its fill (the download of the
/// blob into the cache).
pub enum Claim {
    /// The blob is complete and verified.
    Hit(StoredBlob),
    /// The blob is not in the cache: the caller must fetch the blob and write its bytes to the
    /// [`Fill`]. The reader follows this fill.
    Leader(Fill, BlobReader),
    /// Another caller is writing the blob. The reader follows the fill of that caller.
    Follower(BlobReader),
}

/// The result of a lookup in the index, without I/O.
enum Lookup {
    Absent,
    Open(StoredBlob),
    /// The blob is stored, but its file is not open.
    Closed,
}

/// The condition that a stored blob must satisfy for a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MediaTypeFilter<'a> {
    Any,
    /// The blob must have this media type.
    Only(&'a MediaType),
}

impl Cache {
    /// Opens the data folder, or creates it. Locks the folder, checks its version, makes catalog
    /// and files consistent, and restores the policy state. Blocks, and reads each folder of blobs
    /// once.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Version`], [`Error::Foreign`], [`Error::UnreadablePin`] or
    /// [`Error::Io`]. A damaged catalog is no error, because the cache rebuilds the catalog.
    pub fn open(config: Config, eviction: impl Into<Eviction>) -> Result<Self, Error> {
        Self::open_on(config, eviction, |config| {
            Ok(Arc::new(DiskTier::new(&config.data)?))
        })
    }

    /// Opens the data folder like [`Cache::open`], with another tier in place of the disk. Locks
    /// the folder and then calls `tier` to create the tier. Tests use this function to inject
    /// faults.
    ///
    /// # Errors
    /// The same errors as [`Cache::open`].
    pub fn open_on(
        config: Config,
        eviction: impl Into<Eviction>,
        tier: impl FnOnce(&Config) -> std::io::Result<Arc<dyn Tier>>,
    ) -> Result<Self, Error> {
        let failed = |error| Error::io("open", &config.data, error);
        let folder = DataFolder::open(&config.data)?;
        let pins = Pins::open(&config.data)?;
        let disk = tier(&config).map_err(failed)?;
        let placer = config.fast.as_ref();
        let placer = placer.map(|fast| Placer::new(fast, disk.clone(), &config.background));
        let placer = placer.transpose().map_err(failed)?;
        let tier = placer.as_ref().map_or(disk, Placer::tier);
        let ranking = Ranking::new(eviction.into(), config.recorder.clone(), now());
        let mut state = State::new(ranking, config.capacity, config.memory);
        for digest in pins.all().into_iter().flat_map(|(_, digests)| digests) {
            state.pin(digest);
        }
        let policy_state = PolicyStateFile::new(&config.data);
        if let Some(policy_state) = policy_state.read() {
            policy_state.restore(&mut state);
        }
        let catalog = Catalog::open(&config.data);
        recovery::blobs(&mut state, &*tier, &catalog).map_err(failed)?;
        let origins = Origins::open(&config.data, config.fast.is_some()).map_err(failed)?;
        recovery::partials(&mut state, &*tier, &origins).map_err(failed)?;
        let tiers = (tier, placer);
        let store = Arc::new(Store::new(config.clone(), tiers, state, (folder, origins)));
        let tags = TagStore::open(store.clone())?;
        catalog.tags(|key, validated| tags.restore(key, validated));
        store.shrink();
        let tags = Arc::new(tags);
        let maintenance = Maintenance::start(store.clone(), tags.clone(), (catalog, policy_state))
            .map_err(failed)?;
        Ok(Self {
            store,
            tags,
            pins: Arc::new(pins),
            maintenance,
        })
    }

    /// Returns a committed blob, or `None`. The call counts as an access. If the blob is in memory
    /// or already open, the call needs no I/O and no other thread.
    ///
    /// # Errors
    /// [`Error::Io`] if the operating system fails to open or read the file.
    pub async fn get(&self, digest: &Digest) -> Result<Option<StoredBlob>, Error> {
        let stored = match self.look_up(digest) {
            Lookup::Absent => None,
            Lookup::Open(stored) => return Ok(Some(stored)),
            Lookup::Closed => {
                let (store, digest) = (self.store.clone(), *digest);
                blocking(move || store.load(&digest)).await?
            }
        };
        if stored.is_some() {
            self.store.metrics.hits.inc();
        }
        Ok(stored)
    }

    /// Returns a committed blob for pierhead's own work, or `None`. The call counts neither as an
    /// access nor as a hit.
    ///
    /// # Errors
    /// [`Error::Io`] if the operating system fails to open or read the file.
    pub async fn peek(&self, digest: &Digest) -> Result<Option<StoredBlob>, Error> {
        if !self.is_stored(digest) {
            return Ok(None);
        }
        let (store, digest) = (self.store.clone(), *digest);
        let open = blocking(move || store.open_for(&digest, false)).await?;
        Ok(open.map(StoredBlob::new))
    }

    /// Opens a committed blob for background work, or returns `None`. The reads count neither as
    /// accesses nor as hits. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`] if the operating system fails to open or read the file.
    pub fn open_for_background(&self, digest: &Digest) -> Result<Option<BackgroundReader>, Error> {
        let open = self.store.open_for(digest, false)?;
        Ok(open.map(BackgroundReader::new))
    }

    /// Returns a committed blob if the blob is in memory or already open. Unlike [`Cache::get`],
    /// never waits. If the blob is found, the call counts as an access. Takes less than 1 µs.
    pub fn get_now(&self, digest: &Digest) -> Option<StoredBlob> {
        match self.look_up(digest) {
            Lookup::Open(stored) => Some(stored),
            Lookup::Absent | Lookup::Closed => None,
        }
    }

    fn look_up(&self, digest: &Digest) -> Lookup {
        let mut state = self.store.state.lock();
        if !state.touch(digest, now()) {
            return Lookup::Absent;
        }
        let stored = match state.in_memory(digest) {
            Some(small) => {
                self.store.metrics.memory_hits.inc();
                StoredBlob::small(small)
            }
            None => match state.open.get(digest).and_then(|(_, open)| open.upgrade()) {
                Some(open) => StoredBlob::new(open),
                None => return Lookup::Closed,
            },
        };
        drop(state);
        self.store.metrics.hits.inc();
        Lookup::Open(stored)
    }

    /// Whether the blob is committed or a fill of the blob is running. The call does not count as
    /// an access and makes no I/O.
    pub fn contains(&self, digest: &Digest) -> bool {
        let state = self.store.state.lock();
        state.index.contains_key(digest) || state.fills.contains_key(digest)
    }

    /// Whether the blob is committed. The call does not count as an access and makes no I/O.
    pub fn is_stored(&self, digest: &Digest) -> bool {
        self.store.state.lock().index.contains_key(digest)
    }

    /// Whether the registry of `origin` has sent all bytes of this committed blob, in this process
    /// or an earlier one. If `origin` has a repository, also whether this repository has the blob.
    /// Makes no I/O.
    pub fn has_origin(&self, digest: &Digest, origin: &Origin) -> bool {
        let state = self.store.state.lock();
        let slot = state.index.get(digest);
        slot.is_some_and(|slot| slot.origins.contains(origin))
    }

    /// Records that the registry of `origin` has sent all bytes of this digest to the caller, who
    /// has verified them. Does nothing if the blob is not committed. The cache remembers at most
    /// four registries of a blob. A registry that did not fill the blob is durable within
    /// [`Config::flush_interval`]. Makes no I/O.
    pub fn add_origin(&self, digest: &Digest, origin: Origin) {
        self.store.state.lock().add_origin(digest, origin);
    }

    /// Returns the blob if it is committed. If the blob is not committed, makes the caller the
    /// leader of a new fill, or a follower of the running fill. A digest has at most one leader at
    /// a time. `origin` is the registry from which the leader fetches. A fill resumes only staged
    /// bytes of the same registry. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Io`] if the staging file cannot be opened. This error satisfies
    /// [`Error::is_storage`], so the caller can stream the blob without storing it.
    pub async fn claim(&self, digest: &Digest, origin: Origin) -> Result<Claim, Error> {
        self.claim_as(digest, origin, MediaTypeFilter::Any).await
    }

    async fn claim_as(
        &self,
        digest: &Digest,
        origin: Origin,
        filter: MediaTypeFilter<'_>,
    ) -> Result<Claim, Error> {
        loop {
            if let Some(stored) = self.get(digest).await?
                && (filter == MediaTypeFilter::Any
                    || stored.media_type().map(MediaTypeFilter::Only) == Some(filter))
            {
                return Ok(Claim::Hit(stored));
            }
            let shared_fill = {
                let mut state = self.store.state.lock();
                // The blob was committed after the first lookup.
                if filter == MediaTypeFilter::Any && state.index.contains_key(digest) {
                    continue;
                }
                if state.is_closed {
                    return Err(closing());
                }
                match state.fills.get(digest) {
                    Some(shared_fill) => {
                        let doomed = shared_fill.is_doomed();
                        if !doomed {
                            // The counter is incremented under the lock of the state, because a
                            // commit reads the counter under this lock.
                            shared_fill.followers.fetch_add(1, Ordering::Relaxed);
                        }
                        Err((shared_fill.clone(), doomed))
                    }
                    None => {
                        let shared_fill = Arc::new(SharedFill::new(
                            *digest,
                            origin,
                            self.store.clone(),
                            self.store.metrics.written_bytes.get(),
                            self.panics().clone(),
                        ));
                        state.fills.insert(*digest, shared_fill.clone());
                        Ok(shared_fill)
                    }
                }
            };
            match shared_fill {
                Ok(shared_fill) => {
                    self.store.metrics.misses.inc();
                    let store = self.store.clone();
                    let fill = blocking(move || Fill::lead(store, &shared_fill)).await?;
                    let tail = fill.tail();
                    return Ok(Claim::Leader(fill, BlobReader::Tail(tail)));
                }
                Err((shared_fill, true)) => {
                    let _ = shared_fill.outcome().await;
                }
                Err((shared_fill, false)) => {
                    self.store.metrics.coalesced.inc();
                    return Ok(Claim::Follower(BlobReader::Tail(TailReader::new(
                        shared_fill,
                    ))));
                }
            }
        }
    }

    /// Stores a small document (manifest, tag list). Verifies the document, and returns when it is
    /// durable.
    ///
    /// # Errors
    /// The blob is not stored: [`Error::WrongDigest`], [`Error::NoRoom`] or [`Error::Io`].
    pub async fn put(
        &self,
        digest: &Digest,
        media_type: &MediaType,
        content: Bytes,
    ) -> Result<StoredBlob, Error> {
        self.put_from(Origin::LOCAL, digest, media_type, (content, None))
            .await
    }

    /// Stores a small document like [`Cache::put`], with the registry that sent the document, and
    /// with its cost: the number of seconds that a client would wait for a fetch of the document.
    ///
    /// # Errors
    /// The same errors as [`Cache::put`].
    pub async fn put_from(
        &self,
        origin: Origin,
        digest: &Digest,
        media_type: &MediaType,
        (content, cost): (Bytes, Option<f32>),
    ) -> Result<StoredBlob, Error> {
        if let Some(placer) = &self.store.placer {
            placer.place_document(digest, content.len() as u64);
        }
        loop {
            let filter = MediaTypeFilter::Only(media_type);
            match self.claim_as(digest, origin, filter).await? {
                Claim::Hit(stored) => return Ok(stored),
                Claim::Follower(BlobReader::Tail(tail)) => {
                    // The result is ignored, because the next iteration claims the blob again.
                    let _ = tail.committed().await;
                }
                Claim::Follower(BlobReader::Stored(stored)) => return Ok(stored),
                Claim::Leader(mut fill, _) => {
                    if fill.offset() > 0 {
                        fill.restart().await?;
                    }
                    fill.set_media_type(media_type.clone());
                    if let Some(cost) = cost {
                        fill.set_cost(cost);
                    }
                    fill.begin(Some(content.len() as u64)).await?;
                    fill.write(content.clone()).await?;
                    let stored = fill.finish().await?;
                    self.count_parts(digest, media_type, content);
                    return Ok(stored);
                }
            }
        }
    }

    /// Increments the image count of each part (config, layer) of an image whose manifest was
    /// stored.
    fn count_parts(&self, digest: &Digest, media_type: &MediaType, content: Bytes) {
        // The parts of an image index are manifests. Manifests are small, so their image counts are
        // not needed.
        if !media_type.is_manifest() {
            return;
        }
        if let Ok(manifest) = Manifest::parse(content, Some(media_type.as_str()))
            && !matches!(manifest.body, Body::Index { .. })
        {
            if let Some(placer) = &self.store.placer {
                placer.add_image(digest, &manifest);
            }
            let parts = manifest.children().take(MAX_PARTS).map(|part| part.digest);
            self.store.state.lock().count_image(digest, parts);
        }
    }

    /// Returns the store of tags: the digest of each tag, and the time at which an upstream
    /// confirmed the tag.
    pub fn tags(&self) -> &TagStore {
        &self.tags
    }

    /// Protects these digests from eviction. The pin has a label, which is a complete image
    /// reference. A digest that is not stored yet is protected as soon as it is stored. Replaces an
    /// earlier pin with the same label. The pin is durable when the call returns.
    ///
    /// # Errors
    /// [`Error::Io`]. After an error, the pins are unchanged.
    pub async fn pin(&self, label: &str, digests: Vec<Digest>) -> Result<(), Error> {
        self.set_pin(label, Some(digests)).await.map(|_| ())
    }

    /// Removes the pin with this label. Returns `false` if there was no such pin.
    ///
    /// # Errors
    /// [`Error::Io`]. After an error, the pins are unchanged.
    pub async fn unpin(&self, label: &str) -> Result<bool, Error> {
        self.set_pin(label, None).await
    }

    async fn set_pin(&self, label: &str, digests: Option<Vec<Digest>>) -> Result<bool, Error> {
        let (store, pins, label) = (self.store.clone(), self.pins.clone(), label.to_owned());
        blocking(move || {
            let was_there = pins.set(&label, digests, |before, after| {
                let mut state = store.state.lock();
                // The new pins are added before the old pins are removed, so that a digest in both
                // lists stays pinned all the time.
                after.iter().for_each(|digest| state.pin(*digest));
                before.iter().for_each(|digest| state.unpin(*digest));
            });
            // The capacity may have been reduced earlier. Blobs that only the old pins protected
            // can now be evicted.
            store.shrink();
            was_there
        })
        .await
    }

    /// Returns all labels of pins with their digests.
    pub fn pins(&self) -> Vec<(String, Vec<Digest>)> {
        self.pins.all()
    }

    /// Changes the capacity in bytes. If the capacity is reduced, evicts blobs at once, except for
    /// pinned blobs and blobs that are being read. Pinned blobs are evicted once they are unpinned,
    /// open blobs within [`Config::flush_interval`] of their last read.
    pub async fn set_capacity(&self, capacity: u64) {
        {
            let mut state = self.store.state.lock();
            state.capacity = capacity;
            state.ranking.resize(capacity);
        }
        let store = self.store.clone();
        blocking(move || store.shrink()).await;
    }

    /// Changes the eviction policy and the admission filter without losing a blob. A new policy
    /// receives all blobs in the order of their last accesses. If a policy or admission filter with
    /// the given name is already in use, the cache keeps it.
    pub async fn set_eviction(&self, eviction: Eviction) {
        let store = self.store.clone();
        blocking(move || store.set_eviction(eviction)).await;
    }

    /// Subtracts bytes that another component wrote to the same disk from the daily write budget
    /// ([`Eviction::daily_write_budget`](crate::store::ranking::Eviction)). Does not block.
    pub fn count_written(&self, bytes: u64) {
        self.store.count_written(bytes);
    }

    /// Whether the daily write budget has bytes left for another component. `is_awaited` means that
    /// a client waits for the work. Work for which a client waits may exceed the budget by 1/16.
    /// The same exception applies to small blobs. Does not block.
    pub fn may_write(&self, is_awaited: bool) -> bool {
        self.store.may_write(is_awaited)
    }

    /// Evicts blobs until at most `target` bytes are used, except for pinned blobs. Returns the
    /// number of evicted bytes. Blobs that are being read are evicted, too. The space of such a
    /// blob becomes free once the last reader closes the blob.
    ///
    /// # Errors
    /// The call never fails. A file that cannot be deleted counts as used.
    pub async fn prune(&self, target: u64) -> Result<u64, Error> {
        let store = self.store.clone();
        Ok(blocking(move || store.prune(target)).await)
    }

    /// Deletes these blobs except for pinned blobs. Returns the number of bytes of the deleted
    /// blobs.
    ///
    /// # Errors
    /// The call never fails. A file that cannot be deleted counts as used.
    pub async fn remove(&self, digests: Vec<Digest>) -> Result<u64, Error> {
        let store = self.store.clone();
        Ok(blocking(move || store.remove(&digests)).await)
    }

    /// Reads a whole blob and checks its digest. If the blob is corrupt, removes the blob and
    /// returns `false`. Returns `true` if the blob is intact or absent. The read counts neither as
    /// an access nor as a hit.
    ///
    /// # Errors
    /// [`Error::Io`] if the operating system fails to open or read the file.
    pub async fn verify(&self, digest: &Digest) -> Result<bool, Error> {
        let (store, digest) = (self.store.clone(), *digest);
        blocking(move || store.verify(&digest)).await
    }

    /// Closes the cache: aborts running fills (staged bytes are kept), writes pending access ticks,
    /// and unlocks the data folder. The caller calls this once, at shutdown. Later claims fail.
    pub async fn close(&self) {
        let shared_fills: Vec<_> = {
            let mut state = self.store.state.lock();
            state.is_closed = true;
            state.fills.values().cloned().collect()
        };
        for shared_fill in shared_fills {
            shared_fill.order(Order::Abandon {
                why: closing(),
                keep: true,
            });
            let _ = shared_fill.outcome().await;
        }
        let maintenance = self.maintenance.clone();
        let store = self.store.clone();
        blocking(move || {
            maintenance.close();
            if let Some(multi_tier) = store.tier.multi_tier() {
                multi_tier.close();
            }
        })
        .await;
        self.store.unlock();
    }

    /// Returns the counters of panics in background tasks.
    pub fn panics(&self) -> &Panics {
        self.store.config.background.panics()
    }

    /// Registers the metrics of the cache. The caller sets the prefix of their names.
    pub fn register(&self, registry: &mut Registry) {
        self.store.metrics.register(registry);
        registry.register_collector(Box::new(StateCollector(Arc::downgrade(&self.store))));
    }
}

fn closing() -> Error {
    Error::Abandoned("the cache is closing".into())
}
