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
use crate::store::Store;
use crate::store::catalog::Catalog;
use crate::store::data_folder::DataFolder;
use crate::store::maintenance::Maintenance;
use crate::store::origins::{Origin, Origins};
use crate::store::pins::Pins;
use crate::store::placer::Placer;
use crate::store::policy_state::PolicyStateFile;
use crate::store::ranking::Eviction;
use crate::store::ranking::Ranking;
use crate::store::recovery;
use crate::store::state::State;
use crate::store::tag_store::TagStore;
use crate::tier::{DiskTier, Tier};

/// Maximum number of parts of a manifest that are counted. Images have some hundred at most.
const MAX_PARTS: usize = 1000;

/// A handle of the cache; all clones share one state. Async code may call all methods, unless the
/// documentation of a method says that it blocks.
#[derive(Clone)]
pub struct Cache {
    pub(crate) store: Arc<Store>,
    tags: Arc<TagStore>,
    pins: Arc<Pins>,
    maintenance: Arc<Maintenance>,
}

/// Result of [`Cache::claim`].
pub enum Claim {
    /// The blob is complete and verified.
    Hit(StoredBlob),
    /// The blob is not in the cache: the caller fetches it and writes it to the [`Fill`]. The
    /// reader follows this fill.
    Leader(Fill, BlobReader),
    /// Another caller is writing the blob; the reader follows the fill of that caller.
    Follower(BlobReader),
}

/// Result of a lookup in the index, without I/O.
enum Lookup {
    Absent,
    Open(StoredBlob),
    /// The blob is stored, but its file is not open.
    Closed,
}

/// Which stored blobs satisfy a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MediaTypeFilter<'a> {
    Any,
    /// Only a blob with this media type.
    Only(&'a MediaType),
}

impl Cache {
    /// Opens the data folder, or creates it. Locks the folder, checks its version, reconciles
    /// catalog and files, and restores the policy state. Blocks; reads each folder of blobs once.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Version`], [`Error::Foreign`], [`Error::UnreadablePin`],
    /// [`Error::Io`]. A damaged catalog is no error: the cache rebuilds it.
    pub fn open(config: Config, eviction: impl Into<Eviction>) -> Result<Self, Error> {
        Self::open_on(config, eviction, |config| {
            Ok(Arc::new(DiskTier::new(&config.data)?))
        })
    }

    /// As [`Cache::open`], with another tier in place of the disk. `open_on` locks the folder, then
    /// calls `tier` to make the tier. Tests inject faults this way.
    ///
    /// # Errors
    /// As [`Cache::open`].
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
        let origins = Origins::open(&config.data).map_err(failed)?;
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

    /// Returns a committed blob, or `None`. Counts as an access. For a blob that is in memory or
    /// already open, it needs no I/O and no other thread.
    ///
    /// # Errors
    /// [`Error::Io`].
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

    /// Returns a committed blob for pierhead's own work, or `None`. Counts neither as an access nor
    /// as a hit.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn peek(&self, digest: &Digest) -> Result<Option<StoredBlob>, Error> {
        if !self.is_stored(digest) {
            return Ok(None);
        }
        let (store, digest) = (self.store.clone(), *digest);
        let open = blocking(move || store.open_for(&digest, false)).await?;
        Ok(open.map(StoredBlob::new))
    }

    /// Opens a committed blob for background work, or returns `None`. Counts neither as an access
    /// nor as a hit. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_for_background(&self, digest: &Digest) -> Result<Option<BackgroundReader>, Error> {
        let open = self.store.open_for(digest, false)?;
        Ok(open.map(BackgroundReader::new))
    }

    /// Returns a committed blob if it is in memory or already open: [`Cache::get`] without waiting.
    /// Counts as an access when it finds the blob. Takes less than 1 µs.
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

    /// Whether the blob is committed or a fill of it is running. Counts as no access; makes no I/O.
    pub fn contains(&self, digest: &Digest) -> bool {
        let state = self.store.state.lock();
        state.index.contains_key(digest) || state.fills.contains_key(digest)
    }

    /// Whether the blob is committed. Counts as no access; makes no I/O.
    pub fn is_stored(&self, digest: &Digest) -> bool {
        self.store.state.lock().index.contains_key(digest)
    }

    /// Returns the blob, or makes the caller leader or follower of its fill. A digest has at most
    /// one leader at a time. `origin` is the registry that the leader fetches from; a fill resumes
    /// only staged bytes of the same registry. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Io`]: the staging file cannot be opened ([`Error::is_storage`]: stream without
    /// storing).
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
                // The blob was committed after the lookup above.
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
                            // Incremented under the lock of the state, because the commit reads
                            // this counter under the same lock.
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
                    self.store.metrics.joins.inc();
                    return Ok(Claim::Follower(BlobReader::Tail(TailReader::new(
                        shared_fill,
                    ))));
                }
            }
        }
    }

    /// Stores a small document (manifest, tag list): verified, and durable on return.
    ///
    /// # Errors
    /// [`Error::WrongDigest`], [`Error::NoRoom`], [`Error::Io`].
    pub async fn put(
        &self,
        digest: &Digest,
        media_type: &MediaType,
        content: Bytes,
    ) -> Result<StoredBlob, Error> {
        self.put_with_cost(digest, media_type, content, None).await
    }

    /// As [`Cache::put`]. `cost`: seconds that a client would wait for a fetch of the document.
    ///
    /// # Errors
    /// As [`Cache::put`].
    pub async fn put_with_cost(
        &self,
        digest: &Digest,
        media_type: &MediaType,
        content: Bytes,
        cost: Option<f32>,
    ) -> Result<StoredBlob, Error> {
        if let Some(placer) = &self.store.placer {
            placer.place_document(digest, content.len() as u64);
        }
        loop {
            let filter = MediaTypeFilter::Only(media_type);
            match self.claim_as(digest, Origin::LOCAL, filter).await? {
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

    /// Increments the image count of each part of an image whose manifest was stored.
    fn count_parts(&self, digest: &Digest, media_type: &MediaType, content: Bytes) {
        // The children of an image index are manifests. Manifests are small, so they are not
        // ranked.
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

    /// The store of tags: the digest of each tag, and when an upstream confirmed it.
    pub fn tags(&self) -> &TagStore {
        &self.tags
    }

    /// Protects these digests from eviction under one label, which is a complete image reference. A
    /// digest that is not stored yet is protected once it is stored. Durable on return. Replaces an
    /// earlier pin of the label.
    ///
    /// # Errors
    /// [`Error::Io`]; the pins are then unchanged.
    pub async fn pin(&self, label: &str, digests: Vec<Digest>) -> Result<(), Error> {
        self.set_pin(label, Some(digests)).await.map(|_| ())
    }

    /// Removes a pin; `false` when there was none.
    ///
    /// # Errors
    /// [`Error::Io`]; the pins are then unchanged.
    pub async fn unpin(&self, label: &str) -> Result<bool, Error> {
        self.set_pin(label, None).await
    }

    async fn set_pin(&self, label: &str, digests: Option<Vec<Digest>>) -> Result<bool, Error> {
        let (store, pins, label) = (self.store.clone(), self.pins.clone(), label.to_owned());
        blocking(move || {
            let was_there = pins.set(&label, digests, |before, after| {
                let mut state = store.state.lock();
                // Adds the new pins before it removes the old ones: a digest in both lists stays
                // pinned throughout.
                after.iter().for_each(|digest| state.pin(*digest));
                before.iter().for_each(|digest| state.unpin(*digest));
            });
            // If the capacity was reduced earlier, the removed pins may have delayed evictions.
            store.shrink();
            was_there
        })
        .await
    }

    /// All labels with their pinned digests.
    pub fn pins(&self) -> Vec<(String, Vec<Digest>)> {
        self.pins.all()
    }

    /// Changes the capacity in bytes. A reduction evicts at once, except for pinned blobs and blobs
    /// that are being read. Pinned blobs are evicted once they are unpinned, open blobs within
    /// [`Config::flush_interval`] of their last read.
    pub async fn set_capacity(&self, capacity: u64) {
        {
            let mut state = self.store.state.lock();
            state.capacity = capacity;
            state.ranking.resize(capacity);
        }
        let store = self.store.clone();
        blocking(move || store.shrink()).await;
    }

    /// Changes policy and admission without losing a blob. A new policy receives all blobs in the
    /// order of their last accesses. A policy or admission that is already in use under the given
    /// name is kept.
    pub async fn set_eviction(&self, eviction: Eviction) {
        let store = self.store.clone();
        blocking(move || store.set_eviction(eviction)).await;
    }

    /// Charges bytes that another component wrote to the same disk against the daily write budget
    /// ([`Eviction::daily_write_budget`](crate::store::ranking::Eviction)). Does not block.
    pub fn count_written(&self, bytes: u64) {
        self.store.count_written(bytes);
    }

    /// Whether the daily write budget has bytes left for another component. `is_awaited`: a client
    /// waits for the work. Such work may exceed the budget by 1/16, as small blobs may. Does not
    /// block.
    pub fn may_write(&self, is_awaited: bool) -> bool {
        self.store.may_write(is_awaited)
    }

    /// Evicts blobs until at most `target` bytes are used, except for pinned blobs. Returns the
    /// number of evicted bytes. Blobs that are being read are evicted, too; their space becomes
    /// free once the last reader closes them.
    ///
    /// # Errors
    /// None; a file that cannot be deleted stays counted.
    pub async fn prune(&self, target: u64) -> Result<u64, Error> {
        let store = self.store.clone();
        Ok(blocking(move || store.prune(target)).await)
    }

    /// Deletes these blobs except pinned ones; returns the bytes of the deleted blobs.
    ///
    /// # Errors
    /// None; a file that cannot be deleted stays counted.
    pub async fn remove(&self, digests: Vec<Digest>) -> Result<u64, Error> {
        let store = self.store.clone();
        Ok(blocking(move || store.remove(&digests)).await)
    }

    /// Reads a whole blob and checks its digest; removes a corrupt blob. Returns `false` for a
    /// corrupt blob, `true` for an intact or absent one. Counts neither as an access nor as a hit.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn verify(&self, digest: &Digest) -> Result<bool, Error> {
        let (store, digest) = (self.store.clone(), *digest);
        blocking(move || store.verify(&digest)).await
    }

    /// Closes the cache: aborts running fills (staged bytes are kept), writes pending access ticks,
    /// and unlocks the data folder. Call it once, at shutdown; later claims fail.
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

    /// The counters of panics in background tasks.
    pub fn panics(&self) -> &Panics {
        self.store.config.background.panics()
    }

    /// Registers the metrics of the cache; the caller sets the prefix.
    pub fn register(&self, registry: &mut Registry) {
        self.store.metrics.register(registry);
        registry.register_collector(Box::new(StateCollector(Arc::downgrade(&self.store))));
    }
}

fn closing() -> Error {
    Error::Abandoned("the cache is closing".into())
}
