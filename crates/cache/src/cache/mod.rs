//! The cache as its callers see it.

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

/// Parts of a manifest that are counted: images have some hundred at most.
const MAX_PARTS: usize = 1000;

/// A handle; clones share everything. All methods may be called from async code unless they say
/// that they block.
#[derive(Clone)]
pub struct Cache {
    pub(crate) store: Arc<Store>,
    tags: Arc<TagStore>,
    pins: Arc<Pins>,
    maintenance: Arc<Maintenance>,
}

/// What [`Cache::claim`] found.
pub enum Claim {
    /// Complete and verified, on disk.
    Hit(StoredBlob),
    /// Not in the cache: fetch it and write it to the [`Fill`]. The reader tails this fill.
    Leader(Fill, BlobReader),
    /// Another caller is fetching it; the reader tails that fill.
    Follower(BlobReader),
}

/// What the cache knows of a blob without I/O.
enum Lookup {
    Absent,
    Open(StoredBlob),
    /// Stored, and to be opened.
    Closed,
}

/// Which stored blobs answer a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted<'a> {
    Any,
    /// Only with this media type.
    As(&'a MediaType),
}

impl Cache {
    /// Opens (or makes) the data folder: takes its lock, checks its version, reconciles catalog and
    /// files, gives the policy back what was saved of it, and feeds it the rest in the order of persisted accesses.
    /// Blocks; cost: one directory walk.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Version`], [`Error::Foreign`], [`Error::UnreadablePin`], [`Error::Io`]. A damaged catalog is no error: it is rebuilt.
    pub fn open(config: Config, eviction: impl Into<Eviction>) -> Result<Self, Error> {
        Self::open_on(config, eviction, |config| {
            Ok(Arc::new(DiskTier::new(&config.data)?))
        })
    }

    /// The same on another tier than the disk, made after the folder is locked: how tests inject faults.
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
        let placer = placer.map(|fast| Placer::new(fast, disk.clone(), &config.rest));
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
        let places = (tier, placer);
        let store = Arc::new(Store::new(config.clone(), places, state, (folder, origins)));
        let tags = TagStore::open(store.clone())?;
        catalog.names(|key, validated| tags.restore(key, validated));
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

    /// A committed blob, if it is there. Counts as an access. One that is held in memory, or is being read,
    /// costs no I/O and no change of thread.
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

    /// A committed blob, if it is there, for pierhead's own work: no access, and it counts as no hit.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn peek(&self, digest: &Digest) -> Result<Option<StoredBlob>, Error> {
        if !self.holds(digest) {
            return Ok(None);
        }
        let (store, digest) = (self.store.clone(), *digest);
        let open = blocking(move || store.open_for(&digest, false)).await?;
        Ok(open.map(StoredBlob::new))
    }

    /// A committed blob, if it is there. No access; blocks.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open_for_background(&self, digest: &Digest) -> Result<Option<BackgroundReader>, Error> {
        let open = self.store.open_for(digest, false)?;
        Ok(open.map(BackgroundReader::new))
    }

    /// A committed blob, if it is held in memory or somebody has it open: what [`Cache::get`] gives without
    /// waiting. Counts as an access when it is there. Below a microsecond.
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

    /// Whether it is committed, or a fill of it is under way. No access, no I/O.
    pub fn contains(&self, digest: &Digest) -> bool {
        let state = self.store.state.lock();
        state.index.contains_key(digest) || state.fills.contains_key(digest)
    }

    /// Whether it is committed. No access, no I/O.
    pub fn holds(&self, digest: &Digest) -> bool {
        self.store.state.lock().index.contains_key(digest)
    }

    /// Single flight: exactly one caller per digest becomes the leader at a time. Its bytes come from `origin`; a fill
    /// resumes only staged bytes of the same origin. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Io`]: staging cannot be opened ([`Error::is_storage`]: stream without storing).
    pub async fn claim(&self, digest: &Digest, origin: Origin) -> Result<Claim, Error> {
        self.claim_as(digest, origin, Wanted::Any).await
    }

    async fn claim_as(
        &self,
        digest: &Digest,
        origin: Origin,
        wanted: Wanted<'_>,
    ) -> Result<Claim, Error> {
        loop {
            if let Some(stored) = self.get(digest).await?
                && (wanted == Wanted::Any || stored.media_type().map(Wanted::As) == Some(wanted))
            {
                return Ok(Claim::Hit(stored));
            }
            let shared_fill = {
                let mut state = self.store.state.lock();
                // Committed since we looked.
                if wanted == Wanted::Any && state.index.contains_key(digest) {
                    continue;
                }
                if state.closed {
                    return Err(closing());
                }
                match state.fills.get(digest) {
                    Some(shared_fill) => {
                        let doomed = shared_fill.is_doomed();
                        if !doomed {
                            // Under the lock, as the commit counts them.
                            shared_fill.joined.fetch_add(1, Ordering::Relaxed);
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

    /// Stores a small document (manifest, tag list) whole: verified, durable when this returns.
    ///
    /// # Errors
    /// [`Error::WrongDigest`], [`Error::NoRoom`], [`Error::Io`].
    pub async fn put(
        &self,
        digest: &Digest,
        media_type: &MediaType,
        content: Bytes,
    ) -> Result<StoredBlob, Error> {
        self.put_costing(digest, media_type, content, None).await
    }

    /// The same, saying how many seconds a client would wait for it if it were not there.
    ///
    /// # Errors
    /// As [`Cache::put`].
    pub async fn put_costing(
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
            let wanted = Wanted::As(media_type);
            match self.claim_as(digest, Origin::LOCAL, wanted).await? {
                Claim::Hit(stored) => return Ok(stored),
                Claim::Follower(BlobReader::Tail(tail)) => {
                    // Its outcome does not matter: the next round claims again.
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

    /// Of an image's manifest that was stored: its parts are known to be in one image more.
    fn count_parts(&self, digest: &Digest, media_type: &MediaType, content: Bytes) {
        // The children of an index are manifests, which are small whatever they are worth.
        if !media_type.is_manifest() {
            return;
        }
        if let Ok(manifest) = Manifest::parse(content, Some(media_type.as_str()))
            && !matches!(manifest.body, Body::Index { .. })
        {
            if let Some(placer) = &self.store.placer {
                placer.image_came(digest, &manifest);
            }
            let parts = manifest.children().take(MAX_PARTS).map(|part| part.digest);
            self.store.state.lock().share(digest, parts);
        }
    }

    /// Which digest a tag stood for, and since when that is known.
    pub fn tags(&self) -> &TagStore {
        &self.tags
    }

    /// Keeps these digests (present or to come) from eviction, under one label: a complete reference.
    /// Durable when this returns. Replaces an older pin of the same label.
    ///
    /// # Errors
    /// [`Error::Io`]; then nothing has changed.
    pub async fn pin(&self, label: &str, digests: Vec<Digest>) -> Result<(), Error> {
        self.set_pin(label, Some(digests)).await.map(|_| ())
    }

    /// Takes a pin back; `false` when there was none.
    ///
    /// # Errors
    /// [`Error::Io`]; then nothing has changed.
    pub async fn unpin(&self, label: &str) -> Result<bool, Error> {
        self.set_pin(label, None).await
    }

    async fn set_pin(&self, label: &str, digests: Option<Vec<Digest>>) -> Result<bool, Error> {
        let (store, pins, label) = (self.store.clone(), self.pins.clone(), label.to_owned());
        blocking(move || {
            let was_there = pins.set(&label, digests, |before, after| {
                let mut state = store.state.lock();
                // New ones first: what both pin is never without.
                after.iter().for_each(|digest| state.pin(*digest));
                before.iter().for_each(|digest| state.unpin(*digest));
            });
            // Only pins may have kept it over a bound that was lowered.
            store.shrink();
            was_there
        })
        .await
    }

    /// All labels with what they pin.
    pub fn pins(&self) -> Vec<(String, Vec<Digest>)> {
        self.pins.all()
    }

    /// Changes the bound while running; shrinking evicts at once, as far as pins and readers allow. What they keep
    /// over it leaves when it is unpinned, or soon after its last reader ([`Config::flush_interval`]).
    pub async fn set_capacity(&self, capacity: u64) {
        {
            let mut state = self.store.state.lock();
            state.capacity = capacity;
            state.ranking.resize(capacity);
        }
        let store = self.store.clone();
        blocking(move || store.shrink()).await;
    }

    /// Changes who leaves and who enters, while running and without losing a blob: another policy is fed all
    /// blobs in the order of their last accesses. A policy or admission of the name in use stays as it is.
    pub async fn set_eviction(&self, eviction: Eviction) {
        let store = self.store.clone();
        blocking(move || store.set_eviction(eviction)).await;
    }

    /// Counts bytes that somebody else wrote to the same disk among those of the day
    /// ([`Eviction::max_written_per_day`](crate::store::ranking::Eviction)). Does not block.
    pub fn wrote(&self, bytes: u64) {
        self.store.wrote(bytes);
    }

    /// Whether this day has bytes left for somebody else's work that can wait; for what a client waits for (`is_awaited`) there is
    /// a sixteenth more, as for small blobs. Does not block.
    pub fn may_write(&self, is_awaited: bool) -> bool {
        self.store.may_write(is_awaited)
    }

    /// Evicts until at most `target` bytes are used, as far as pins allow; returns bytes evicted. What is
    /// being read goes too, and its bytes are free when the last reader leaves.
    ///
    /// # Errors
    /// None today: what cannot be deleted stays counted.
    pub async fn prune(&self, target: u64) -> Result<u64, Error> {
        let store = self.store.clone();
        Ok(blocking(move || store.prune(target)).await)
    }

    /// Deletes these blobs, pins excepted; returns the bytes of those that were there.
    ///
    /// # Errors
    /// None today: what cannot be deleted stays counted.
    pub async fn remove(&self, digests: Vec<Digest>) -> Result<u64, Error> {
        let store = self.store.clone();
        Ok(blocking(move || store.remove(&digests)).await)
    }

    /// Reads one blob in full against its digest; a damaged one is removed. `Ok(false)` when it was
    /// damaged, `Ok(true)` when it is sound or not there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn verify(&self, digest: &Digest) -> Result<bool, Error> {
        let (store, digest) = (self.store.clone(), *digest);
        blocking(move || store.verify(&digest)).await
    }

    /// Closes the cache: aborts running fills (staged bytes stay), writes pending access ticks, and releases the lock of the
    /// data folder. Call it once, at the end; claims fail from then on.
    pub async fn close(&self) {
        let shared_fills: Vec<_> = {
            let mut state = self.store.state.lock();
            state.closed = true;
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
            if let Some(layers) = store.tier.layers() {
                layers.close();
            }
        })
        .await;
        self.store.unlock();
    }

    /// Where panics of background tasks are counted ([`Config::rest`]).
    pub fn panics(&self) -> &Panics {
        self.store.config.rest.panics()
    }

    /// Registers the metrics of the cache; the caller gives the prefix.
    pub fn register(&self, registry: &mut Registry) {
        self.store.metrics.register(registry);
        registry.register_collector(Box::new(StateCollector(Arc::downgrade(&self.store))));
    }
}

fn closing() -> Error {
    Error::Abandoned("the cache is closing".into())
}
