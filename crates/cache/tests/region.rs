//! Tests of the persistent-memory tier on a real region: on persistent memory in
//! `PIERHEAD_PMEM_DIR`, or else in a temporary folder.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::cell::Cell;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use common::{AMPLE_CAPACITY, blob, read_all, store};
use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{Blob, DiskTier, Options, PmemTier, Tier, Trailer, WriteBack};
use pierhead_cache::{BlobReader, Cache, Config};
use pierhead_eviction::Lru;
use pierhead_pmem::{Class, Log, Region};
use pierhead_testkit::tier::{MemoryTier, conforms, conforms_as_fast_medium};

const SIZE: u64 = 8 << 20;

fn folder() -> tempfile::TempDir {
    match std::env::var_os("PIERHEAD_PMEM_DIR") {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn tier_in(folder: &Path, name: &str) -> PmemTier<Region> {
    let tier = on(folder, name);
    if std::env::var_os("PIERHEAD_PMEM_DIR").is_some() {
        assert_eq!(tier.class(), Class::Pmem);
    }
    tier
}

fn on(folder: &Path, name: &str) -> PmemTier<Region> {
    let region = Region::open(&pierhead_pmem::Config {
        path: folder.join(name),
        size: SIZE,
    });
    let region = region.unwrap();
    let file = region.sendable().unwrap().try_clone().unwrap();
    let options = pierhead_pmem::Options { segment: 256 << 10 };
    let (log, _) = Log::open(region, options).unwrap();
    PmemTier::new(log, Some(file))
}

fn staged() -> Options {
    Options {
        default_destination: Destination::Fast,
        ..Options::new(4 << 20)
    }
}

#[test]
fn a_region_conforms_alone_and_in_front_of_a_disk() {
    let folder = folder();
    let count = Cell::new(0);
    let next = || {
        count.set(count.get() + 1);
        // The previous region is deleted here, because the suite uses each region only once.
        let _ = std::fs::remove_file(folder.path().join(format!("{}", count.get() - 1)));
        tier_in(folder.path(), &count.get().to_string())
    };
    conforms_as_fast_medium(next, |tier| {
        drop(tier);
        tier_in(folder.path(), &count.get().to_string())
    });
    conforms(|| {
        WriteBack::open(Arc::new(next()), Arc::new(MemoryTier::default()), staged()).unwrap()
    });
}

/// Sends a blob by `sendfile` until the socket is full. Returns the number of bytes that were sent.
fn send(blob: &dyn Blob, to: &TcpStream) -> usize {
    let mut sent = 0_u64;
    while sent < blob.trailer().size() {
        let extent = blob.extent(sent).unwrap();
        let (mut at, len) = (extent.at, usize::try_from(extent.len).unwrap());
        match rustix::fs::sendfile(to, extent.file, Some(&mut at), len) {
            Ok(bytes) => sent += bytes as u64,
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    usize::try_from(sent).unwrap()
}

#[test]
fn bytes_in_a_socket_are_not_overwritten() {
    for folder in [folder(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        for restarts in [false, true] {
            let name = format!("{restarts}");
            let open = || match folder.path().starts_with("/dev/shm") {
                // A temporary folder is never persistent memory.
                true => on(folder.path(), &name),
                false => tier_in(folder.path(), &name),
            };
            let commit = |tier: &PmemTier<Region>, seed| {
                let (digest, content) = blob(seed, 700_000);
                let mut staged = tier.stage(&digest).unwrap();
                staged.write(&[&content]).unwrap();
                drop(staged.commit(Trailer::of(&content, None)).unwrap());
                (digest, content)
            };
            let mut tier = open();
            let (digest, content) = commit(&tier, 0);
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            server.set_nonblocking(true).unwrap();
            let sent = send(&*tier.open(&digest).unwrap().unwrap(), &server);
            assert!(sent > 4096, "{sent}");
            if restarts {
                // The bytes in the sockets must stay unchanged even after the tier is closed.
                drop(tier);
                tier = open();
            }
            tier.remove(&digest).unwrap();
            // This loop writes each segment of the region twice.
            for seed in 1..2 * SIZE / 700_000 {
                let (digest, _) = commit(&tier, seed);
                tier.remove(&digest).unwrap();
            }
            let mut read = vec![0; sent];
            client.read_exact(&mut read).unwrap();
            assert!(read == content[..sent], "{folder:?}, restarts: {restarts}");
        }
    }
}

#[test]
fn nothing_is_sent_from_a_failed_region() {
    let folder = folder();
    let tier = tier_in(folder.path(), "region");
    let (digest, content) = blob(1, 100_000);
    let mut staged = tier.stage(&digest).unwrap();
    staged.write(&[&content]).unwrap();
    let blob = staged.commit(Trailer::of(&content, None)).unwrap();
    assert!(blob.extent(0).is_some());
    let file = std::fs::File::options()
        .write(true)
        .open(folder.path().join("region"))
        .unwrap();
    file.set_len(SIZE / 2).unwrap();
    let mut staged = tier.stage(&common::blob(2, 1).0).unwrap();
    let failed = (0..SIZE / 65_536).find_map(|_| staged.write(&[&[2; 65_536]]).err());
    assert!(failed.is_some());
    assert!(blob.extent(0).is_none());
}

#[tokio::test]
async fn a_restart_continues_the_write_back() {
    let (folder, data) = (folder(), tempfile::tempdir().unwrap());
    let blobs: Vec<_> = (0..4).map(|seed| blob(seed, 700_000)).collect();
    for round in 0..2 {
        let fast = tier_in(folder.path(), "region");
        let slow = Arc::new(DiskTier::new(data.path()).unwrap());
        let options = Options {
            write_back_rate: 1,
            ..staged()
        };
        let tier = Arc::new(WriteBack::open(Arc::new(fast), slow.clone(), options).unwrap());
        let config = Config::new(data.path(), AMPLE_CAPACITY);
        let both: Arc<dyn Tier> = tier.clone();
        let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(both)).unwrap();
        for (digest, content) in &blobs {
            if round == 0 {
                store(&cache, digest, content).await;
            }
            assert!(tier.has_copy(digest));
            let object = cache.get(digest).await.unwrap().unwrap();
            assert_eq!(
                read_all(&BlobReader::Stored(object)).await.unwrap(),
                content
            );
        }
        // The shutdown of the tier interrupts the write-back.
        let queue = tier.stat().dirty_blobs;
        assert!(queue == 4 || (round == 1 && queue == 3), "{queue}");
        for (digest, _) in &blobs[1..] {
            assert!(slow.open(digest).unwrap().is_none());
        }
        cache.close().await;
    }
}
