//! Tests a race in the store of blobs: one thread removes a damaged blob while another thread
//! commits the same blob again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::{io, thread};

use bytes::Bytes;
use pierhead_eviction::Lru;
use pierhead_oci::{Algorithm, Digest, MediaType};

use crate::cache::Cache;
use crate::config::Config;
use crate::tier::{Blob, DiskTier, Staged, Tier, TierEntry};

/// A disk tier that reports damage at the first call of `open`.
struct Damaged {
    disk: DiskTier,
    damaged: AtomicBool,
    /// Synchronizes the thread that reads the damaged blob with the test.
    opened: Barrier,
}

impl Tier for Damaged {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        self.disk.stage(digest)
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.disk.discard(digest)
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        if !self.damaged.swap(false, Ordering::SeqCst) {
            return self.disk.open(digest);
        }
        self.opened.wait();
        Err(io::ErrorKind::InvalidData.into())
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.disk.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.disk.scan(visit)
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.disk.scan_staged(visit)
    }

    fn free(&self) -> io::Result<u64> {
        self.disk.free()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_damaged_blob_keeps_a_blob_that_was_committed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Arc::new(Damaged {
        disk: DiskTier::new(folder.path()).unwrap(),
        damaged: AtomicBool::new(false),
        opened: Barrier::new(2),
    });
    let mut config = Config::new(folder.path(), 64 << 20);
    config.memory = 0;
    let on = tier.clone();
    let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(on)).unwrap();
    let content = Bytes::from_static(b"a manifest");
    let digest = Digest::of(Algorithm::Sha256, &content);
    let types =
        [MediaType::OCI_INDEX, MediaType::OCI_MANIFEST].map(|it| MediaType::new(it).unwrap());
    drop(
        cache
            .put(&digest, &types[0], content.clone())
            .await
            .unwrap(),
    );
    tier.damaged.store(true, Ordering::SeqCst);
    let store = cache.store.clone();
    let reader = thread::spawn(move || store.open_for(&digest, false).unwrap().is_none());
    tier.opened.wait();
    // This thread commits the blob again as soon as the lock of its digest is free.
    drop(
        cache
            .put(&digest, &types[1], content.clone())
            .await
            .unwrap(),
    );
    assert!(reader.join().unwrap(), "the damaged blob is not served");
    let stored = cache.peek(&digest).await.unwrap();
    let stored = stored.expect("the new commit stays");
    assert_eq!(stored.read_all(100).await.unwrap(), content);
}
