//! Tests of the copies of hot ranges. Hot ranges are the parts of a blob that container starts
//! read. The fast tier stores only these parts of a blob that is on the disk.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use common::{AMPLE_CAPACITY, blob, lead, open_with, read_all};
use pierhead_cache::Placement;
use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{
    Blob, CHUNK, DiskTier, FastMedium, Hint, Options, Tier, Trailer, WriteBack,
};
use pierhead_cache::{BlobReader, Cache, Config, Error, FastTier};
use pierhead_oci::Digest;
use pierhead_testkit::tier::{Faulty, MemoryTier};
use pierhead_testkit::wait;

const C: u64 = CHUNK as u64;
const SIZE: usize = 40 * CHUNK + 123;
/// Number of bytes of a copy in addition to its chunks: a header of one page, and a trailer.
const BESIDE: u64 = 4096 + 1024;

fn options(default_destination: Destination) -> Options {
    Options {
        default_destination,
        ..Options::new(8 << 20)
    }
}

fn over(fast: &MemoryTier, disk: &Path, default_destination: Destination) -> WriteBack {
    let disk = DiskTier::new(disk).unwrap();
    WriteBack::open(
        Arc::new(fast.clone()),
        Arc::new(disk),
        options(default_destination),
    )
    .unwrap()
}

fn commit(tier: &dyn Tier, digest: &Digest, content: &[u8]) {
    let mut staged = tier.stage(digest).unwrap();
    staged.write(&[content]).unwrap();
    staged.commit(Trailer::of(content, None)).unwrap();
}

fn flush(tier: &WriteBack) {
    tier.flush(|| false);
}

fn read(blob: &dyn Blob, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    blob.read_at(range.start, &mut bytes).unwrap();
    bytes
}

fn all(tier: &dyn Tier, digest: &Digest) -> Vec<u8> {
    let blob = tier.open(digest).unwrap().unwrap();
    read(&*blob, 0..blob.trailer().size())
}

/// Returns the file of a blob on the disk.
fn file(disk: &Path, digest: &Digest) -> std::path::PathBuf {
    let hex = digest.hex();
    disk.join("blobs/sha256").join(&hex[..2]).join(&hex)
}

/// Hot ranges that cover three chunks in two contiguous runs.
const HOT: [Range<u64>; 2] = [3 * C + 5..3 * C + 6, 20 * C - 1..20 * C + 1];

#[test]
fn a_whole_copy_is_replaced_by_its_hot_ranges() {
    let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
    let tier = over(&fast, disk.path(), Destination::Fast);
    let (digest, content) = blob(1, SIZE);
    commit(&tier, &digest, &content);
    flush(&tier);
    assert_eq!((tier.stat().blobs, tier.stat().hot), (1, 0));
    let before = tier.open(&digest).unwrap().unwrap();
    tier.set_hot_ranges(digest, &HOT, 1.0);
    flush(&tier);
    let stat = tier.stat();
    assert_eq!((stat.blobs, stat.hot, stat.dirty_blobs), (0, 1, 0));
    assert!((3 * C..3 * C + BESIDE).contains(&stat.hot_used), "{stat:?}");
    assert!(!tier.has_copy(&digest));
    assert_eq!(
        read(&*before, 0..SIZE as u64),
        content[..],
        "who reads it reads on"
    );
    assert!(
        tier.stat().used > stat.hot_used + SIZE as u64,
        "and it counts"
    );
    drop(before);
    assert_eq!(tier.stat().used, stat.hot_used);
    assert_eq!(all(&tier, &digest), content[..]);
    assert_eq!((tier.stat().hot_hits, tier.stat().disk_hits), (1, 0));
    // The copy is not visible as a whole copy.
    assert!(fast.open(&digest).unwrap().is_none());
    let mut found = Vec::new();
    tier.scan(&mut |it| found.push(it.digest)).unwrap();
    assert_eq!(found, [digest]);
    // A second call with the same ranges changes nothing.
    let staged = tier.stat().staged;
    tier.set_hot_ranges(digest, &HOT, 1.0);
    flush(&tier);
    assert_eq!(tier.stat().staged, staged);
}

#[test]
fn a_blob_with_mostly_hot_ranges_is_copied_whole() {
    for at_first in [Destination::Fast, Destination::Disk] {
        let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
        let tier = over(&fast, disk.path(), at_first);
        let (digest, content) = blob(1, SIZE);
        commit(&tier, &digest, &content);
        flush(&tier);
        tier.set_hot_ranges(digest, &[C..20 * C, 20 * C..33 * C], 1.0);
        flush(&tier);
        let stat = tier.stat();
        assert_eq!((stat.blobs, stat.hot), (1, 0), "{at_first:?}");
        assert!(tier.has_copy(&digest));
        assert_eq!(all(&tier, &digest), content[..]);
        // A whole copy that was evicted is made again, in the same way as a copy of ranges.
        tier.set_limit(0);
        assert!(!tier.has_copy(&digest));
        tier.set_limit(8 << 20);
        tier.rank_hot(&digest, 1.0);
        flush(&tier);
        assert!(tier.has_copy(&digest));
    }
}

#[test]
fn hot_ranges_are_read_from_the_fast_tier_and_others_from_the_disk() {
    let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
    let tier = over(&fast, disk.path(), Destination::Disk);
    let (digest, content) = blob(2, SIZE);
    commit(&tier, &digest, &content);
    tier.set_hot_ranges(digest, &HOT, 1.0);
    flush(&tier);
    assert_eq!(tier.stat().hot, 1);
    let opened = tier.open(&digest).unwrap().unwrap();
    // The blob on the disk is overwritten, so that the content shows from which tier a byte was
    // read.
    let path = file(disk.path(), &digest);
    let written = fs::OpenOptions::new().write(true).open(path).unwrap();
    written.write_all_at(&vec![7; SIZE], 0).unwrap();
    let bytes = read(&*opened, 0..SIZE as u64);
    let mut at_once = vec![0; SIZE];
    let came = opened.try_read_at(0, &mut at_once).unwrap();
    assert_eq!(at_once[..came], bytes[..came]);
    for (chunk, bytes) in (0_u64..).zip(bytes.chunks(CHUNK)) {
        let from = usize::try_from(chunk * C).unwrap();
        match chunk {
            3 | 19 | 20 => assert_eq!(bytes, &content[from..from + CHUNK], "{chunk}"),
            _ => assert!(bytes.iter().all(|byte| *byte == 7), "{chunk}"),
        }
    }
    let end = read(&*opened, 20 * C + 9..21 * C);
    assert_eq!(end[..], content[20 * CHUNK + 9..21 * CHUNK]);
}

#[test]
fn both_parts_of_a_blob_have_extents_for_sendfile() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [fast, disk] = [0, 1].map(|nth: usize| DiskTier::new(folders[nth].path()).unwrap());
    let tier = WriteBack::open(Arc::new(fast), Arc::new(disk), options(Destination::Fast)).unwrap();
    let (digest, content) = blob(3, SIZE);
    commit(&tier, &digest, &content);
    // The last chunk of the blob is short.
    tier.set_hot_ranges(digest, &[HOT[0].clone(), 40 * C..40 * C + 1], 1.0);
    flush(&tier);
    assert_eq!(tier.stat().hot, 1);
    let opened = tier.open(&digest).unwrap().unwrap();
    let (mut offset, mut runs) = (0, Vec::new());
    while let Some(extent) = opened.extent(offset).filter(|extent| extent.len > 0) {
        let mut bytes = vec![0; usize::try_from(extent.len).unwrap()];
        extent.file.read_exact_at(&mut bytes, extent.at).unwrap();
        let from = usize::try_from(offset).unwrap();
        assert_eq!(bytes[..], content[from..from + bytes.len()]);
        runs.push(extent.len);
        offset += extent.len;
    }
    assert_eq!(runs, [3 * C, C, 36 * C, 123]);
}

#[test]
fn hot_ranges_that_are_set_early_apply_to_later_fills() {
    let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
    let tier = over(&fast, disk.path(), Destination::Disk);
    let (digest, content) = blob(4, SIZE);
    tier.set_hot_ranges(digest, &HOT, 1.0);
    flush(&tier);
    assert_eq!(tier.stat().used, 0);
    let fast_one = Hint {
        destination: Destination::Fast,
        priority: 1.0,
        bytes: SIZE as u64,
    };
    for hint in [Hint::default(), fast_one] {
        tier.hint(digest, hint);
        commit(&tier, &digest, &content);
        flush(&tier);
        assert_eq!((tier.stat().blobs, tier.stat().hot), (0, 1));
        assert_eq!(all(&tier, &digest), content[..]);
        tier.remove(&digest).unwrap();
        assert_eq!((tier.stat().hot, tier.stat().used), (0, 0));
        assert!(tier.open(&digest).unwrap().is_none());
    }
    // Nearly all chunks are hot, so the whole blob is copied.
    tier.set_hot_ranges(digest, &[0..C, 5 * C..40 * C], 1.0);
    commit(&tier, &digest, &content);
    flush(&tier);
    assert_eq!(tier.stat().hot, 0);
}

#[test]
fn a_restart_finds_the_hot_copies_whose_blobs_are_on_the_disk() {
    for volatile in [false, true] {
        let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
        let tier = over(&fast, disk.path(), Destination::Disk);
        let blobs = [blob(5, SIZE), blob(6, SIZE)];
        for (digest, content) in &blobs {
            commit(&tier, digest, content);
            tier.set_hot_ranges(*digest, &HOT, 1.0);
        }
        flush(&tier);
        let used = tier.stat().used;
        drop(tier);
        let slow = DiskTier::new(disk.path()).unwrap();
        slow.remove(&blobs[1].0).unwrap();
        let options = Options {
            volatile,
            ..options(Destination::Fast)
        };
        let tier = WriteBack::open(Arc::new(fast), Arc::new(slow), options).unwrap();
        flush(&tier);
        let stat = tier.stat();
        assert_eq!((stat.hot, stat.blobs, stat.used), (1, 0, used / 2));
        let (digest, content) = &blobs[0];
        assert_eq!(all(&tier, digest), content[..]);
        assert_eq!(tier.stat().hot_hits, 1);
        let mut found = Vec::new();
        tier.scan(&mut |it| found.push(it.digest)).unwrap();
        assert_eq!(found, [*digest]);
        // The new ranges replace the ranges that the restart recovered.
        tier.set_hot_ranges(*digest, &[0..1, 9 * C..10 * C], 1.0);
        flush(&tier);
        assert!(tier.stat().hot == 1 && tier.stat().used < used / 2);
        assert_eq!(all(&tier, digest), content[..]);
    }
}

#[test]
fn a_restart_deletes_an_incomplete_hot_copy() {
    let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
    let (digest, content) = blob(5, SIZE);
    commit(
        &over(&fast, disk.path(), Destination::Disk),
        &digest,
        &content,
    );
    let hot = fast.hot_copies().unwrap();
    hot.stage(&digest).unwrap().write(&[&content]).unwrap();
    let tier = over(&fast, disk.path(), Destination::Disk);
    hot.scan_staged(&mut |found| panic!("{found:?} is left"))
        .unwrap();
    assert_eq!((tier.stat().hot, tier.stat().used), (0, 0));
}

#[test]
fn hot_copies_are_evicted_by_priority() {
    let (fast, disk) = (MemoryTier::default(), tempfile::tempdir().unwrap());
    let tier = over(&fast, disk.path(), Destination::Disk);
    tier.set_limit(9 * C);
    let blobs = [blob(7, SIZE), blob(8, SIZE), blob(9, SIZE)];
    for ((digest, content), worth) in blobs.iter().zip([2.0, 3.0, 1.0]) {
        commit(&tier, digest, content);
        tier.set_hot_ranges(*digest, &HOT, worth);
        flush(&tier);
    }
    // The fast tier has room for two copies.
    let hot = |nth: usize| {
        let before = tier.stat().hot_hits;
        drop(tier.open(&blobs[nth].0).unwrap());
        tier.stat().hot_hits > before
    };
    assert_eq!([0, 1, 2].map(hot), [true, true, false]);
    // More requests raise the priority of the third blob.
    tier.rank_hot(&blobs[2].0, 2.5);
    flush(&tier);
    assert_eq!([0, 1, 2].map(hot), [false, true, true]);
    assert_eq!(tier.stat().evicted, 1);
    tier.rank_hot(&blobs[1].0, 0.5);
    tier.set_limit(4 * C);
    assert_eq!([0, 1, 2].map(hot), [false, false, true]);
    tier.set_limit(0);
    assert_eq!((tier.stat().hot, tier.stat().used), (0, 0));
    for (digest, content) in &blobs {
        assert_eq!(all(&tier, digest), content[..]);
    }
}

fn cache(folder: &Path, fast: Arc<dyn FastMedium>) -> Cache {
    let mut config = Config::new(folder, AMPLE_CAPACITY);
    config.fast = Some(FastTier {
        tier: fast,
        options: options(Destination::Disk),
        placement: Placement::default(),
        class: "volatile",
        capacity: 16 << 20,
    });
    open_with(config)
}

#[tokio::test]
async fn a_damaged_hot_copy_is_removed_and_the_disk_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let fast = Arc::new(Faulty::new(Arc::new(MemoryTier::default())));
    let cache = cache(folder.path(), fast.clone());
    let (digest, content) = blob(10, SIZE);
    cache.set_hot_ranges(digest, &HOT);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(SIZE as u64)).await.unwrap();
    fill.write(content.clone()).await.unwrap();
    drop(fill.finish().await.unwrap());
    drop(tail);
    wait::until_async("a hot blob on the tier", || {
        cache.tier().unwrap().fast.hot != 0
    })
    .await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(
        read_all(&BlobReader::Stored(object.clone())).await.unwrap(),
        content
    );
    drop(object);
    // The damaged byte is in the second hot chunk.
    fast.corrupt_hot(digest, 4096 + C + 7);
    let object = cache.get(&digest).await.unwrap().unwrap();
    let read = read_all(&BlobReader::Stored(object.clone())).await;
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    drop(object);
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(
        read_all(&BlobReader::Stored(object.clone())).await.unwrap(),
        content
    );
    let stat = cache.tier().unwrap().fast;
    assert_eq!((stat.hot, stat.damaged), (0, 1));
    drop(object);
    cache.close().await;
}
