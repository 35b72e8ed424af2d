//! Helpers of the cache's integration tests: functions that open caches, create blobs and tags, and
//! read files.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::tier::Tier;
use pierhead_cache::{
    BlobReader, Cache, Claim, Config, Error, Fill, Origin, TagKey, TagRecord, TailReader,
};
use pierhead_eviction::Lru;
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_testkit::wait;

pub(crate) const AMPLE_CAPACITY: u64 = 64 << 20;

pub(crate) fn open(folder: &Path) -> Cache {
    open_with(Config::new(folder, AMPLE_CAPACITY))
}

pub(crate) fn open_with(config: Config) -> Cache {
    Cache::open(config, Box::new(Lru::default())).expect("the folder opens")
}

/// Opens a cache on another tier than the disk.
pub(crate) fn open_on(config: Config, tier: impl Tier + 'static) -> Cache {
    let tier = Arc::new(tier);
    Cache::open_on(config, Box::new(Lru::default()), |_| Ok(tier)).expect("the folder opens")
}

/// Opens a cache that must fail to start, and returns the error.
pub(crate) fn refused(config: Config) -> Error {
    let refused = Cache::open(config, Box::new(Lru::default()));
    refused.err().expect("the start is refused")
}

/// Returns a tag of the test repository, with this number.
pub(crate) fn tag(number: u64) -> TagKey {
    let text = format!("registry.example/some/image:v{number}");
    TagKey::Manifest(text.parse().expect("a reference"))
}

/// Returns a record of a tag, whose digest and time follow from this number.
pub(crate) fn tag_record(number: u64) -> TagRecord {
    TagRecord {
        digest: blob(number, 10).0,
        media_type: MediaType::new(MediaType::OCI_INDEX).unwrap(),
        etag: None,
        warnings: Vec::new(),
        validated: number,
    }
}

/// Returns the registry that sends all bytes in these tests.
pub(crate) fn origin() -> Origin {
    Origin::of(&"registry.example".parse().expect("a registry"))
}

/// Returns random bytes and their digest. The bytes are the same for the same seed.
pub(crate) fn blob(seed: u64, len: usize) -> (Digest, Bytes) {
    let mut content = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut content);
    (Digest::of(Algorithm::Sha256, &content), content.into())
}

pub(crate) async fn lead(cache: &Cache, digest: &Digest) -> (Fill, TailReader) {
    match cache.claim(digest, origin()).await.expect("a claim") {
        Claim::Leader(fill, BlobReader::Tail(tail)) => (fill, tail),
        Claim::Leader(..) => panic!("a leader tails its fill"),
        Claim::Hit(_) => panic!("{digest} is there already"),
        Claim::Follower(_) => panic!("{digest} is being filled already"),
    }
}

pub(crate) async fn store(cache: &Cache, digest: &Digest, content: &Bytes) {
    try_store(cache, digest, content).await.expect("it fits");
}

pub(crate) async fn try_store(
    cache: &Cache,
    digest: &Digest,
    content: &Bytes,
) -> Result<(), Error> {
    let (mut fill, _) = lead(cache, digest).await;
    let content = match usize::try_from(fill.offset()) {
        Ok(0) => content.clone(),
        _ => {
            fill.restart().await?;
            content.clone()
        }
    };
    fill.begin(Some(content.len() as u64)).await?;
    fill.write(content).await?;
    fill.finish().await.map(|_| ())
}

/// Reads the content to its end, in pieces.
pub(crate) async fn read_all(content: &(impl Read + ?Sized)) -> Result<Bytes, Error> {
    let mut all = Vec::new();
    loop {
        let piece = content.read(all.len() as u64).await?;
        if piece.is_empty() {
            return Ok(all.into());
        }
        all.extend_from_slice(&piece);
    }
}

#[allow(async_fn_in_trait, reason = "of tests only")]
pub(crate) trait Read {
    async fn read(&self, offset: u64) -> Result<Bytes, Error>;
}

impl Read for TailReader {
    async fn read(&self, offset: u64) -> Result<Bytes, Error> {
        self.read_at(offset, 100_000).await
    }
}

impl Read for BlobReader {
    async fn read(&self, offset: u64) -> Result<Bytes, Error> {
        self.read_at(offset, 100_000).await
    }
}

/// Returns the number of regular files below `folder/name`, at any depth.
pub(crate) fn files_below(folder: &Path, name: &str) -> usize {
    walk(&folder.join(name)).len()
}

/// Returns every regular file below `folder`, with its length in whole blocks.
pub(crate) fn walk(folder: &Path) -> Vec<(std::path::PathBuf, u64)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(walk(&path));
        } else if let Ok(metadata) = path.metadata() {
            all.push((path, metadata.len().div_ceil(4096) * 4096));
        }
    }
    all
}

/// Opens the database of a closed cache. sled releases its lock in a thread of its own, and a
/// process that another test starts has the lock until its `exec`.
pub(crate) fn open_catalog(folder: &Path) -> sled::Db {
    let mut database = None;
    wait::until("the lock of the catalog is free", || {
        database = sled::open(folder.join("catalog")).ok();
        database.is_some()
    });
    database.unwrap()
}
