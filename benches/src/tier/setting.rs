//! A cache as the experiments use it: the real one, on modelled media that lie in memory.

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

/// Bytes that a connection brings at once.
const PIECE: usize = 64 << 10;
/// Layers that a client fetches at once, as docker and containerd do.
pub(super) const HANDS: usize = 3;

/// Everything that is slower than this machine.
#[derive(Clone, Copy)]
pub(super) struct World {
    /// Bytes a second from the upstream.
    pub(super) link: u64,
    pub(super) disk: DeviceModel,
    pub(super) fast: DeviceModel,
    /// Bytes of the disk that are in memory.
    pub(super) memory: u64,
}

/// The fast tier of one run.
#[derive(Clone)]
pub(super) struct Fast {
    /// Bytes of the region.
    pub(super) size: u64,
    /// Most bytes of blobs; 0: as many as fit.
    pub(super) limit: u64,
    pub(super) placement: Placement,
    /// Blobs that never enter it.
    pub(super) cold: HashSet<Digest>,
}

/// One run: a cache on media of its own.
pub(super) struct Setting {
    pub(super) cache: Cache,
    disk: Arc<ModelledDisk>,
    /// To the upstream, which all fetches share.
    link: Arc<Pacer>,
    _folder: tempfile::TempDir,
}

/// How one deployment went.
pub(super) struct Deployment {
    /// Until the last byte of the last layer was here.
    pub(super) download: Duration,
    /// Until all was stored for good.
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

    /// Waits until the disk has all.
    pub(super) async fn settle(&self) {
        while self
            .cache
            .tier()
            .is_some_and(|tier| tier.fast.dirty_blobs > 0)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Bytes that were written to the fast tier so far.
    pub(super) fn staged(&self) -> u64 {
        self.cache.tier().map_or(0, |tier| tier.fast.staged)
    }

    /// As after a restart of the machine: nothing of the disk is in memory.
    pub(super) fn forget(&self) {
        self.disk.forget();
    }

    /// Fetches an image of which nothing is here, as a client makes the proxy do it.
    pub(super) async fn deploy(&self, image: &Image) -> Result<Deployment> {
        let begun = Instant::now();
        let (digest, bytes) = &image.manifest;
        self.put(digest, bytes).await?;
        let ends = self.each(image.parts(), fetch).await?;
        Ok(Deployment {
            download: ends.into_iter().max().unwrap_or(begun) - begun,
            total: begun.elapsed(),
        })
    }

    /// Reads an image through the cache, and fetches what is not there: says how long a client waits.
    pub(super) async fn pull(&self, image: &Image) -> Result<Duration> {
        let begun = Instant::now();
        let (digest, bytes) = &image.manifest;
        if self.cache.get(digest).await?.is_none() {
            self.put(digest, bytes).await?;
        }
        let pulled = self.each(image.parts(), pull);
        pulled.await?;
        Ok(begun.elapsed())
    }

    async fn put(&self, digest: &Digest, manifest: &Bytes) -> Result<()> {
        let media_type = MediaType::new(MediaType::OCI_MANIFEST).context("a media type")?;
        self.cache
            .put(digest, &media_type, manifest.clone())
            .await?;
        Ok(())
    }

    /// Works on blobs in order, some at a time.
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
            if running.len() == HANDS
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

/// Stores one blob as it comes: says when its last byte was here.
async fn fetch(cache: Cache, link: Arc<Pacer>, (digest, bytes): Blob) -> Result<Instant> {
    let mut fill = match cache.claim(&digest, pierhead_cache::Origin::LOCAL).await? {
        Claim::Leader(fill, _) => fill,
        _ => bail!("{digest} is there already"),
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

/// Reads one blob, from the cache or while it comes.
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
    // Whoever reads has all as soon as it is checked: what it takes to store it keeps nobody.
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
            // What it stands for.
            class: "pmem",
            capacity: self.size,
        })
    }
}

/// Takes as long as carrying so many bytes over the link.
async fn carry(link: &Pacer, bytes: usize) {
    let passed = link.reserve(bytes as u64);
    if passed.saturating_duration_since(Instant::now()) > Duration::from_millis(1) {
        tokio::time::sleep_until(passed.into()).await;
    }
}
