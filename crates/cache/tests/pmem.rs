//! Tests of the persistent-memory tier: the conformance suite of tiers, power cuts, a failed
//! medium, and a cache that uses the tier.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use common::{blob, read_all, store};
use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{
    CHUNK, DiskTier, FastMedium, Options, PmemTier, Tier, Trailer, WriteBack,
};
use pierhead_cache::{BlobReader, Cache, Config};
use pierhead_eviction::Lru;
use pierhead_pmem::shadow::ShadowMedium;
use pierhead_pmem::{Class, Error, Log, Medium};
use pierhead_testkit::tier::{Faulty, MemoryTier, conforms, conforms_as_fast_medium};

const SEGMENT: u64 = 64 << 10;
const REGION: usize = 2 << 20;

fn tier_on<M: Medium>(medium: M, file: Option<File>) -> PmemTier<M> {
    let options = pierhead_pmem::Options { segment: SEGMENT };
    let (log, _) = Log::open(medium, options).unwrap();
    PmemTier::new(log, file)
}

/// A simulated medium whose bytes are stored in a file.
struct OnFile(File, u64);

impl OnFile {
    fn new(len: u64) -> (Self, File) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        let other = file.try_clone().unwrap();
        (Self(file, len), other)
    }

    fn told(result: io::Result<()>) -> Result<(), Error> {
        result.map_err(|source| Error::Io {
            doing: "use the test's file".into(),
            source,
        })
    }
}

impl Medium for OnFile {
    fn len(&self) -> u64 {
        self.1
    }

    fn class(&self) -> Class {
        Class::EmulatedFile
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        Self::told(self.0.read_exact_at(buf, offset))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Self::told(self.0.write_all_at(bytes, offset))
    }

    fn store(&self, offset: u64, word: u64) -> Result<(), Error> {
        self.write(offset, &word.to_le_bytes())
    }

    fn flush(&self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn fence(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn persistent_memory_conforms() {
    let current = RefCell::new(ShadowMedium::new(REGION));
    conforms_as_fast_medium(
        || {
            current.replace(ShadowMedium::new(REGION));
            tier_on(current.borrow().clone(), None)
        },
        |tier| {
            drop(tier);
            // A power cut, after which the bytes that were not flushed are lost.
            let medium = current.borrow().cut(1);
            current.replace(medium.clone());
            tier_on(medium, None)
        },
    );
    conforms(|| {
        let (medium, file) = OnFile::new(REGION as u64);
        tier_on(medium, Some(file))
    });
}

fn behind(fast: Arc<dyn FastMedium>, slow: Arc<dyn Tier>) -> WriteBack {
    let options = Options {
        default_destination: Destination::Fast,
        ..Options::new(1 << 20)
    };
    WriteBack::open(fast, slow, options).unwrap()
}

#[test]
fn persistent_memory_in_front_of_a_disk_conforms() {
    conforms(|| {
        let (medium, file) = OnFile::new(REGION as u64);
        let fast = tier_on(medium, Some(file));
        behind(Arc::new(fast), Arc::new(MemoryTier::default()))
    });
    // The tier is full before its limit is reached.
    conforms(|| {
        let fast = tier_on(ShadowMedium::new(1 << 20), None);
        behind(Arc::new(fast), Arc::new(MemoryTier::default()))
    });
}

fn commit(tier: &dyn Tier, seed: u64, len: usize) -> pierhead_oci::Digest {
    let (digest, content) = blob(seed, len);
    let mut staged = tier.stage(&digest).unwrap();
    staged.write(&[&content]).unwrap();
    staged.commit(Trailer::of(&content, None)).unwrap();
    digest
}

fn has(tier: &dyn Tier, seed: u64, len: usize) -> bool {
    let (digest, content) = blob(seed, len);
    let Some(blob) = tier.open(&digest).unwrap() else {
        return false;
    };
    let mut read = vec![0; len];
    blob.read_at(0, &mut read).unwrap();
    assert_eq!(read, content);
    true
}

/// The counted bytes of a blob are at least its bytes in the log, also if the blob fills the unused
/// ends of segments.
#[test]
fn the_counted_footprint_covers_the_bytes_in_the_log() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..4 {
        let tier = tier_on(ShadowMedium::new(REGION), None);
        let mut counted = 0;
        // Two blobs are stored at the same time, so that each of them leaves partly filled
        // segments.
        for pair in 0..6 {
            let mut staged: Vec<_> = (0..2_u64)
                .map(|nth| {
                    let (digest, content) = blob(2 * pair + nth, random.usize(0..130_000));
                    (tier.stage(&digest).unwrap(), content)
                })
                .collect();
            for at in 0..14 {
                for (staged, content) in &mut staged {
                    let piece = content.chunks(10_000).nth(at).unwrap_or_default();
                    staged.write(&[piece]).unwrap();
                }
            }
            for (staged, content) in staged {
                let trailer = Trailer::of(&content, None);
                let encoded = trailer.encode(&blob(0, 0).0);
                counted += tier.footprint((content.len() + encoded.len()) as u64);
                staged.commit(trailer).unwrap();
            }
            let used = tier.capacity() - tier.free().unwrap();
            assert!(used <= counted, "{used} of {counted}");
            assert!(
                used > counted / 100 * 75,
                "{used} of {counted}: far too much"
            );
        }
    }
}

#[test]
fn committed_blobs_survive_a_power_cut_and_uncommitted_ones_do_not_appear() {
    for seed in 0..8 {
        let medium = ShadowMedium::new(REGION);
        let tier = tier_on(medium.clone(), None);
        for (nth, len) in [0, 1, 100_000, 300_000].into_iter().enumerate() {
            commit(&tier, nth as u64, len);
        }
        tier.remove(&blob(1, 1).0).unwrap();
        let (digest, content) = blob(9, 200_000);
        let mut staged = tier.stage(&digest).unwrap();
        staged.write(&[&content]).unwrap();
        let after = tier_on(medium.cut(seed), None);
        assert!(has(&after, 0, 0) && has(&after, 2, 100_000) && has(&after, 3, 300_000));
        assert!(!has(&after, 1, 1) && !has(&after, 9, 200_000));
        let mut found = 0;
        after
            .scan(&mut |blob| {
                found += 1;
                assert!(blob.modified > 0);
            })
            .unwrap();
        assert_eq!(found, 3);
        after
            .scan_staged(&mut |found| panic!("{found:?} of another process"))
            .unwrap();
    }
}

#[test]
fn two_blobs_at_one_offset_have_different_record_numbers() {
    let (medium, file) = OnFile::new(REGION as u64);
    let tier = tier_on(medium, Some(file));
    let record = |tier: &dyn Tier| {
        let blob = tier.open(&blob(1, CHUNK).0).unwrap().unwrap();
        blob.extent(0).unwrap().record.unwrap()
    };
    let digest = commit(&tier, 1, CHUNK);
    let first = record(&tier);
    assert_eq!(record(&tier), first, "it was not touched");
    tier.remove(&digest).unwrap();
    commit(&tier, 1, CHUNK);
    assert_ne!(record(&tier), first);
}

#[test]
fn a_failed_medium_loses_no_blob() {
    let medium = ShadowMedium::new(REGION);
    let disk = Faulty::new(Arc::new(MemoryTier::default()));
    let tier = behind(
        Arc::new(tier_on(medium.clone(), None)),
        Arc::new(disk.clone()),
    );
    commit(&tier, 1, 100_000);
    tier.flush(|| false);
    let (digest, content) = blob(2, 300_000);
    let mut staged = tier.stage(&digest).unwrap();
    assert!(has(&tier, 1, 100_000) && tier.has_copy(&blob(1, 100_000).0));
    assert!(!tier.stat().failed);
    medium.fail_after(Some(0));
    assert!(staged.write(&[&content]).is_ok());
    staged.commit(Trailer::of(&content, None)).unwrap();
    assert!(has(&tier, 2, 300_000), "the fill went to the disk");
    assert!(has(&tier, 1, 100_000), "the disk's copy is read");
    assert!(!tier.has_copy(&blob(1, 100_000).0));
    let stat = tier.stat();
    assert!(stat.failed && stat.free == 0, "{stat:?}");
    // The next fill does not use the failed medium.
    let moved = stat.moved;
    commit(&tier, 3, 300_000);
    assert!(has(&tier, 3, 300_000));
    assert_eq!(tier.stat().moved, moved);
    // Copies that the tier cannot store cause no reads from the disk.
    let calls = disk.calls();
    tier.promote(blob(3, 300_000).0, 300_000, 9.0);
    tier.set_hot_ranges(blob(2, 300_000).0, std::slice::from_ref(&(0..70_000)), 9.0);
    tier.flush(|| false);
    assert_eq!(disk.calls(), calls);
}

#[tokio::test]
async fn a_cache_sends_verified_bytes_from_the_region() {
    let folder = tempfile::tempdir().unwrap();
    let (medium, file) = OnFile::new(REGION as u64);
    let fast = Arc::new(tier_on(medium, Some(file)));
    let config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    let slow = Arc::new(DiskTier::new(folder.path()).unwrap());
    let tier: Arc<dyn Tier> = Arc::new(behind(fast, slow));
    let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(tier)).unwrap();
    let (digest, content) = blob(1, 500_000);
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    let mut offset = 0;
    while offset < object.size() {
        let verified_len = object.verified_len(offset, u64::MAX);
        assert!(verified_len > 0, "verified at the commit, and in memory");
        let extent = object.extent(offset).unwrap();
        assert!(verified_len <= extent.len);
        let mut bytes = vec![0; usize::try_from(verified_len).unwrap()];
        extent.file.read_exact_at(&mut bytes, extent.at).unwrap();
        let from = usize::try_from(offset).unwrap();
        assert_eq!(bytes, content[from..from + bytes.len()]);
        offset += verified_len;
    }
    assert!(
        object.extent(0).unwrap().len < object.size(),
        "in several runs"
    );
    let read = read_all(&BlobReader::Stored(object)).await.unwrap();
    assert_eq!(read, content);
    cache.close().await;
}

#[test]
fn a_reduced_limit_returns_memory_to_the_system() {
    use pierhead_pmem::Region;
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("tier");
    let size = 4 << 20;
    let config = pierhead_pmem::Config {
        path: path.clone(),
        size,
    };
    let options = pierhead_pmem::Options { segment: SEGMENT };
    let (log, _) = Log::open(Region::open(&config).unwrap(), options).unwrap();
    let fast = Arc::new(PmemTier::new(log, None));
    let options = Options {
        default_destination: Destination::Fast,
        volatile: true,
        ..Options::new(3 << 20)
    };
    let tier = WriteBack::open(fast, Arc::new(MemoryTier::default()), options).unwrap();
    let contents: Vec<_> = (0..4).map(|seed| blob(seed, 400_000)).collect();
    for (digest, content) in &contents {
        let mut staged = tier.stage(digest).unwrap();
        staged.write(&[content]).unwrap();
        drop(staged.commit(Trailer::of(content, None)).unwrap());
    }
    tier.flush(|| false);
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let whole = taken();
    assert!(whole >= size, "{whole}");
    tier.set_limit(1 << 20);
    assert!(tier.stat().blobs > 0 && tier.stat().used <= 1 << 20);
    let lowered = taken();
    assert!(lowered <= whole / 2, "{lowered} of {whole}");
    tier.set_limit(0);
    assert!(tier.stat().used == 0 && taken() < lowered);
    tier.set_limit(3 << 20);
    for (digest, content) in &contents {
        let blob = tier.open(digest).unwrap().unwrap();
        let mut bytes = vec![0; content.len()];
        blob.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, content[..]);
    }
}
