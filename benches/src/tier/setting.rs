//! The cache of the tier benchmarks: pierhead's cache code on modelled media, which are in memory.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use pierhead_cache::Placement;
use pierhead_cache::tier::{DiskTier, PmemTier, Tier};
use pierhead_cache::{BlobReader, Cache, Claim, Config, FastTier};
use pierhead_eviction::Lru;
use pierhead_oci::{Digest, MediaType};
use pierhead_pmem::{Log, Region};

use super::hot_files::HotTier;
use super::images::{Blob, Image};
use super::model::{DeviceModel, ModelledDisk, ModelledMedium};
use crate::pacer::Pacer;

/// Size of a network read in bytes.
const PIECE: usize = 64 << 10;
/// Number of concurrent layer downloads of a client, as in docker and containerd.
pub(super) const CONCURRENT_LAYERS: usize = 3;

/// The modelled link and media.
#[derive(Clone, Copy)]
pub(super) struct World {
    /// Rate of the upstream in bytes per second.
    pub(super) link: u64,
    pub(super) disk: DeviceModel,
    pub(super) fast: DeviceModel,
    /// Size of the disk's page cache in bytes.
    pub(super) memory: u64,
}

/// The fast tier of one run.
#[derive(Clone)]
pub(super) struct Fast {
    /// Size of the region in bytes.
    pub(super) size: u64,
    /// Maximum bytes of blobs; 0: as many as fit.
    pub(super) limit: u64,
    pub(super) placement: Placement,
    /// Blobs that never enter the tier.
    pub(super) cold: HashSet<Digest>,
}

/// The setting of one run: a cache on its own media.
pub(super) struct Setting {
    pub(super) cache: Cache,
    disk: Arc<ModelledDisk>,
    /// The link to the upstream, which all fetches share.
    link: Arc<Pacer>,
    _folder: tempfile::TempDir,
}

/// The times of one deployment.
pub(super) struct Deployment {
    /// Time until the last byte of the last layer was received.
    pub(super) download: Duration,
    /// Time until all bytes were durably stored.
    pub(super) total: Duration,
}

impl Setting {
    pub(super) fn new(folder: &Path, world: &World, fast: Option<Fast>) -> Result<Self> {
        let folder = tempfile::tempdir_in(folder)?;
        let mut config = Config::new(folder.path().join("data"), 1 << 40);
        config.fast = fast
            .map(|fast| fast.open(&folder.path().join("tier"), world))
            .transpose()?;
        let mut disk = None;
        let cache = Cache::open_on(config, Box::new(Lru::default()), |config| {
            let below = Arc::new(DiskTier::new(&config.data)?);
            let modelled = Arc::new(ModelledDisk::new(below, world.disk, world.memory));
            disk = Some(modelled.clone());
            Ok(modelled as Arc<dyn Tier>)
        })?;
        Ok(Self {
            cache,
            disk: disk.context("opened without a disk")?,
            link: Arc::new(Pacer::new(world.link)),
            _folder: folder,
        })
    }

    /// Waits until all blobs are on disk.
    pub(super) async fn settle(&self) {
        while self
            .cache
            .tier()
            .is_some_and(|tier| tier.fast.dirty_blobs > 0)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Bytes written to the fast tier.
    pub(super) fn staged(&self) -> u64 {
        self.cache.tier().map_or(0, |tier| tier.fast.staged)
    }

    /// Empties the disk's page cache, as after a reboot.
    pub(super) fn forget(&self) {
        self.disk.forget();
    }

    /// Fetches an image into the empty cache, as the proxy does for a client.
    pub(super) async fn deploy(&self, image: &Image) -> Result<Deployment> {
        let started_at = Instant::now();
        let (digest, bytes) = &image.manifest;
        self.put(digest, bytes).await?;
        let ends = self.each(image.parts(), fetch).await?;
        Ok(Deployment {
            download: ends.into_iter().max().unwrap_or(started_at) - started_at,
            total: started_at.elapsed(),
        })
    }

    /// Pulls an image through the cache, which fetches missing blobs. Returns the time that the
    /// client needs.
    pub(super) async fn pull(&self, image: &Image) -> Result<Duration> {
        let started_at = Instant::now();
        let (digest, bytes) = &image.manifest;
        if self.cache.get(digest).await?.is_none() {
            self.put(digest, bytes).await?;
        }
        let pulled = self.each(image.parts(), pull);
        pulled.await?;
        Ok(started_at.elapsed())
    }

    async fn put(&self, digest: &Digest, manifest: &Bytes) -> Result<()> {
        let media_type = MediaType::new(MediaType::OCI_MANIFEST).context("a media type")?;
        self.cache
            .put(digest, &media_type, manifest.clone())
            .await?;
        Ok(())
    }

    /// Processes blobs in order, with [`CONCURRENT_LAYERS`] at a time.
    async fn each<'a, W, T>(
        &self,
        blobs: impl Iterator<Item = &'a Blob>,
        work: impl Fn(Cache, Arc<Pacer>, Blob) -> W,
    ) -> Result<Vec<T>>
    where
        W: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let (mut running, mut done) = (tokio::task::JoinSet::new(), Vec::new());
        for blob in blobs {
            if running.len() == CONCURRENT_LAYERS
                && let Some(one) = running.join_next().await
            {
                done.push(one??);
            }
            running.spawn(work(self.cache.clone(), self.link.clone(), blob.clone()));
        }
        while let Some(one) = running.join_next().await {
            done.push(one??);
        }
        Ok(done)
    }
}

/// Fetches and stores one blob. Returns the time of its last byte.
async fn fetch(cache: Cache, link: Arc<Pacer>, (digest, bytes): Blob) -> Result<Instant> {
    let mut fill = match cache.claim(&digest, pierhead_cache::Origin::LOCAL).await? {
        Claim::Leader(fill, _) => fill,
        _ => bail!("{digest} is already cached"),
    };
    fill.begin(Some(bytes.len() as u64)).await?;
    for piece in pieces(&bytes) {
        carry(&link, piece.len()).await;
        fill.write(piece).await?;
    }
    let end = Instant::now();
    fill.finish().await?;
    Ok(end)
}

/// Reads one blob from the cache or from its running fill.
async fn pull(cache: Cache, link: Arc<Pacer>, blob: Blob) -> Result<()> {
    let (digest, bytes) = &blob;
    if let Some(object) = cache.get(digest).await? {
        let mut offset = 0;
        while offset < object.size() {
            let read = object.read_at(offset, 128 << 10).await?;
            ensure!(!read.is_empty(), "{digest} ends at {offset}");
            offset += read.len() as u64;
        }
        return Ok(());
    }
    let content = match cache.claim(digest, pierhead_cache::Origin::LOCAL).await? {
        Claim::Leader(mut fill, content) => {
            fill.begin(Some(bytes.len() as u64)).await?;
            for piece in pieces(bytes) {
                carry(&link, piece.len()).await;
                fill.write(piece).await?;
            }
            tokio::spawn(async move { fill.finish().await.map(drop) });
            content
        }
        Claim::Follower(content) => content,
        Claim::Hit(object) => BlobReader::Stored(object),
    };
    // The reader ends when the blob is verified. The reader does not wait until the blob is stored.
    let last = (bytes.len() as u64).saturating_sub(1);
    content.read_at(last, 1).await?;
    Ok(())
}

fn pieces(bytes: &Bytes) -> impl Iterator<Item = Bytes> {
    let starts = (0..bytes.len()).step_by(PIECE);
    starts.map(|start| bytes.slice(start..bytes.len().min(start + PIECE)))
}

impl Fast {
    fn open(&self, path: &Path, world: &World) -> Result<FastTier> {
        let region = Region::open(&pierhead_pmem::Config {
            path: path.to_owned(),
            size: self.size,
        })?;
        let medium = ModelledMedium::new(region, world.fast);
        let (log, _) = Log::open(medium, pierhead_pmem::Options::default())?;
        let most = log.capacity() / 32 * 31;
        let limit = if self.limit == 0 { most } else { self.limit };
        Ok(FastTier {
            tier: Arc::new(HotTier {
                below: Arc::new(PmemTier::new(log, None)),
                cold: self.cold.clone(),
            }),
            options: pierhead_cache::tier::Options::new(limit.min(most)),
            placement: self.placement,
            // The modelled size.
            class: "pmem",
            capacity: self.size,
        })
    }
}

/// Takes the time of sending this number of bytes over the link.
async fn carry(link: &Pacer, bytes: usize) {
    let passed = link.reserve(bytes as u64);
    if passed.saturating_duration_since(Instant::now()) > Duration::from_millis(1) {
        tokio::time::sleep_until(passed.into()).await;
    }
}
