//! Tests of a worker's store: bundles that a simple planner makes are applied, resumed after a
//! kill, and applied on top of damaged contents. Also tests exports with hard links, read-only
//! stores and garbage collection. Other tests use the test images and bundles of this module.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pierhead_oci::{Algorithm, Digest};
use tempfile::TempDir;

use super::content_dir::ContentDir;
use super::folder::VERSION;
use super::*;
use crate::Error;
use crate::export::rootfs::StoreFiles;
use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{
    BaseImage, Decoder, End, Event, Frames, Header, Prelude, Sizes, UsableContents, WireToc,
    bounded, unsent,
};
use pierhead_bundle::{BaseSlice, Coding, Frame, MAX_FRAME, RecordHead, Slice};
use pierhead_toc::image_toc::{self, LayerEntries};
use pierhead_toc::{Entry, FileDigest, ImageToc, Kind, Source as _, Time};

const NAME: &str = "registry.example/app:1";

/// An image of one layer, as paths and file contents.
#[derive(Clone, Default)]
pub(crate) struct TestImage {
    pub(crate) files: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl TestImage {
    pub(crate) fn of(files: &[(&str, Vec<u8>)]) -> Self {
        let files = files
            .iter()
            .map(|(name, bytes)| (name.as_bytes().to_vec(), bytes.clone()));
        Self {
            files: files.collect(),
        }
    }

    fn skeleton(&self) -> Vec<u8> {
        self.files
            .keys()
            .flat_map(|name| name.iter().copied().chain([0]))
            .collect()
    }

    fn diff_id(&self) -> FileDigest {
        FileDigest::of(&self.skeleton())
    }

    pub(crate) fn toc(&self) -> ImageToc {
        let entries = self.files.iter().map(|(path, bytes)| {
            Ok(Entry {
                path: path.clone(),
                kind: Kind::File {
                    content: FileDigest::of(bytes),
                    size: bytes.len() as u64,
                },
                mode: 0o644,
                uid: 0,
                gid: 0,
                modified: Time::default(),
                xattrs: Vec::new(),
            })
        });
        let skeleton = self.skeleton();
        let layer = LayerEntries {
            diff_id: self.diff_id().into(),
            skeleton: (FileDigest::of(&skeleton), skeleton.len() as u64),
            files: self
                .files
                .values()
                .map(|bytes| Ok((FileDigest::of(bytes), bytes.len() as u64))),
            entries,
        };
        ImageToc::merge([layer]).unwrap()
    }

    fn config(&self) -> Vec<u8> {
        format!(
            r#"{{"rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
            self.diff_id()
        )
        .into_bytes()
    }

    pub(crate) fn manifest(&self) -> Vec<u8> {
        let config = self.config();
        let digest = Digest::of(Algorithm::Sha256, &config);
        format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":{}}},"layers":[]}}"#,
            config.len()
        )
        .into_bytes()
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(Algorithm::Sha256, &self.manifest())
    }

    fn bytes(&self, content: &FileDigest) -> Vec<u8> {
        let mut contents = self.contents();
        contents.remove(content).expect("a content of this image")
    }

    /// The contents of all files and of the skeleton.
    fn contents(&self) -> BTreeMap<FileDigest, Vec<u8>> {
        let skeleton = self.skeleton();
        let all = self.files.values().chain([&skeleton]);
        all.map(|bytes| (FileDigest::of(bytes), bytes.clone()))
            .collect()
    }
}

/// An encoded bundle in parts, so that a test can change one of them.
pub(crate) struct Encoded {
    pub(crate) prelude: Prelude,
    pub(crate) body: Vec<u8>,
    pub(crate) records: Vec<Vec<u8>>,
    end: [u8; 40],
}

impl Encoded {
    /// Returns the response to a request for the frames from `first` on, in which every frame has a
    /// record.
    pub(crate) fn part(&self, first: usize) -> Vec<u8> {
        let prelude = Prelude {
            continued: true,
            first: u32::try_from(first).unwrap(),
            ..self.prelude
        };
        let records = &self.records[first..];
        let payload: usize = records.iter().map(|record| record.len() - 40).sum();
        let end = End {
            records: u32::try_from(records.len()).unwrap(),
            payload: payload as u64,
        };
        [&prelude.encode()[..], &records.concat(), &end.encode()].concat()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut all = self.prelude.encode().to_vec();
        all.extend(&self.body);
        all.extend(self.records.iter().flatten());
        all.extend(self.end);
        all
    }
}

struct TocSizes<'a>(&'a ImageToc, Vec<&'a ImageToc>);

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.0.contents().size(content)
    }

    fn base(&self, base_image: u16, content: u32) -> Option<u64> {
        self.1
            .get(usize::from(base_image))?
            .contents()
            .size(content)
    }
}

/// Plans the frames of a test bundle. A content is sent as a patch against the base file at the
/// same path, as a copy of the beginning that it shares with this file, in a group of small files,
/// or in ranges of a large file.
fn plan(want: &TestImage, base_image: Option<&TestImage>, layers: bool) -> Vec<Frame> {
    let toc = want.toc();
    let base_toc = base_image.map(TestImage::toc);
    let contents = want.contents();
    let mut frames: Vec<Frame> = Vec::new();
    let count = if layers {
        toc.contents().len()
    } else {
        toc.visible()
    };
    for number in 0..count {
        let (content, size) = (
            toc.contents().content(number).unwrap(),
            toc.contents().size(number).unwrap(),
        );
        if size == 0
            || base_toc.as_ref().is_some_and(|base_toc| {
                base_toc
                    .find(&content)
                    .is_some_and(|at| at < base_toc.visible())
            })
        {
            continue;
        }
        let new = &contents[&content];
        let path = want
            .files
            .iter()
            .find(|(_, bytes)| *bytes == new)
            .map(|(path, _)| path);
        let old = path
            .and_then(|path| base_image?.files.get(path))
            .filter(|old| !old.is_empty());
        let base = old.map(|old| BaseSlice {
            image: 0,
            slice: Slice {
                content: base_toc
                    .as_ref()
                    .unwrap()
                    .find(&FileDigest::of(old))
                    .unwrap(),
                offset: 0,
                len: (old.len() as u64).min(MAX_FRAME),
            },
        });
        let mut offset = 0;
        while offset < size {
            let mut len = (size - offset).min(MAX_FRAME);
            let member = |len| Slice {
                content: number,
                offset,
                len,
            };
            let mut frame = Frame {
                members: vec![member(len)],
                bases: base.into_iter().collect(),
                coding: if base.is_some() {
                    Coding::Patch
                } else {
                    Coding::Zstd
                },
            };
            let alike = old.is_some_and(|old| {
                offset == 0 && old.len() >= 5000 && new.len() > 5000 && new[..5000] == old[..5000]
            });
            if let (true, Some(base)) = (alike, base) {
                len = 5000;
                frame.members = vec![member(len)];
                frame.bases = vec![BaseSlice {
                    slice: Slice { len, ..base.slice },
                    ..base
                }];
                frame.coding = Coding::Copy;
            } else if base.is_none()
                && offset == 0
                && let Some(last) = frames.last_mut()
                && last.coding == Coding::Zstd
                && len < 2000
                && last.members.len() < 5
            {
                last.members.push(member(len));
                break;
            }
            frames.push(frame);
            offset += len;
        }
    }
    frames
}

pub(crate) fn encode(want: &TestImage, base_image: Option<&TestImage>, layers: bool) -> Encoded {
    encode_frames(want, base_image, layers, &plan(want, base_image, layers))
}

fn encode_frames(
    want: &TestImage,
    base_image: Option<&TestImage>,
    layers: bool,
    frames: &[Frame],
) -> Encoded {
    let toc = want.toc();
    let base_toc = base_image.map(TestImage::toc);
    let sizes = TocSizes(&toc, base_toc.iter().collect());
    let header = Header {
        layers,
        media_type: "application/vnd.oci.image.manifest.v1+json".into(),
        manifest: want.manifest(),
        config: want.config(),
        base_images: base_image
            .map(|base_image| BaseImage {
                manifest: base_image.digest(),
                usable: UsableContents::Visible,
            })
            .into_iter()
            .collect(),
        toc: WireToc {
            base: base_toc.as_ref().map(|_| 0),
            digest: *FileDigest::of(toc.bytes()).as_bytes(),
            len: u32::try_from(toc.bytes().len()).unwrap(),
            coded: image_toc::compress(&toc, base_toc.as_ref(), 3).unwrap(),
        },
        frames: Frames::encode(frames, &sizes).unwrap(),
        records: 0,
    };
    let cursor: Vec<Frame> = header
        .frames
        .cursor(&sizes)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(cursor, frames, "a list is read as it was written");
    let (prelude, body) = header.encode(3).unwrap();
    assert_eq!(Header::decode(&prelude, &body).unwrap(), header);
    let contents = want.contents();
    let base_contents = base_image.map(TestImage::contents).unwrap_or_default();
    let (mut records, mut payloads) = (Vec::new(), 0);
    for frame in frames {
        let members = frame.members.iter();
        let members: Vec<_> = members
            .map(|member| slice_of(&contents, &toc, member))
            .collect();
        let plain = members.concat();
        let payload = match frame.coding {
            Coding::Copy => continue,
            Coding::Stored => plain,
            Coding::Zstd => bounded::compress(&plain, 3).unwrap(),
            Coding::Patch => {
                let base_toc = base_toc.as_ref().unwrap();
                let bases = frame.bases.iter();
                let bases: Vec<_> = bases
                    .map(|base| slice_of(&base_contents, base_toc, &base.slice))
                    .collect();
                patch(&plain, &bases.concat())
            }
        };
        payloads += payload.len() as u64;
        records.push(record(frame.coding, &payload));
    }
    let end = End {
        records: u32::try_from(records.len()).unwrap(),
        payload: payloads,
    };
    Encoded {
        prelude,
        body,
        records,
        end: end.encode(),
    }
}

fn record(coding: Coding, payload: &[u8]) -> Vec<u8> {
    let mut record = RecordHead::of(coding, payload).unwrap().encode().to_vec();
    record.extend(payload);
    record
}

fn patch(plain: &[u8], base: &[u8]) -> Vec<u8> {
    let mut context = zstd::zstd_safe::CCtx::create();
    let log = (plain.len() + base.len())
        .next_power_of_two()
        .ilog2()
        .max(10);
    context
        .set_parameter(zstd::zstd_safe::CParameter::WindowLog(log))
        .unwrap();
    context.ref_prefix(base).unwrap();
    let mut out = Vec::with_capacity(zstd::zstd_safe::compress_bound(plain.len()));
    context.compress2(&mut out, plain).unwrap();
    out
}

/// Passes a bundle to the store in pieces of `piece` bytes. Returns the error of the decoder or of
/// the store.
fn feed(store: &Store, bytes: &[u8], piece: usize) -> Result<Apply, Error> {
    let mut decoder = Decoder::new();
    let mut apply = None;
    for piece in bytes.chunks(piece) {
        let mut piece = piece;
        while let Some(event) = decoder.feed(&mut piece)? {
            handle(store, event, &mut apply)?;
        }
    }
    apply.ok_or_else(|| Error::Missing("the header".into()))
}

fn handle(store: &Store, event: Event, apply: &mut Option<Apply>) -> Result<(), Error> {
    match (event, &apply) {
        (
            Event::Header {
                prelude,
                body,
                header,
            },
            _,
        ) => {
            let begin = NewFetch {
                is_toc_verified: false,
                name: NAME,
                query: &BundleQuery::default(),
                etag: &prelude.etag(),
                prelude: &prelude,
                body: &body,
                header: *header,
            };
            *apply = Some(store.begin(begin)?);
            Ok(())
        }
        (
            Event::Record {
                frame,
                coding,
                payload,
            },
            Some(apply),
        ) => apply.record(frame, coding, payload),
        _ => Ok(()),
    }
}

/// The bytes of a slice of an image with these contents.
fn slice_of<'a>(
    contents: &'a BTreeMap<FileDigest, Vec<u8>>,
    toc: &ImageToc,
    slice: &Slice,
) -> &'a [u8] {
    let content = toc.contents().content(slice.content).unwrap();
    let start = usize::try_from(slice.offset).unwrap();
    &contents[&content][start..][..usize::try_from(slice.len).unwrap()]
}

fn finish(apply: &Apply) -> Image {
    match apply.finish().unwrap() {
        ApplyOutcome::Complete(whole) => whole.recorded().unwrap(),
        ApplyOutcome::Missing(missing) => panic!("missing contents: {missing:?}"),
    }
}

fn pull(store: &Store, want: &TestImage, base_image: Option<&TestImage>, layers: bool) -> Apply {
    let apply = feed(store, &encode(want, base_image, layers).bytes(), 1000).unwrap();
    let image = finish(&apply);
    assert_eq!(image.digest(), want.digest());
    assert_eq!(image.toc.bytes(), want.toc().bytes());
    assert_holds(store, want, layers);
    apply
}

fn assert_holds(store: &Store, want: &TestImage, layers: bool) {
    let toc = want.toc();
    for (content, size) in image::needed(&toc, layers) {
        assert_eq!(store.size(&content).unwrap(), Some(size), "{content}");
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        store.read_at(&content, 0, &mut bytes).unwrap();
        assert_eq!(FileDigest::of(&bytes), content);
    }
}

/// Random bytes that compress a little, because a quarter of their bits are set.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let words = len.div_ceil(8);
    let mut bytes = Vec::with_capacity(8 * words);
    for _ in 0..words {
        bytes.extend_from_slice(&(random.u64(..) & random.u64(..)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns two versions of an image. The files of the new version are unchanged, patched, copied,
/// removed, added or empty, and one file is so large that a bundle sends the file in several
/// ranges.
pub(crate) fn versions() -> (TestImage, TestImage) {
    static VERSIONS: OnceLock<(TestImage, TestImage)> = OnceLock::new();
    VERSIONS.get_or_init(new_versions).clone()
}

fn new_versions() -> (TestImage, TestImage) {
    let large = noise(1, 9_000_000);
    let mut larger = large.clone();
    larger[6_000_000..6_000_100].fill(7);
    let mut alike = noise(2, 20_000);
    alike.truncate(20_000);
    let mut changed = alike.clone();
    changed[10_000..10_050].fill(1);
    let old = TestImage::of(&[
        ("a/same", noise(3, 3000)),
        ("b/gone", noise(4, 3000)),
        ("c/large", large),
        ("d/alike", alike),
        ("e/empty", Vec::new()),
    ]);
    let mut new = old.clone();
    new.files.remove(&b"b/gone"[..]);
    new.files.insert(b"c/large".to_vec(), larger);
    new.files.insert(b"d/alike".to_vec(), changed);
    for number in 0..20 {
        new.files
            .insert(format!("f/{number}").into_bytes(), noise(100 + number, 700));
    }
    (old, new)
}

struct Fixture {
    folder: TempDir,
    old: TestImage,
    new: TestImage,
}

impl Fixture {
    fn new() -> Self {
        let (old, new) = versions();
        Self {
            folder: TempDir::new().unwrap(),
            old,
            new,
        }
    }

    fn store(&self) -> Store {
        Store::open(self.folder.path(), &[]).unwrap()
    }

    fn file(&self, content: &FileDigest) -> PathBuf {
        let hex = content.hex();
        self.folder
            .path()
            .join("contents")
            .join(&hex[..2])
            .join(hex)
    }

    fn of(&self, test_image: &TestImage, path: &str) -> FileDigest {
        FileDigest::of(&test_image.files[path.as_bytes()])
    }
}

#[test]
fn an_applied_bundle_gives_the_wanted_image() {
    let f = Fixture::new();
    let store = f.store();
    let fresh = pull(&store, &f.old, None, false);
    assert_eq!(fresh.counts().full.contents, 4);
    drop(fresh);
    let update = pull(&store, &f.new, Some(&f.old), false);
    let counts = update.counts();
    assert!(
        counts.patched.bytes > 0 && counts.chunked.bytes == 10_000,
        "{counts:?}"
    );
    assert_eq!(
        counts.reused.contents, 2,
        "the unchanged file and the empty one: {counts:?}"
    );
    let held: Vec<Digest> = store
        .images()
        .unwrap()
        .iter()
        .map(|held| held.manifest)
        .collect();
    assert_eq!(held.len(), 2);
    assert!(held.contains(&f.old.digest()) && held.contains(&f.new.digest()));
    assert!(
        fs::read_dir(f.folder.path().join("fetches"))
            .unwrap()
            .next()
            .is_none()
    );
    assert!(!f.folder.path().join("unsynced").exists());
}

#[test]
fn a_pull_with_layers_stores_the_contents_of_layers() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    assert!(!store.images().unwrap()[0].layers);
    // Pulls the same image again, now with its layers.
    pull(&store, &f.old, Some(&f.old), true);
    assert!(store.images().unwrap()[0].layers);
    assert_eq!(store.images().unwrap().len(), 1);
}

#[test]
fn the_sizes_of_received_pieces_do_not_matter() {
    let test_image = TestImage::of(&[
        ("a", noise(1, 300)),
        ("b", noise(2, 5000)),
        ("c", noise(3, 10)),
    ]);
    for piece in [1, 7, 40, 1 << 20] {
        let folder = TempDir::new().unwrap();
        let store = Store::open(folder.path(), &[]).unwrap();
        let apply = feed(&store, &encode(&test_image, None, false).bytes(), piece).unwrap();
        finish(&apply);
        assert_holds(&store, &test_image, false);
    }
}

#[test]
fn an_interrupted_bundle_is_resumed() {
    let f = Fixture::new();
    let store = f.store();
    let encoded = encode(&f.new, None, false);
    let all = encoded.bytes();
    let before: usize = 56 + encoded.body.len();
    // The response ends within the third record, which has a range of the large file.
    let cut = before + encoded.records[0].len() + encoded.records[1].len() + 100;
    let apply = feed(&store, &all[..cut], 50_000).unwrap();
    assert!(matches!(apply.finish().unwrap(), ApplyOutcome::Missing(_)));
    drop(apply);
    drop(store);
    let store = f.store();
    assert!(store.resume("another").unwrap().is_none());
    let apply = store
        .resume(NAME)
        .unwrap()
        .expect("the fetch that was started");
    let total = u32::try_from(encoded.records.len()).unwrap();
    assert_eq!(apply.missing(), vec![2..total]);
    assert_eq!(apply.etag(), encoded.prelude.etag());
    let mut decoder = Decoder::resumed(apply.digest(), apply.header());
    let stream = encoded.part(2);
    let mut rest = &stream[..];
    while let Some(event) = decoder.feed(&mut rest).unwrap() {
        if let Event::Record {
            frame,
            coding,
            payload,
        } = event
        {
            apply.record(frame, coding, payload).unwrap();
        }
    }
    assert!(decoder.is_ended());
    finish(&apply);
    assert_holds(&store, &f.new, false);
}

#[test]
fn altered_and_missing_files_are_reported_as_missing() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let (same, large) = (f.of(&f.old, "a/same"), f.of(&f.old, "c/large"));
    fs::remove_file(f.file(&same)).unwrap();
    // Alters a content that patches use as a base.
    let mut bytes = fs::read(f.file(&large)).unwrap();
    bytes[5] ^= 1;
    fs::remove_file(f.file(&large)).unwrap();
    fs::write(f.file(&large), bytes).unwrap();
    assert_eq!(store.size(&large).unwrap(), None);
    let apply = feed(
        &store,
        &encode(&f.new, Some(&f.old), false).bytes(),
        100_000,
    )
    .unwrap();
    let ApplyOutcome::Missing(missing) = apply.finish().unwrap() else {
        panic!("the base is damaged")
    };
    let needed: Vec<FileDigest> = missing.iter().map(|(content, _)| *content).collect();
    let new_large = f.of(&f.new, "c/large");
    assert!(
        needed.contains(&same) && needed.contains(&new_large) && needed.len() == 2,
        "{needed:?}"
    );
    // The store refuses wrong bytes of the content. The right bytes complete the image.
    let mut receive = apply.receive(&same).unwrap();
    receive.write(&noise(9, 3000)).unwrap();
    assert!(matches!(receive.commit(), Err(Error::Digest { .. })));
    for content in needed {
        let mut receive = apply.receive(&content).unwrap();
        f.new
            .bytes(&content)
            .chunks(100_000)
            .for_each(|piece| receive.write(piece).unwrap());
        receive.commit().unwrap();
    }
    finish(&apply);
    assert_holds(&store, &f.new, false);
}

/// Exports an image into a new folder, with hard links to the store.
fn export_linked(store: &Store, test_image: &TestImage) -> TempDir {
    export_linked_from(store, store, test_image)
}

fn export_linked_from(store: &Store, files: &dyn StoreFiles, test_image: &TestImage) -> TempDir {
    use crate::export::rootfs::{self, ContentSource, Options, ReuseMode};
    let folder = TempDir::new().unwrap();
    let options = Options {
        reuse: ReuseMode::HardLink,
        ..Options::default()
    };
    let contents = ContentSource {
        source: store,
        files: Some(files),
    };
    let progress = |_| {};
    let summary = rootfs::rootfs(
        &test_image.toc(),
        contents,
        folder.path(),
        &options,
        &progress,
    )
    .unwrap();
    assert!(summary.shared > 2, "{summary:?}");
    folder
}

#[test]
fn a_shared_file_counts_as_stored_until_a_write_changes_it() {
    use std::os::unix::fs::MetadataExt as _;
    if !pierhead_testkit::skip::unless("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let tree = export_linked(&store, &f.old);
    let large = f.of(&f.old, "c/large");
    let times = |path: &Path| {
        (
            path.metadata().unwrap().mtime(),
            path.metadata().unwrap().ino(),
        )
    };
    let inside = tree.path().join("c/large");
    assert_eq!(times(&inside), times(&f.file(&large)));
    assert_eq!(times(&inside).0, 0, "the mtime of the entry");
    // The store is checked with stamps, without stamps, and with damaged stamps.
    assert_holds(&store, &f.old, false);
    drop(store);
    assert_holds(&f.store(), &f.old, false);
    let stamps = f.folder.path().join("stamps");
    let mut bytes = fs::read(&stamps).unwrap();
    assert!(bytes.len() >= 48 && bytes.len().is_multiple_of(16));
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(&stamps, &bytes[..bytes.len() - 3]).unwrap();
    assert_holds(&f.store(), &f.old, false);
    fs::remove_file(&stamps).unwrap();
    assert_holds(&f.store(), &f.old, false);
    // A program writes through the exported tree: it changes a byte, and restores the mtime.
    let store = f.store();
    corrupt(&inside);
    assert_eq!(store.size(&large).unwrap(), None);
    assert!(store.complete(&f.old.digest(), false).unwrap().is_none());
    pull(&store, &f.old, None, false);
    assert_holds(&store, &f.old, false);
    assert_ne!(times(&inside).1, times(&f.file(&large)).1);
}

/// A store in which one content is altered after its file was linked into a tree.
struct Altered<'a> {
    store: &'a Store,
    content: FileDigest,
    path: &'a Path,
    linked: parking_lot::Mutex<Option<bool>>,
}

impl StoreFiles for Altered<'_> {
    fn file(&self, content: &FileDigest) -> io::Result<Option<File>> {
        use std::os::unix::fs::MetadataExt as _;
        let mut linked = self.linked.lock();
        if *content == self.content {
            *linked = linked.or(Some(true));
        } else if *linked == Some(true) {
            // The previous small file is in the same batch as this file, and still waits for a
            // writer.
            *linked = Some(false);
            let changed = || {
                let meta = self.path.metadata().unwrap();
                assert_eq!(meta.nlink(), 2);
                (meta.ctime(), meta.ctime_nsec())
            };
            let before = changed();
            corrupt(self.path);
            // Waits until the ctime changes, since the clock of a file system has a coarse
            // resolution.
            while changed() == before {
                fs::set_permissions(self.path, self.path.metadata().unwrap().permissions())
                    .unwrap();
            }
        }
        self.store.file(content)
    }

    fn is_current(&self, content: &FileDigest, file: &File) -> io::Result<bool> {
        self.store.is_current(content, file)
    }

    fn record_link(&self, content: &FileDigest, file: &File, modified: Time) -> io::Result<()> {
        self.store.record_link(content, file, modified)
    }
}

#[test]
fn a_file_that_is_altered_before_its_attributes_are_set_gets_no_stamp() {
    if !pierhead_testkit::skip::unless("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let same = f.of(&f.old, "a/same");
    let path = f.file(&same);
    let files = Altered {
        store: &store,
        content: same,
        path: &path,
        linked: parking_lot::Mutex::default(),
    };
    let _tree = export_linked_from(&store, &files, &f.old);
    assert_eq!(*files.linked.lock(), Some(false), "it was altered");
    drop(store);
    let contents = || ContentDir::open(&f.folder.path().join("contents"), true).unwrap();
    assert!(!contents().has_stamp(&same));
    assert!(!contents().has(&same, None));
}

#[test]
fn only_the_owner_may_enter_the_folders_of_contents() {
    use std::os::unix::fs::MetadataExt as _;
    let f = Fixture::new();
    let _store = f.store();
    for folder in ["contents", "contents/00", "contents/ff"] {
        let meta = f.folder.path().join(folder).metadata().unwrap();
        assert_eq!(meta.mode() & 0o077, 0, "{folder}");
    }
}

#[test]
fn a_stamp_saves_the_read_of_a_shared_file() {
    if !pierhead_testkit::skip::unless("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let _tree = export_linked(&store, &f.old);
    drop(store);
    let same = f.of(&f.old, "a/same");
    let contents = || ContentDir::open(&f.folder.path().join("contents"), true).unwrap();
    assert!(contents().has_stamp(&same));
    fs::remove_file(f.folder.path().join("stamps")).unwrap();
    assert!(!contents().has_stamp(&same));
    // After the store has read and hashed the file once, the file has a stamp again.
    assert!(contents().has(&same, None));
    assert!(contents().has_stamp(&same));
}

#[test]
fn a_corrupt_file_under_a_valid_seal_is_found_when_it_is_used() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let alike = f.of(&f.old, "d/alike");
    corrupt(&f.file(&alike));
    assert_eq!(
        store.size(&alike).unwrap(),
        Some(20_000),
        "the seal does not reveal it"
    );
    let apply = feed(
        &store,
        &encode(&f.new, Some(&f.old), false).bytes(),
        100_000,
    )
    .unwrap();
    let ApplyOutcome::Missing(missing) = apply.finish().unwrap() else {
        panic!("the base is damaged")
    };
    assert_eq!(missing, vec![(f.of(&f.new, "d/alike"), 20_000)]);
    corrupt(&f.file(&f.of(&f.old, "a/same")));
    let verified = store.verify().unwrap();
    assert!(
        verified.removed.contains(&f.of(&f.old, "a/same")),
        "{verified:?}"
    );
}

/// Changes a byte of a file and restores its mtime.
fn corrupt(path: &Path) {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let times = fs::metadata(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 3000 / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 3000 / 2).unwrap();
    file.set_modified(times.modified().unwrap()).unwrap();
}

#[test]
fn after_a_system_crash_unsynced_contents_are_verified() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let cut = encode(&f.new, None, false);
    let apply = feed(&store, &cut.bytes(), 1 << 20).unwrap();
    // Waits until all contents are written. None of the contents is synced.
    while !apply.missing().is_empty() {
        std::thread::yield_now();
    }
    drop(apply);
    drop(store);
    let lost = f.of(&f.new, "f/3");
    replace_by_zeros(&f.file(&lost));
    fs::write(f.folder.path().join("unsynced"), "another boot").unwrap();
    let store = f.store();
    assert_eq!(store.size(&lost).unwrap(), None);
    assert!(store.size(&f.of(&f.new, "f/4")).unwrap().is_some());
    assert_holds(&store, &f.old, false);
}

/// Replaces the bytes of a file by zeros, and keeps its mtime.
fn replace_by_zeros(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let len = fs::metadata(path).unwrap().len();
    fs::remove_file(path).unwrap();
    fs::write(path, vec![0; usize::try_from(len).unwrap()]).unwrap();
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
}

#[test]
fn contents_of_read_only_stores_are_copied_without_a_write_to_them() {
    let f = Fixture::new();
    let other = TempDir::new().unwrap();
    pull(
        &Store::open(other.path(), &[]).unwrap(),
        &f.old,
        None,
        false,
    );
    let before = listing(other.path());
    let store = Store::open(f.folder.path(), &[other.path().to_owned()]).unwrap();
    assert_eq!(store.images().unwrap().len(), 1);
    pull(&store, &f.new, Some(&f.old), false);
    assert_eq!(listing(other.path()), before);
    drop(store);
    // The first store is complete without the second store.
    let alone = Store::open(f.folder.path(), &[]).unwrap();
    assert_holds(&alone, &f.new, false);
    assert_eq!(alone.images().unwrap().len(), 1);
}

fn listing(path: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            all.push(path);
        }
    }
    all.sort();
    all
}

#[test]
fn contents_that_no_image_uses_are_removed() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    pull(&store, &f.new, Some(&f.old), false);
    let second = f.store();
    let busy = store.collect();
    assert!(
        matches!(busy, Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::WouldBlock)
    );
    drop(second);
    store.forget(&f.old.digest()).unwrap();
    let collected = store.collect().unwrap();
    assert_eq!(
        collected.files, 3,
        "the removed file, and the old versions of two: {collected:?}"
    );
    assert_holds(&store, &f.new, false);
    assert_eq!(store.size(&f.of(&f.old, "b/gone")).unwrap(), None);
}

#[test]
fn an_image_is_complete_only_with_all_its_contents() {
    let f = Fixture::new();
    let store = f.store();
    let (same, alike) = (f.of(&f.old, "a/same"), f.of(&f.old, "d/alike"));
    let complete = |layers| store.complete(&f.old.digest(), layers).unwrap().is_some();
    assert!(!complete(false));
    pull(&store, &f.old, None, false);
    assert!(complete(false) && !complete(true));
    let bytes = fs::read(f.file(&same)).unwrap();
    fs::remove_file(f.file(&same)).unwrap();
    assert!(!complete(false), "one content is missing");
    store.0.contents.put(&same, &bytes).unwrap();
    assert!(complete(false));
    fs::remove_file(f.file(&alike)).unwrap();
    fs::write(f.file(&alike), noise(5, 20_000)).unwrap();
    assert!(!complete(false), "one content was altered");
}

#[test]
fn temporary_files_of_an_earlier_process_with_the_same_pid_do_no_harm() {
    let f = Fixture::new();
    let store = f.store();
    let content = FileDigest::of(b"bytes");
    fs::write(f.file(&content), "by").unwrap();
    for number in 0..2 {
        let beside = format!("{}.{}-{number}", content.hex(), std::process::id());
        fs::write(f.file(&content).with_file_name(beside), "byt").unwrap();
    }
    store.0.contents.put(&content, b"bytes").unwrap();
    assert_eq!(store.size(&content).unwrap(), Some(5));
}

#[test]
fn a_second_fetch_of_the_same_name_is_refused() {
    let f = Fixture::new();
    let (store, second) = (f.store(), f.store());
    let bytes = encode(&f.old, None, false).bytes();
    let apply = feed(&store, &bytes[..5000], 5000).unwrap();
    let error = feed(&second, &bytes, 5000).err().expect("it is locked");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(apply);
    finish(&feed(&second, &bytes, 5000).unwrap());
}

#[test]
fn contents_of_unsent_frames_are_reported_as_missing() {
    let f = Fixture::new();
    let store = f.store();
    let mut encoded = encode(&f.old, None, false);
    let gone = encoded.records[0].len() as u64 - 40;
    encoded.records[0] = unsent().to_vec();
    let mut end = encoded.end;
    let payload = u64::from_le_bytes(end[8..16].try_into().unwrap()) - gone;
    end[8..16].copy_from_slice(&payload.to_le_bytes());
    encoded.end = end;
    let apply = feed(&store, &encoded.bytes(), 10_000).unwrap();
    let ApplyOutcome::Missing(missing) = apply.finish().unwrap() else {
        panic!("one frame was not sent")
    };
    assert_eq!(missing, vec![(f.of(&f.old, "a/same"), 3000)]);
}

#[test]
fn a_frame_may_arrive_in_full_in_place_of_a_patch() {
    let (old, mut new) = (
        TestImage::of(&[("a", noise(1, 3000))]),
        TestImage::of(&[("a", noise(1, 3000))]),
    );
    new.files.insert(b"a".to_vec(), noise(2, 3000));
    // A changed skeleton (the tar without contents) changes the diff ID, so the new image differs
    // from the old one.
    new.files.insert(b"b".to_vec(), Vec::new());
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    pull(&store, &old, None, false);
    let mut encoded = encode(&new, Some(&old), false);
    encoded.records = vec![record(Coding::Stored, &noise(2, 3000))];
    encoded.end = End {
        records: 1,
        payload: 3000,
    }
    .encode();
    finish(&feed(&store, &encoded.bytes(), 1000).unwrap());
    assert_holds(&store, &new, false);
}

mod crash;
mod files;
mod hostile;

#[test]
fn a_new_store_may_be_opened_by_several_at_once() {
    const OPENERS: usize = 8;
    for _ in 0..5 {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("new");
        let start = std::sync::Barrier::new(OPENERS);
        std::thread::scope(|scope| {
            let open = || {
                start.wait();
                let store = Store::open(&path, &[]).map_err(|error| error.to_string())?;
                store.mark_unsynced().map_err(|error| error.to_string())
            };
            let all: Vec<_> = (0..OPENERS).map(|_| scope.spawn(open)).collect();
            for opened in all {
                assert_eq!(opened.join().unwrap(), Ok(()));
            }
        });
    }
}

#[test]
fn a_pull_without_layers_keeps_the_layers_of_an_earlier_pull() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, true);
    pull(&store, &f.old, Some(&f.old), false);
    assert!(store.images().unwrap()[0].layers);
}

#[test]
fn a_wait_for_another_fetch_ends_with_the_complete_image() {
    let f = Fixture::new();
    let (store, second) = (f.store(), f.store());
    let bytes = encode(&f.old, None, false).bytes();
    let apply = feed(&store, &bytes, 5000).unwrap();
    let busy = feed(&second, &bytes, 5000).err();
    let Some(Error::Busy(fetch)) = busy else {
        panic!("{busy:?}");
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| Store::wait(&fetch).unwrap());
        finish(&apply);
        drop(apply);
        waits.join().unwrap();
    });
    let held = second.complete(&f.old.digest(), false).unwrap();
    assert!(held.is_some());
    // The next fetch of the same name gets a new folder.
    finish(&feed(&second, &bytes, 5000).unwrap());
}

#[test]
fn data_of_the_daemon_and_later_stores_are_refused_unchanged() {
    for (version, expected) in [("1\n", "pierhead serve"), ("store 2\n", "later version")] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("version"), version).unwrap();
        let error = Store::open(folder.path(), &[]).unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(listing(folder.path()).len(), 1, "the folder is unchanged");
    }
}

#[test]
fn a_store_with_a_lost_version_file_is_opened() {
    let folder = TempDir::new().unwrap();
    drop(Store::open(folder.path(), &[]).unwrap());
    // The names of pulled images, and their lock.
    for file in ["pulled.json", "pulled.json.lock"] {
        fs::write(folder.path().join(file), "").unwrap();
    }
    let version = folder.path().join("version");
    fs::write(&version, "").unwrap();
    drop(Store::open(folder.path(), &[]).unwrap());
    fs::remove_file(&version).unwrap();
    drop(Store::open(folder.path(), &[]).unwrap());
    assert_eq!(fs::read(&version).unwrap(), VERSION);
    // A folder that contains another file does not become a store.
    fs::remove_file(&version).unwrap();
    fs::write(folder.path().join("letter"), "dear").unwrap();
    let error = Store::open(folder.path(), &[]).unwrap_err();
    assert!(matches!(error, Error::Foreign(_)), "{error}");
}

#[test]
fn a_folder_in_place_of_a_file_is_replaced_and_the_reverse_is_reported() {
    let folder = TempDir::new().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    let content = FileDigest::of(b"bytes");
    let hex = content.hex();
    let path = folder.path().join("contents").join(&hex[..2]).join(&hex);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("something"), "else").unwrap();
    store.0.contents.put(&content, b"bytes").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"bytes");
    // The same holds for a content that is copied from another store.
    let other = TempDir::new().unwrap();
    let other = Store::open(other.path(), &[]).unwrap();
    other.0.contents.put(&content, b"bytes").unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let taken = store.0.contents.copy_from(&other.0.contents, &content, 5);
    assert!(taken.unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"bytes");
    drop(store);
    for name in ["images", "fetches", "contents"] {
        let path = folder.path().join(name);
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "no folder").unwrap();
        let error = Store::open(folder.path(), &[]).unwrap_err();
        let message = error.to_string();
        let says =
            message.contains(&path.display().to_string()) && message.contains("delete the file");
        assert!(says, "{message}");
        fs::remove_file(&path).unwrap();
    }
}
