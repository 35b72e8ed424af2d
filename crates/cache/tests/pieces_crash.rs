//! Tests that a kill or a power cut at any change of the disk keeps the recorded pieces of a fill,
//! and that no gap is ever taken for staged bytes.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]
#![expect(clippy::disallowed_methods, reason = "moves files of the test")]

mod common;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ThreadId;

use bytes::Bytes;
use common::{blob, open_with};
use parking_lot::Mutex;
use pierhead_cache::tier::{DiskTier, Step};
use pierhead_cache::{Arrival, BlobReader, Cache, Claim, Config, Error, Fill};
use pierhead_eviction::Lru;
use pierhead_oci::Digest;

const SIZE: u64 = 1 << 20;
const CAPACITY: u64 = 64 << 20;

/// What a disk holds after a power cut: synced bytes and synced names.
#[derive(Default)]
struct Disk {
    root: PathBuf,
    images: PathBuf,
    /// The synced bytes of each file.
    durable: HashMap<PathBuf, Vec<u8>>,
    /// Renames whose folder is not synced, with the replaced bytes.
    unnamed: Vec<(PathBuf, PathBuf, Option<Vec<u8>>)>,
    /// The last step of each thread. The step is done once the thread begins the next one.
    last: HashMap<ThreadId, Made>,
    /// The ranges that an ended fill has recorded.
    promised: Vec<Range<u64>>,
    taken: Vec<Image>,
}

struct Image {
    folder: PathBuf,
    promised: Vec<Range<u64>>,
    is_power_cut: bool,
}

enum Made {
    /// A sync, with the bytes that the file had before it.
    Sync(PathBuf, Vec<u8>),
    Rename(PathBuf, PathBuf, Option<Vec<u8>>),
    Remove(PathBuf),
    SyncFolder(PathBuf),
    Other,
}

impl Disk {
    fn before(&mut self, step: Step<'_>) {
        let last = self.last.remove(&std::thread::current().id());
        self.apply(last);
        self.take_images();
        let made = match step {
            Step::Sync(path) => Made::Sync(path.to_owned(), fs::read(path).unwrap_or_default()),
            Step::Rename(from, to) => {
                Made::Rename(from.to_owned(), to.to_owned(), fs::read(to).ok())
            }
            Step::SyncFolder(path) => Made::SyncFolder(path.to_owned()),
            Step::Remove(path) => Made::Remove(path.to_owned()),
            _ => Made::Other,
        };
        self.last.insert(std::thread::current().id(), made);
    }

    /// Counts a step as done.
    fn apply(&mut self, done: Option<Made>) {
        match done {
            Some(Made::Sync(path, bytes)) => drop(self.durable.insert(path, bytes)),
            Some(Made::Rename(from, to, replaced)) => {
                let durable = self.durable.remove(&from);
                match durable {
                    Some(bytes) => drop(self.durable.insert(to.clone(), bytes)),
                    None => drop(self.durable.remove(&to)),
                }
                self.unnamed.push((from, to, replaced));
            }
            Some(Made::Remove(path)) => {
                self.durable.remove(&path);
                // A restart truncates the staged file before it deletes the map.
                let staged = path.with_extension("");
                if fs::metadata(&staged).is_ok_and(|it| it.len() == 0) {
                    self.durable.remove(&staged);
                }
            }
            Some(Made::SyncFolder(folder)) => self
                .unnamed
                .retain(|(_, to, _)| to.parent() != Some(&folder)),
            Some(Made::Other) | None => {}
        }
    }

    /// Counts all steps as done, and notes the recorded ranges. Called between two fills.
    fn promise(&mut self, ranges: Vec<Range<u64>>) {
        for (_, done) in std::mem::take(&mut self.last) {
            self.apply(Some(done));
        }
        self.promised = ranges;
    }

    /// Saves the disk images that a crash at this point can leave.
    fn take_images(&mut self) {
        self.image(false, |_, _| ());
        self.image(true, Self::lose_bytes);
        if !self.unnamed.is_empty() {
            self.image(true, |disk, image| {
                disk.lose_bytes(image);
                for (from, to, replaced) in disk.unnamed.iter().rev() {
                    let (from, to) = (disk.within(image, from), disk.within(image, to));
                    let _ = fs::rename(&to, from);
                    if let Some(bytes) = replaced {
                        fs::write(to, bytes).unwrap();
                    }
                }
            });
        }
    }

    /// Replaces the bytes that are not synced by zeros, and keeps the length of each file.
    fn lose_bytes(&self, image: &Path) {
        for name in ["staging", "blobs"] {
            for (path, _) in common::walk(&image.join(name)) {
                let original = self.root.join(path.strip_prefix(image).unwrap());
                let len = fs::metadata(&path).unwrap().len();
                let mut bytes = self.durable.get(&original).cloned().unwrap_or_default();
                bytes.resize(usize::try_from(len).unwrap(), 0);
                fs::write(path, bytes).unwrap();
            }
        }
    }

    fn within(&self, image: &Path, path: &Path) -> PathBuf {
        image.join(path.strip_prefix(&self.root).unwrap())
    }

    fn image(&mut self, is_power_cut: bool, lose: impl Fn(&Self, &Path)) {
        let folder = self.images.join(self.taken.len().to_string());
        for (path, _) in common::walk(&self.root) {
            if !path.starts_with(self.root.join("catalog")) {
                let copy = self.within(&folder, &path);
                fs::create_dir_all(copy.parent().unwrap()).unwrap();
                // A temporary file may be gone by now.
                let _ = fs::copy(&path, copy);
            }
        }
        lose(self, &folder);
        self.taken.push(Image {
            folder,
            promised: self.promised.clone(),
            is_power_cut,
        });
    }
}

fn wanted() -> (Digest, Bytes) {
    blob(1, usize::try_from(SIZE).unwrap())
}

fn part(content: &Bytes, range: Range<u64>) -> Bytes {
    content.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

async fn lead(cache: &Cache) -> Result<(Fill, BlobReader), Error> {
    let claim = cache.claim(&wanted().0, common::origin()).await?;
    let Claim::Leader(fill, reader) = claim else {
        panic!("nobody else fills the blob, and it is not stored")
    };
    Ok((fill, reader))
}

/// What an interrupted fill does first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    PieceFirst,
    FrontFirst,
    /// As `PieceFirst`, after another piece and a restart.
    Restart,
}

async fn write_piece(fill: &Fill, content: &Bytes, piece: Range<u64>) -> Result<(), Error> {
    while let Some(mut claim) = fill.pieces().claim(piece.clone()) {
        while claim.position() < claim.end() {
            let next = claim.position()..claim.end().min(claim.position() + 30_000);
            claim.write(part(content, next)).await?;
        }
        claim.finish().await?;
    }
    Ok(())
}

/// Writes the front stream up to `end`, and waits until these bytes are on the disk.
async fn write_front(
    (fill, reader): (&mut Fill, &BlobReader),
    content: &Bytes,
    end: u64,
) -> Result<(), Error> {
    while fill.front().start < end && !fill.front().is_empty() {
        let next = fill.front();
        let next = next.start..next.end.min(next.start + 50_000);
        fill.write(part(content, next)).await?;
    }
    let last = fill.front().start.saturating_sub(1);
    reader.for_range(last..last + 1).read_at(last, 1).await?;
    Ok(())
}

/// Writes one piece, and the front stream up to `front`. Then ends the fill.
async fn fill_some(
    cache: &Cache,
    order: Order,
    front: u64,
    piece: Range<u64>,
) -> Result<(), Error> {
    let content = wanted().1;
    let (mut fill, reader) = lead(cache).await?;
    fill.begin(Some(SIZE)).await?;
    if order == Order::Restart {
        write_piece(&fill, &content, MIDDLE).await?;
        write_front((&mut fill, &reader), &content, front).await?;
        fill.restart().await?;
        fill.begin(Some(SIZE)).await?;
    }
    if order == Order::FrontFirst {
        write_front((&mut fill, &reader), &content, front).await?;
    }
    write_piece(&fill, &content, piece).await?;
    write_front((&mut fill, &reader), &content, front).await?;
    fill.abandon("cut");
    if let BlobReader::Tail(tail) = reader {
        let _ = tail.committed().await;
    }
    Ok(())
}

/// Reads the bytes of a range up to the first byte that is not staged.
async fn read_staged(reader: &BlobReader, range: Range<u64>) -> Bytes {
    let BlobReader::Tail(tail) = reader else {
        panic!("a leader reads its fill")
    };
    let tail = tail.for_range(range.clone());
    let mut bytes = Vec::new();
    while bytes.len() as u64 != range.end - range.start {
        let offset = range.start + bytes.len() as u64;
        let rest = usize::try_from(range.end - offset).unwrap();
        match tail.arrival(offset).await {
            Ok(Arrival::Readable) => bytes.extend(tail.read_at(offset, rest).await.unwrap()),
            _ => break,
        }
    }
    bytes.into()
}

async fn complete(cache: &Cache) -> Result<(), Error> {
    let content = wanted().1;
    let (mut fill, _reader) = lead(cache).await?;
    fill.begin(Some(SIZE)).await?;
    while fill.front().start < SIZE {
        while !fill.front().is_empty() {
            let next = fill.front();
            let next = next.start..next.end.min(next.start + 50_000);
            fill.write(part(&content, next)).await?;
        }
        fill.pass_pieces().await?;
    }
    fill.finish().await.map(drop)
}

/// Maximum number of bytes of the front stream of an interrupted fill.
const FRONT: u64 = 200_000;
const FIRST: Range<u64> = 400_000 / 4096 * 4096..500_000 / 4096 * 4096;
const MIDDLE: Range<u64> = 600_000 / 4096 * 4096..700_000 / 4096 * 4096;
const LAST: Range<u64> = SIZE - 65_536..SIZE;

/// Two interrupted fills with a piece each, then a complete fill. Calls `promise` with the ranges
/// that the ended fills have recorded.
async fn work(cache: &Cache, order: Order, promise: impl Fn(Vec<Range<u64>>)) -> Result<(), Error> {
    fill_some(cache, order, 100_000, LAST).await?;
    promise(vec![LAST]);
    if order == Order::Restart {
        // The restart of the next fill deletes the piece.
        promise(Vec::new());
    }
    fill_some(cache, order, FRONT, FIRST).await?;
    promise(match order {
        Order::Restart => vec![FIRST],
        _ => vec![FIRST, LAST],
    });
    // From the commit on, the pieces are bytes of the blob.
    let completed = complete(cache).await;
    promise(Vec::new());
    completed
}

/// Returns the length of the staged file, and whether a map is beside it.
fn staged(image: &Image) -> (u64, bool) {
    let files = common::walk(&image.folder.join("staging"));
    let is_map = |path: &Path| path.extension().is_some();
    let staged = files.iter().find(|(path, _)| !is_map(path));
    let len = staged.map_or(0, |(path, _)| fs::metadata(path).unwrap().len());
    let is_whole_map = |path: &Path| path.extension().is_some_and(|it| it == "pieces");
    (len, files.iter().any(|(path, _)| is_whole_map(path)))
}

/// Checks that each staged byte of a resumed fill is a byte of the blob, as a reader of a range gets
/// it.
async fn check_staged(fill: &Fill, reader: &BlobReader, step: usize) {
    let content = wanted().1;
    if let Some(last) = fill.offset().checked_sub(1) {
        // The worker reads the prefix again.
        let _ = reader.for_range(last..last + 1).read_at(last, 1).await;
    }
    let BlobReader::Tail(tail) = reader else {
        panic!("a leader reads its fill")
    };
    let mut offset = 0;
    while offset < SIZE {
        let tail = tail.for_range(offset..SIZE - 1);
        let arrival = tokio::select! {
            biased;
            arrival = tail.arrival(offset) => Some(arrival.unwrap()),
            () = std::future::ready(()) => None,
        };
        if arrival == Some(Arrival::Readable) {
            let read = tail.read_at(offset, 100_000).await.unwrap();
            let range = offset..offset + read.len() as u64;
            assert!(
                read == part(&content, range.clone()),
                "step {step}: {range:?}"
            );
            offset = range.end;
        } else {
            offset = (offset / 4096 + 1) * 4096;
        }
    }
}

/// Opens the cache after a crash, and checks what the next fill resumes.
async fn check(image: &Image, step: usize) {
    let (len, has_map) = staged(image);
    assert!(
        has_map || len <= FRONT,
        "step {step}: no map of {len} bytes"
    );
    // Without a map, a power cut may lose bytes of the prefix, which the digest detects.
    let is_prefix_lost = image.is_power_cut && !has_map;
    let cache = open_with(Config::new(&image.folder, CAPACITY));
    let digest = wanted().0;
    if !cache.is_stored(&digest) {
        let (mut fill, reader) = lead(&cache).await.unwrap();
        fill.begin(Some(SIZE)).await.unwrap();
        for range in &image.promised {
            let staged = read_staged(&reader, range.clone()).await;
            let recorded = part(&wanted().1, range.clone());
            assert!(staged == recorded, "step {step}: {range:?} was recorded");
        }
        if !is_prefix_lost {
            check_staged(&fill, &reader, step).await;
        }
        fill.abandon("looked at it");
        if let BlobReader::Tail(tail) = reader {
            let _ = tail.committed().await;
        }
        match complete(&cache).await {
            Err(Error::WrongDigest { resumed: true, .. }) if is_prefix_lost => {
                complete(&cache).await.unwrap();
            }
            completed => completed.unwrap_or_else(|error| panic!("step {step}: {error}")),
        }
    }
    assert!(
        cache.verify(&digest).await.unwrap() && cache.is_stored(&digest),
        "step {step}"
    );
    assert_eq!(cache.stat().reserved, 0, "step {step}");
    assert_eq!(
        common::files_below(&image.folder, "staging"),
        0,
        "step {step}"
    );
    cache.close().await;
}

/// Runs a test with one blocking thread: a step is then done when any other step begins.
fn with_one_thread(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(1);
    runtime.build().unwrap().block_on(test);
}

#[test]
fn a_kill_or_power_cut_at_any_step_keeps_the_recorded_pieces() {
    for order in [Order::PieceFirst, Order::FrontFirst, Order::Restart] {
        with_one_thread(crash_at_any_step(order));
    }
}

async fn crash_at_any_step(order: Order) {
    let (folder, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = Arc::new(Mutex::new(Disk {
        root: folder.path().to_owned(),
        images: images.path().to_owned(),
        ..Disk::default()
    }));
    let watched = disk.clone();
    let config = Config::new(folder.path(), CAPACITY);
    let cache = Cache::open_on(config, Box::new(Lru::default()), move |config| {
        let watch = move |step: Step<'_>| -> io::Result<()> {
            watched.lock().before(step);
            Ok(())
        };
        Ok(Arc::new(DiskTier::new(&config.data)?.watched(watch)))
    })
    .unwrap();
    work(&cache, order, |ranges| disk.lock().promise(ranges))
        .await
        .unwrap();
    cache.close().await;
    let taken = std::mem::take(&mut disk.lock().taken);
    assert!(taken.len() > 60, "steps are watched: {}", taken.len());
    assert!(taken.iter().filter(|it| !it.promised.is_empty()).count() > 10);
    for (step, image) in taken.iter().enumerate() {
        check(image, step).await;
    }
}

#[tokio::test]
async fn a_disk_failure_at_any_step_leaves_a_fill_that_can_be_completed() {
    for last in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let steps = Arc::new(Mutex::new(0));
        let counted = steps.clone();
        let config = Config::new(folder.path(), CAPACITY);
        let cache = Cache::open_on(config, Box::new(Lru::default()), move |config| {
            let watch = move |_: Step<'_>| {
                let mut steps = counted.lock();
                *steps += 1;
                match *steps > last {
                    true => Err(io::Error::from_raw_os_error(5)),
                    false => Ok(()),
                }
            };
            Ok(Arc::new(DiskTier::new(&config.data)?.watched(watch)))
        })
        .unwrap();
        let worked = work(&cache, Order::PieceFirst, |_| ()).await;
        cache.close().await;
        drop(cache);
        let image = Image {
            folder: folder.path().to_owned(),
            promised: Vec::new(),
            is_power_cut: false,
        };
        check(&image, last).await;
        if worked.is_ok() && *steps.lock() <= last {
            assert!(last > 20, "{last} steps");
            return;
        }
    }
}

#[tokio::test]
async fn a_damaged_map_means_no_pieces() {
    for damage in [
        "flip",
        "cut",
        "empty",
        "long",
        "folder",
        "of a shorter file",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let cache = common::open(folder.path());
        fill_some(&cache, Order::PieceFirst, 100_000, LAST)
            .await
            .unwrap();
        cache.close().await;
        drop(cache);
        let staging = common::walk(&folder.path().join("staging"));
        let is_map = |path: &Path| path.to_str().unwrap().ends_with(".pieces");
        let (map, _) = staging.iter().find(|(path, _)| is_map(path)).unwrap();
        let (staged, _) = staging.iter().find(|(path, _)| !is_map(path)).unwrap();
        let mut bytes = fs::read(map).unwrap();
        match damage {
            "flip" => bytes[20] ^= 1,
            "cut" => bytes.truncate(21),
            "empty" => bytes.clear(),
            "long" => bytes.resize(1 << 20, 0),
            _ => {}
        }
        fs::write(map, bytes).unwrap();
        if damage == "folder" {
            fs::remove_file(map).unwrap();
            fs::create_dir(map).unwrap();
        }
        let mut offset = 0;
        if damage == "of a shorter file" {
            fs::File::options()
                .write(true)
                .open(staged)
                .unwrap()
                .set_len(99_999)
                .unwrap();
            offset = 65_536;
        }
        let cache = common::open(folder.path());
        let (mut fill, reader) = lead(&cache).await.unwrap();
        fill.begin(Some(SIZE)).await.unwrap();
        assert_eq!(
            (fill.offset(), fill.front()),
            (offset, offset..SIZE),
            "{damage}"
        );
        drop((fill, reader));
        complete(&cache)
            .await
            .unwrap_or_else(|error| panic!("{damage}: {error}"));
    }
}
