//! The tier on a region of this machine: in `PIERHEAD_PMEM_DIR`, which is persistent memory then, or in a temporary folder.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use common::{ROOMY, blob, read_all, store};
use pierhead_cache::staging::Placement;
use pierhead_cache::tier::{DiskTier, Options, PmemTier, Tier, WriteBehind};
use pierhead_cache::{Cache, Config, Content};
use pierhead_eviction::Lru;
use pierhead_pmem::{Class, Log, Region};
use pierhead_testkit::tier::{MemoryTier, conforms};

const SIZE: u64 = 8 << 20;

fn folder() -> tempfile::TempDir {
    match std::env::var_os("PIERHEAD_PMEM_DIR") {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn tier_in(folder: &Path, name: &str) -> PmemTier<Region> {
    let region = Region::open(&pierhead_pmem::Config {
        path: folder.join(name),
        size: SIZE,
    });
    let region = region.unwrap();
    if std::env::var_os("PIERHEAD_PMEM_DIR").is_some() {
        assert_eq!(region.report().class, Class::Pmem, "{}", region.report());
    }
    let file = region.file().try_clone().unwrap();
    let options = pierhead_pmem::Options { segment: 256 << 10 };
    let (log, _) = Log::open(region, options).unwrap();
    PmemTier::new(log, Some(file))
}

fn staged() -> Options {
    Options {
        unhinted: Placement::Fast,
        ..Options::new(4 << 20)
    }
}

#[test]
fn a_region_conforms_alone_and_in_front_of_a_disk() {
    let folder = folder();
    let count = Cell::new(0);
    let next = || {
        count.set(count.get() + 1);
        // Of many none is needed twice.
        let _ = std::fs::remove_file(folder.path().join(format!("{}", count.get() - 1)));
        tier_in(folder.path(), &count.get().to_string())
    };
    conforms(next);
    conforms(|| {
        WriteBehind::open(Arc::new(next()), Arc::new(MemoryTier::default()), staged()).unwrap()
    });
}

#[tokio::test]
async fn a_cache_goes_on_where_it_was_with_what_its_disk_has_not_taken() {
    let (folder, data) = (folder(), tempfile::tempdir().unwrap());
    let blobs: Vec<_> = (0..4).map(|seed| blob(seed, 700_000)).collect();
    for round in 0..2 {
        let fast = tier_in(folder.path(), "region");
        let slow = Arc::new(DiskTier::new(data.path()).unwrap());
        let options = Options {
            drain_rate: 1,
            ..staged()
        };
        let tier = Arc::new(WriteBehind::open(Arc::new(fast), slow.clone(), options).unwrap());
        let config = Config::new(data.path(), ROOMY);
        let both: Arc<dyn Tier> = tier.clone();
        let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(both)).unwrap();
        for (digest, content) in &blobs {
            if round == 0 {
                store(&cache, digest, content).await;
            }
            assert!(tier.holds(digest));
            let object = cache.get(digest).await.unwrap().unwrap();
            assert_eq!(read_all(&Content::Object(object)).await.unwrap(), content);
        }
        // The end takes along what was being drained.
        let queue = tier.stat().queue;
        assert!(queue == 4 || (round == 1 && queue == 3), "{queue}");
        for (digest, _) in &blobs[1..] {
            assert!(slow.open(digest).unwrap().is_none());
        }
        cache.close().await;
    }
}
