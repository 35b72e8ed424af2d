//! What an error or a panic leaves behind stays counted until it is gone, and is counted once.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{blob, lead, store, try_store};
use pierhead_cache::tier::{Blob, Found, ReadAt, Staged, Tier, Trailer};
use pierhead_cache::{Cache, Config, Error};
use pierhead_eviction::Lru;
use pierhead_oci::Digest;
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};

const EIO: i32 = 5;

fn on(tier: impl Tier + 'static, folder: &tempfile::TempDir) -> Cache {
    let config = Config::new(folder.path(), 10_000_000);
    Cache::open_on(config, Box::new(Lru::default()), |_| Ok(Arc::new(tier))).unwrap()
}

/// Leaves 500 000 bytes staged, counted in whole blocks.
async fn cut(cache: &Cache, seed: u64) -> (Digest, bytes::Bytes) {
    let (digest, content) = blob(seed, 1_000_000);
    let (mut fill, tail) = lead(cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    fill.write(content.slice(..500_000)).await.unwrap();
    fill.abandon("cut");
    assert!(tail.committed().await.is_err());
    assert_eq!(cache.stat().reserved, 503_808);
    (digest, content)
}

#[tokio::test]
async fn staged_bytes_that_cannot_be_opened_stay_counted() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faulty::new(Arc::new(MemoryTier::default()));
    let cache = on(faults.clone(), &folder);
    let (digest, content) = cut(&cache, 1).await;
    faults.fail(Op::Stage, 0, 1, EIO);
    assert!(cache.claim(&digest).await.is_err());
    assert_eq!(cache.stat().reserved, 503_808, "the file is still there");
    assert_eq!(cache.stat().fills, 0);
    // They can be resumed, and deleted for room.
    let (fill, _) = lead(&cache, &digest).await;
    assert_eq!(fill.offset(), 458_752);
    drop(fill);
    while cache.stat().fills > 0 {
        tokio::task::yield_now().await;
    }
    cache.prune(0).await.unwrap();
    assert_eq!(cache.stat().reserved, 0);
    store(&cache, &digest, &content).await;
}

/// Panics once: on a write, or when it is read after its commit.
#[derive(Clone)]
struct Panicking {
    tier: MemoryTier,
    write: Arc<AtomicBool>,
    read: Arc<AtomicBool>,
}

struct Inner<T: ?Sized>(Box<T>, Panicking);

impl Tier for Panicking {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        Ok(Box::new(Inner(self.tier.stage(digest)?, self.clone())))
    }
    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.tier.discard(digest)
    }
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        self.tier.open(digest)
    }
    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.tier.remove(digest)
    }
    fn scan(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()> {
        self.tier.scan(visit)
    }
    fn leftovers(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()> {
        self.tier.leftovers(visit)
    }
    fn free(&self) -> io::Result<u64> {
        self.tier.free()
    }
}

impl Staged for Inner<dyn Staged> {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(bytes)?;
        assert!(!self.1.write.swap(false, Ordering::SeqCst), "on a write");
        Ok(())
    }
    fn clear(&mut self) -> io::Result<()> {
        self.0.clear()
    }
    fn reader(&self) -> Arc<dyn ReadAt> {
        self.0.reader()
    }
    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        let blob = self.0.commit(trailer)?;
        Ok(Arc::new(Inner(Box::new(blob), self.1)))
    }
}

impl ReadAt for Inner<Arc<dyn Blob>> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(!self.1.read.swap(false, Ordering::SeqCst), "on a read");
        self.0.read_at(offset, buf)
    }
    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read_at(offset, buf)
    }
}

impl Blob for Inner<Arc<dyn Blob>> {
    fn trailer(&self) -> &Trailer {
        self.0.trailer()
    }
}

#[tokio::test]
async fn a_panic_ends_a_fill_once_and_leaves_what_it_staged_counted() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Panicking {
        tier: MemoryTier::default(),
        write: Arc::default(),
        read: Arc::default(),
    };
    let cache = on(tier.clone(), &folder);
    let (digest, content) = blob(1, 1_000_000);
    tier.write.store(true, Ordering::SeqCst);
    let error = try_store(&cache, &digest, &content).await.unwrap_err();
    assert!(matches!(error, Error::Abandoned(_)), "{error}");
    let stat = cache.stat();
    assert!(stat.reserved >= 1_000_000 && stat.fills == 0, "{stat:?}");
    store(&cache, &digest, &content).await;
    assert_eq!(cache.stat().reserved, 0);

    // After the commit: what was set aside is the blob's by now.
    let (digest, content) = blob(2, 5_000);
    tier.read.store(true, Ordering::SeqCst);
    let error = try_store(&cache, &digest, &content).await.unwrap_err();
    assert!(matches!(error, Error::Abandoned(_)), "{error}");
    let stat = cache.stat();
    assert_eq!((stat.blobs, stat.reserved, stat.fills), (2, 0, 0));
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(object.read_all(5_000).await.unwrap(), content);
}
