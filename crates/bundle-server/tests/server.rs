//! Integration tests of the bundle server: indexing images, bundles with patches and with reused
//! chunks, single files, damaged and missing files, pruning and maintenance, pausing under
//! pressure, write and CPU budgets, optimization, and traces.
#![allow(clippy::unwrap_used, reason = "all of it is test")]
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pierhead_bundle::api::{BundleQuery, Stage};
use pierhead_bundle::format::{Decoder, Event, Header, Sizes, UsableContents};
use pierhead_bundle::{BaseSlice, Coding};
use pierhead_bundle_server::Error;
use pierhead_bundle_server::pack;
use pierhead_bundle_server::{
    BundleServer, Config, Image, Piece, RecordedTrace, RequestBase, State, Stream, WriteBudget,
};
use pierhead_host::{BackgroundWork, ClientKey};
use pierhead_oci::Digest;
use pierhead_testkit::images::{self, TreeImage, TreeOptions};
use pierhead_testkit::log::capture;
use pierhead_testkit::source::MemoryBlob;
use pierhead_testkit::wait::until;
use pierhead_toc::{Blob, Blobs, FileDigest, ImageToc, Source as _, image_toc};
use pierhead_worker::store::{ApplyOutcome, NewFetch, Store};

/// Blobs in memory. A test can remove blobs, block their opening with the gate, and count how often
/// blobs are opened.
#[derive(Default)]
struct MemoryBlobs(Mutex<HashMap<Digest, Arc<MemoryBlob>>>, Gate, AtomicUsize);

/// A gate that blocks every attempt to open one blob.
#[derive(Default)]
struct Gate(Mutex<Option<Digest>>, Condvar);

impl Gate {
    fn close(&self, digest: Option<Digest>) {
        *self.0.lock() = digest;
        self.1.notify_all();
    }
}

impl Blobs for MemoryBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let mut closed = self.1.0.lock();
        let is_closed = |closed: &mut Option<Digest>| *closed == Some(*digest);
        self.1.1.wait_while(&mut closed, is_closed);
        drop(closed);
        self.2.fetch_add(1, Ordering::Relaxed);
        let found = self.0.lock().get(digest).cloned();
        Ok(found.map(|bytes| bytes as Arc<dyn Blob>))
    }
}

impl MemoryBlobs {
    fn put(&self, image: &images::Image) {
        let mut blobs = self.0.lock();
        for blob in &image.blobs {
            blobs.insert(blob.digest, Arc::new(MemoryBlob(blob.bytes.to_vec())));
        }
        for document in &image.documents {
            let bytes = Arc::new(MemoryBlob(document.bytes.to_vec()));
            blobs.insert(document.digest, bytes);
        }
    }

    fn take(&self, digest: &Digest) {
        self.0.lock().remove(digest);
    }
}

fn open(folder: &Path, blobs: &Arc<MemoryBlobs>) -> BundleServer {
    let mut config = Config::new(folder, 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    config.optimized_level = 3;
    BundleServer::open(config, blobs.clone()).unwrap()
}

/// Waits until the server has indexed or refused an image.
fn wait_until_settled(bundle_server: &BundleServer, manifest: &Digest) -> State {
    let is_settled = || !matches!(bundle_server.state(manifest), State::Working(_));
    until("a settled image", is_settled);
    bundle_server.state(manifest)
}

fn offer(bundle_server: &BundleServer, image: &images::Image) -> State {
    bundle_server.offer(Image {
        manifest: image.root,
        repository: "registry/app".into(),
    });
    wait_until_settled(bundle_server, &image.root)
}

/// Puts an image into the blobs, and waits until the server has indexed it.
fn index(bundle_server: &BundleServer, blobs: &MemoryBlobs, image: &images::Image) {
    blobs.put(image);
    assert_eq!(offer(bundle_server, image), State::Ready);
}

fn tree(seed: u64) -> TreeImage {
    images::Image::tree(seed, &TreeOptions::default())
}

/// Returns an image, and the same image with one more layer.
fn image_and_update() -> (images::Image, images::Image) {
    let old = tree(1);
    let tars = [&old.tars[..], &tree(2).tars[..1]].concat();
    (old.image, images::Image::of_tars("amd64", &tars))
}

fn base_image_of(image: &images::Image) -> RequestBase {
    RequestBase {
        manifest: image.root,
        is_usable: true,
        has_layers: false,
    }
}

/// Returns all bytes of a stream.
fn bytes(mut stream: Stream) -> Vec<u8> {
    let announced = stream.len();
    let mut all = Vec::new();
    while let Some(piece) = stream.next_piece().unwrap() {
        match piece {
            Piece::Bytes(bytes) => all.extend(bytes),
            Piece::File { file, offset, len } => {
                let mut bytes = vec![0; usize::try_from(len).unwrap()];
                file.file().read_exact_at(&mut bytes, offset).unwrap();
                all.extend(bytes);
            }
        }
    }
    if let Some(announced) = announced {
        assert_eq!(all.len() as u64, announced);
    }
    all
}

struct TocSizes<'a>(&'a ImageToc, &'a [ImageToc]);

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.0.contents().size(content)
    }

    fn base(&self, image: u16, content: u32) -> Option<u64> {
        self.1.get(usize::from(image))?.contents().size(content)
    }
}

/// Decodes a bundle as a worker does: the header, the TOC, and the sent contents.
fn decode_bundle(
    bundle: &[u8],
    base_tocs: &[ImageToc],
) -> (Header, ImageToc, BTreeMap<FileDigest, Vec<u8>>) {
    decode_bundle_with_contents(bundle, base_tocs, &BTreeMap::new())
}

/// Decodes a bundle like `decode_bundle`, for a worker that has the contents `old`.
fn decode_bundle_with_contents(
    bundle: &[u8],
    base_tocs: &[ImageToc],
    old: &BTreeMap<FileDigest, Vec<u8>>,
) -> (Header, ImageToc, BTreeMap<FileDigest, Vec<u8>>) {
    let mut decoder = Decoder::new();
    let mut rest = bytes_of(bundle);
    let Some(Event::Header { header, .. }) = decoder.feed(&mut rest).unwrap() else {
        panic!("no header");
    };
    let base = header.toc.base.map(|at| &base_tocs[usize::from(at)]);
    let toc = image_toc::decompress(&header.toc.coded, base).unwrap();
    let sizes = TocSizes(&toc, base_tocs);
    let frames: Vec<_> = header
        .frames
        .cursor(&sizes)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut contents: BTreeMap<FileDigest, Vec<u8>> = BTreeMap::new();
    loop {
        match decoder.feed(&mut rest).unwrap().expect("it ends too early") {
            Event::Record {
                frame,
                coding,
                payload,
            } => {
                let frame = &frames[frame as usize];
                let len = frame.members.iter().map(|member| member.len).sum();
                let mut data = Vec::new();
                if coding == Coding::Patch {
                    let base = |base: &BaseSlice| {
                        let toc = &base_tocs[usize::from(base.image)];
                        let content = toc.contents().content(base.slice.content).unwrap();
                        let start = usize::try_from(base.slice.offset).unwrap();
                        let len = usize::try_from(base.slice.len).unwrap();
                        old[&content][start..start + len].to_vec()
                    };
                    let prefix: Vec<u8> = frame.bases.iter().flat_map(base).collect();
                    let mut decoder =
                        zstd::Decoder::with_ref_prefix(&payload[..], &prefix).unwrap();
                    decoder.window_log_max(30).unwrap();
                    decoder.read_to_end(&mut data).unwrap();
                } else {
                    pack::decode(coding, &payload, len, &mut data).unwrap();
                }
                let mut data = &data[..];
                for member in &frame.members {
                    let (part, rest) = data.split_at(usize::try_from(member.len).unwrap());
                    let content = toc.contents().content(member.content).unwrap();
                    contents.entry(content).or_default().extend(part);
                    data = rest;
                }
            }
            Event::End(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(decoder.is_ended() && rest.is_empty());
    for (content, bytes) in &contents {
        assert_eq!(FileDigest::of(bytes), *content);
    }
    (*header, toc, contents)
}

fn bytes_of(bundle: &[u8]) -> &[u8] {
    bundle
}

#[test]
fn a_fresh_bundle_has_all_contents_of_the_image() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = tree(1);
    blobs.put(&image.image);
    assert_eq!(bundle_server.state(&image.image.root), State::Unknown);
    assert_eq!(offer(&bundle_server, &image.image), State::Ready);
    for layers in [false, true] {
        let bundle = bundle_server
            .bundle(&image.image.root, &[], layers)
            .unwrap();
        let sent = bytes(bundle.stream(None).unwrap());
        let (header, toc, contents) = decode_bundle(&sent, &[]);
        assert_eq!(header.manifest, image.image.root_document().bytes);
        assert_eq!((header.layers, header.base_images.len()), (layers, 0));
        let all = toc.contents();
        let max = if layers { all.len() } else { toc.visible() };
        for number in 0..max {
            let (content, size) = (all.content(number).unwrap(), all.size(number).unwrap());
            assert!(
                size == 0 || contents.contains_key(&content),
                "{number} of {max}"
            );
        }
        // The bundle must contain no contents of other images.
        for content in contents.keys() {
            assert!(toc.find(content).unwrap() < max);
        }
        // The same request again gives the same bytes.
        let again = bundle_server
            .bundle(&image.image.root, &[], layers)
            .unwrap();
        assert_eq!(again.etag(), bundle.etag());
        assert_eq!(bytes(again.stream(None).unwrap()), sent);
    }
    bundle_server.close();
}

/// Waits until both background threads have paused again.
fn wait_for_pauses(rest: &BackgroundWork) {
    let before = rest.pauses();
    until("five pauses", || rest.pauses() >= before + 5);
}

#[test]
fn unawaited_work_pauses_and_awaited_images_are_indexed() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let rest = BackgroundWork::default();
    rest.set_paused(true);
    let bundle_server = open_with_background(folder.path(), &blobs, &rest);
    let libs = [text(1), format!("{}changed", text(1)), text(2), text(3)];
    let versions = libs.map(|lib| {
        let tar = tar(&[("usr/lib/a.so", &lib)]);
        images::Image::of_tars("amd64", &[tar])
    });
    let [first, second, third, fourth] = versions.each_ref();
    let offer_image = |image: &images::Image| {
        blobs.put(image);
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    };
    let is_working =
        |image: &images::Image| matches!(bundle_server.state(&image.root), State::Working(_));
    offer_image(first);
    wait_for_pauses(&rest);
    assert!(is_working(first));
    assert_eq!(blobs.2.load(Ordering::Relaxed), 0, "nothing is read");
    // A client waits for one of the two images. After this image is indexed, no client waits.
    offer_image(second);
    bundle_server.awaited(&first.root);
    assert_eq!(
        wait_until_settled(&bundle_server, &first.root),
        State::Ready
    );
    wait_for_pauses(&rest);
    assert!(is_working(second));
    bundle_server.awaited(&second.root);
    assert_eq!(
        wait_until_settled(&bundle_server, &second.root),
        State::Ready
    );
    wait_for_pauses(&rest);
    assert_eq!(bundle_server.stat().pairs, 0, "patches can wait");
    rest.set_paused(false);
    until("no job that waits", || bundle_server.stat().jobs == 0);
    assert!(bundle_server.stat().pairs > 0);
    // Background work is paused while the image is being indexed.
    let layer = third.blobs.iter().max_by_key(|blob| blob.bytes.len());
    blobs.1.close(layer.map(|blob| blob.digest));
    let before = blobs.2.load(Ordering::Relaxed);
    offer_image(third);
    until("a read of a blob", || {
        blobs.2.load(Ordering::Relaxed) > before
    });
    rest.set_paused(true);
    blobs.1.close(None);
    // A new image wakes the low-priority thread, which would otherwise sleep for up to 30 s before
    // it pauses.
    offer_image(fourth);
    until("paused threads", || rest.paused_workers() == 2);
    assert!(is_working(third));
    rest.set_paused(false);
    assert_eq!(
        wait_until_settled(&bundle_server, &third.root),
        State::Ready
    );
    bundle_server.close();
}

#[test]
fn an_update_has_the_missing_contents_and_ignores_unknown_base_images() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let (old, update) = image_and_update();
    blobs.put(&old);
    blobs.put(&update);
    assert_eq!(offer(&bundle_server, &old), State::Ready);
    assert_eq!(offer(&bundle_server, &update), State::Ready);
    let unknown_image = RequestBase {
        manifest: FileDigest::of(b"stranger").into(),
        is_usable: false,
        has_layers: false,
    };
    let base_images = [unknown_image, base_image_of(&old)];
    let bundle = bundle_server
        .bundle(&update.root, &base_images, false)
        .unwrap();
    let fresh = bundle_server.bundle(&old.root, &[], false).unwrap();
    let (_, old_table, old_contents) = decode_bundle(&bytes(fresh.stream(None).unwrap()), &[]);
    let base_tocs = [old_table];
    let sent = bytes(bundle.stream(None).unwrap());
    let (header, toc, contents) = decode_bundle(&sent, &base_tocs);
    let known: Vec<_> = header
        .base_images
        .iter()
        .map(|base_tocs| base_tocs.usable)
        .collect();
    assert_eq!(
        known,
        [UsableContents::Visible],
        "what is unknown makes no difference"
    );
    let all = toc.contents();
    for number in 0..toc.visible() {
        let content = all.content(number).unwrap();
        let is_there = contents.contains_key(&content) || old_contents.contains_key(&content);
        assert!(is_there || all.size(number) == Some(0), "{number}");
    }
    let whole = bundle_server.bundle(&update.root, &[], false).unwrap();
    let whole = bytes(whole.stream(None).unwrap()).len();
    assert!(sent.len() < whole, "{} of {whole}", sent.len());
    bundle_server.close();
}

#[test]
fn the_toc_of_the_wanted_image_counts_in_the_memory_for_tocs() {
    let blobs = Arc::<MemoryBlobs>::default();
    let (old, update) = image_and_update();
    blobs.put(&old);
    blobs.put(&update);
    // Lengths of an update and of the whole image, and those of both TOCs.
    let lengths = |toc_memory: Option<u64>| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
        config.cpu_percent = 100;
        config.fast_level = 1;
        config.optimized_level = 1;
        // No job in the background has a TOC in memory.
        config.max_pairs = 0;
        config.toc_memory = toc_memory.unwrap_or(config.toc_memory);
        let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
        assert_eq!(offer(&bundle_server, &old), State::Ready);
        assert_eq!(offer(&bundle_server, &update), State::Ready);
        until("no job that waits", || bundle_server.stat().jobs == 0);
        let [sent, whole] = [&[base_image_of(&old)][..], &[]].map(|base_images| {
            let bundle = bundle_server.bundle(&update.root, base_images, false);
            bytes(bundle.unwrap().stream(None).unwrap()).len()
        });
        bundle_server.close();
        let tocs = std::fs::read_dir(folder.path().join("index/tables")).unwrap();
        let tocs: Vec<_> = tocs
            .map(|it| it.unwrap().metadata().unwrap().len())
            .collect();
        (sent, whole, tocs)
    };
    let (sent, whole, tocs) = lengths(None);
    assert!(sent < whole, "{sent} of {whole}");
    let (exact, _, _) = lengths(Some(tocs.iter().sum()));
    assert_eq!(exact, sent);
    // Each TOC fits alone. The base image counts as unknown, and the bundle is made nevertheless.
    let (short, whole, _) = lengths(tocs.iter().max().copied());
    assert!(short >= whole, "{short} of {whole}");
}

#[test]
fn a_plan_without_a_base_image_is_not_used_once_the_memory_is_free() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let (old, update) = image_and_update();
    blobs.put(&old);
    blobs.put(&update);
    let base_images = [base_image_of(&old)];
    let with_memory = |toc_memory: u64| {
        let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
        config.cpu_percent = 100;
        (config.fast_level, config.optimized_level) = (1, 1);
        // No job in the background has a TOC in memory, and no plan of a pair changes the key.
        config.max_pairs = 0;
        config.toc_memory = toc_memory;
        BundleServer::open(config, blobs.clone()).unwrap()
    };
    let len = |bundle_server: &BundleServer, base_images: &[RequestBase]| {
        let bundle = bundle_server.bundle(&update.root, base_images, false);
        bytes(bundle.unwrap().stream(None).unwrap()).len()
    };
    // With 1 byte, the server makes bundles, but uses no base image.
    let bundle_server = with_memory(1);
    assert_eq!(offer(&bundle_server, &old), State::Ready);
    assert_eq!(offer(&bundle_server, &update), State::Ready);
    until("no job that waits", || bundle_server.stat().jobs == 0);
    let whole = len(&bundle_server, &[]);
    assert!(len(&bundle_server, &base_images) >= whole);
    let planned = bundle_server.stat().planned;
    assert!(len(&bundle_server, &base_images) >= whole);
    let again = bundle_server.stat().planned - planned;
    assert_eq!(again, 0, "the second request finds the plan of the first");
    bundle_server.close();
    drop(bundle_server);

    let bundle_server = with_memory(64 << 20);
    let update_len = len(&bundle_server, &base_images);
    assert!(update_len < whole, "{update_len} of {whole}");
    bundle_server.close();
}

#[test]
fn a_bundle_continues_at_any_frame() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = tree(3);
    index(&bundle_server, &blobs, &image.image);
    let bundle = bundle_server.bundle(&image.image.root, &[], true).unwrap();
    let sent = bytes(bundle.stream(None).unwrap());
    let mut decoder = Decoder::new();
    let mut rest = &sent[..];
    let Some(Event::Header {
        prelude, header, ..
    }) = decoder.feed(&mut rest).unwrap()
    else {
        panic!("no header");
    };
    let mut records = Vec::new();
    while let Some(Event::Record { payload, .. }) = decoder.feed(&mut rest).unwrap() {
        records.push(payload);
    }
    assert!(records.len() > 2 && records.len() == bundle.frames() as usize);
    for first in 0..=bundle.frames() {
        let part = bytes(bundle.stream(Some((first, first + 2))).unwrap());
        let mut decoder = Decoder::resumed(prelude.digest, &header);
        let mut rest = &part[..];
        let event = decoder.feed(&mut rest).unwrap();
        assert!(matches!(event, Some(Event::Continued(_))));
        for nth in (first..bundle.frames()).take(2) {
            let Some(Event::Record { frame, payload, .. }) = decoder.feed(&mut rest).unwrap()
            else {
                panic!("no record {nth}");
            };
            assert!(frame == nth && payload == records[nth as usize]);
        }
        assert!(matches!(
            decoder.feed(&mut rest).unwrap(),
            Some(Event::End(_))
        ));
        assert!(rest.is_empty());
    }
    bundle_server.close();
}

#[test]
fn an_image_with_a_diff_id_mismatch_is_never_bundled() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = images::Image::random(1, &[1000]);
    blobs.put(&image);
    assert!(matches!(offer(&bundle_server, &image), State::Refused(_)));
    // The second image has the layers of the first image, but another config.
    let (one, other) = (tree(1), tree(2));
    let text =
        |image: &images::Image| String::from_utf8(image.root_document().bytes.to_vec()).unwrap();
    let layers = |image: &images::Image| {
        let json: serde_json::Value = serde_json::from_str(&text(image)).unwrap();
        json["layers"].clone()
    };
    let mut manifest: serde_json::Value = serde_json::from_str(&text(&one.image)).unwrap();
    manifest["layers"] = layers(&other.image);
    let manifest = images::Document::new(&manifest);
    blobs.put(&one.image);
    blobs.put(&other.image);
    let mismatched = images::Image {
        root: manifest.digest,
        documents: vec![manifest],
        blobs: Vec::new(),
    };
    blobs.put(&mismatched);
    let State::Refused(why) = offer(&bundle_server, &mismatched) else {
        panic!("it was believed");
    };
    assert!(why.contains("digest"), "{why}");
    assert_eq!(bundle_server.stat().diff_id_mismatches, 1);
    assert!(bundle_server.bundle(&mismatched.root, &[], false).is_err());
    // The server accepts the same layers with the right config.
    assert_eq!(offer(&bundle_server, &other.image), State::Ready);
    // The server also finds the mismatch when the index of the layer already exists.
    bundle_server.close();
}

#[test]
fn single_files_come_from_packs_and_from_layers() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let (image, other) = (tree(4), tree(5));
    index(&bundle_server, &blobs, &image.image);
    for (content, bytes_of_it) in &image.contents {
        let stream = bundle_server
            .file(&image.image.root, content)
            .unwrap()
            .unwrap();
        assert_eq!(&bytes(stream), bytes_of_it);
    }
    let foreign = other
        .contents
        .keys()
        .find(|it| !image.contents.contains_key(*it));
    let found = bundle_server
        .file(&image.image.root, foreign.unwrap())
        .unwrap();
    assert!(found.is_none(), "another image's");
    assert!(
        bundle_server
            .file(&other.image.root, foreign.unwrap())
            .is_err()
    );
    bundle_server.close();
}

#[test]
fn deleted_files_are_rebuilt() {
    let image = tree(6);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&image.image);
    for lost in [
        "directory",
        "packs",
        "plans",
        "index/tables",
        "index/layers",
        "index",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let before = {
            let bundle_server = open(folder.path(), &blobs);
            assert_eq!(offer(&bundle_server, &image.image), State::Ready);
            let bundle = bundle_server.bundle(&image.image.root, &[], false).unwrap();
            let sent = bytes(bundle.stream(None).unwrap());
            bundle_server.close();
            sent
        };
        std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
        let bundle_server = open(folder.path(), &blobs);
        if bundle_server.state(&image.image.root) != State::Ready {
            assert_eq!(offer(&bundle_server, &image.image), State::Ready, "{lost}");
        }
        // The first request may fail, since it finds that a file is missing.
        let mut bundle = bundle_server.bundle(&image.image.root, &[], false);
        if bundle.is_err() {
            assert_eq!(offer(&bundle_server, &image.image), State::Ready, "{lost}");
            bundle = bundle_server.bundle(&image.image.root, &[], false);
        }
        let sent = bytes(bundle.unwrap().stream(None).unwrap());
        let ([_, _, one], [_, _, other]) = {
            let (a, b) = (decode_bundle(&before, &[]), decode_bundle(&sent, &[]));
            ([0; 3].map(|_| a.2.clone()), [0; 3].map(|_| b.2.clone()))
        };
        assert!(one == other, "{lost}");
        bundle_server.close();
    }
}

/// In each file of a folder, changes one byte of every 64. The end of a file is not changed, since
/// it has the list of blocks that is needed to open an index.
fn damage(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let foot = *bytes.last_chunk::<32>().unwrap();
        let is_index = foot.ends_with(b"phlayr01");
        let at = u64::from_le_bytes(*foot.first_chunk().unwrap());
        let end = if is_index { at } else { bytes.len() as u64 };
        let end = usize::try_from(end).unwrap();
        for byte in bytes[..end].iter_mut().skip(9).step_by(64) {
            *byte ^= 0x41;
        }
        std::fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn damaged_files_are_rebuilt() {
    let image = tree(6);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&image.image);
    let root = &image.image.root;
    for (damaged, lost) in [
        ("index/tables", &["plans"][..]),
        ("index/layers", &["plans"]),
        ("index/layers", &["plans", "packs", "directory"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let before = {
            let bundle_server = open(folder.path(), &blobs);
            assert_eq!(offer(&bundle_server, &image.image), State::Ready);
            let bundle = bundle_server.bundle(root, &[], false).unwrap();
            let sent = bytes(bundle.stream(None).unwrap());
            bundle_server.close();
            sent
        };
        for lost in lost {
            std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
        }
        damage(&folder.path().join(damaged));
        let bundle_server = open(folder.path(), &blobs);
        if bundle_server.state(root) != State::Ready {
            assert_eq!(
                offer(&bundle_server, &image.image),
                State::Ready,
                "{damaged}"
            );
        }
        // The first request may fail, since it finds the damage. A retry succeeds.
        let mut bundle = bundle_server.bundle(root, &[], false);
        if let Err(error) = &bundle {
            assert!(matches!(error, Error::Missing(_)), "{damaged}: {error}");
            assert_eq!(
                wait_until_settled(&bundle_server, root),
                State::Ready,
                "{damaged}"
            );
            bundle = bundle_server.bundle(root, &[], false);
        }
        let after = bytes(bundle.unwrap().stream(None).unwrap());
        let [before, after] = [before, after].map(|sent| decode_bundle(&sent, &[]).2);
        assert!(before == after, "{damaged}");
        bundle_server.close();
    }
}

#[test]
fn an_unreadable_toc_fails_only_its_image_and_is_rebuilt_once() {
    let [image, other] = [6, 7].map(tree);
    let blobs = Arc::<MemoryBlobs>::default();
    let folder = tempfile::tempdir().unwrap();
    let bundle_server = open(folder.path(), &blobs);
    for image in [&image, &other] {
        index(&bundle_server, &blobs, &image.image);
    }
    let root = &image.image.root;
    let name = root.to_string().replace(':', "-");
    let toc = folder.path().join("index/tables").join(name);
    // Opening this TOC fails with an error of the file system, which does not prove that the TOC is
    // damaged.
    std::fs::remove_file(&toc).unwrap();
    std::os::unix::fs::symlink(&toc, &toc).unwrap();
    let file = |image: &TreeImage| {
        let (content, _) = image.contents.iter().next().unwrap();
        bundle_server
            .file(&image.image.root, content)
            .map(|it| it.is_some())
    };
    let lines = capture();
    let failed = file(&image).expect_err("it cannot be read");
    assert!(matches!(failed, Error::Missing(_)), "{failed}");
    let logged = || lines.with("cannot read the TOC of an image");
    assert!(
        logged()[0].contains(&format!("image={root}")),
        "{}",
        lines.text()
    );
    assert!(file(&other).unwrap(), "the other image is concerned");
    assert_eq!(wait_until_settled(&bundle_server, root), State::Ready);
    assert!(file(&image).unwrap());
    assert!(toc.symlink_metadata().unwrap().is_file());
    // The server rebuilds the TOC only once. The server neither rebuilds an unreadable file in a
    // loop nor deletes the file.
    bundle_server.close();
    std::fs::remove_file(&toc).unwrap();
    std::os::unix::fs::symlink(&toc, &toc).unwrap();
    let wanted = bundle_server.trace(client(1), root, &["file".to_owned()]);
    assert!(matches!(wanted, Err(Error::Io { .. })), "{wanted:?}");
    assert!(toc.is_symlink());
    assert_eq!(logged().len(), 1, "{}", lines.text());
}

#[test]
fn the_lookup_of_one_file_does_not_verify_the_whole_toc() {
    /// Number of bytes of a TOC file that one checksum covers.
    const BLOCK: usize = 4096;
    let names: Vec<_> = (0..3000).map(|nth| format!("folder/file-{nth}")).collect();
    let files: Vec<_> = names.iter().map(|name| (&**name, &**name)).collect();
    let image = images::Image::of_tars("amd64", &[tar(&files)]);
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    index(&bundle_server, &blobs, &image);
    let name = image.root.to_string().replace(':', "-");
    let toc = folder.path().join("index/tables").join(name);
    let mut damaged = std::fs::read(&toc).unwrap();
    let blocks = damaged.len() / BLOCK;
    assert!(blocks > 30, "{blocks} blocks are no large TOC");
    // The second block of the TOC contains file names, which the lookup of a content does not read.
    damaged[BLOCK + BLOCK / 2] ^= 1;
    std::fs::write(&toc, damaged).unwrap();
    let content = FileDigest::of(names[7].as_bytes());
    let found = bundle_server.file(&image.root, &content).unwrap();
    assert_eq!(bytes(found.unwrap()), names[7].as_bytes());
    assert_eq!(bundle_server.state(&image.root), State::Ready);
    // Reading the whole TOC finds the damage.
    let lines = capture();
    let traced = bundle_server.trace(client(1), &image.root, &names[..1]);
    assert!(matches!(traced, Err(Error::Missing(_))), "{traced:?}");
    let damaged = lines.with("the TOC of an image is damaged; pierhead rebuilds it");
    let manifest = format!("manifest={}", image.root);
    assert!(
        matches!(&damaged[..], [line] if line.contains("WARN") && line.contains(&manifest)),
        "{}",
        lines.text()
    );
    bundle_server.close();
}

/// Makes several versions of an image, and waits until the server is ready for all of them.
fn versions(bundle_server: &BundleServer, blobs: &MemoryBlobs, count: u32) -> Vec<TreeImage> {
    let version = |version| {
        let options = TreeOptions {
            version,
            ..TreeOptions::default()
        };
        let image = images::Image::tree(9, &options);
        index(bundle_server, blobs, &image.image);
        image
    };
    (0..count).map(version).collect()
}

fn client(nth: u8) -> ClientKey {
    ClientKey::of([10, 0, 0, nth].into())
}

#[test]
fn permutations_of_base_images_share_one_plan() {
    let blobs = Arc::<MemoryBlobs>::default();
    let folder = tempfile::tempdir().unwrap();
    let bundle_server = open(folder.path(), &blobs);
    let images = versions(&bundle_server, &blobs, 5);
    let (want, old) = images.split_last().unwrap();
    until("no job that waits", || bundle_server.stat().jobs == 0);
    let planned = bundle_server.stat().planned;
    let mut random = fastrand::Rng::with_seed(7);
    let mut etags = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        // Unknown and duplicate digests of base images do not change the plan.
        let base_images = old.iter().chain(&old[..2]);
        let mut base_images: Vec<_> = base_images.map(|it| base_image_of(&it.image)).collect();
        base_images.push(RequestBase {
            manifest: FileDigest::of(&random.u64(..).to_le_bytes()).into(),
            is_usable: false,
            has_layers: false,
        });
        random.shuffle(&mut base_images);
        let root = &want.image.root;
        let ranked = bundle_server.rank_bases(root, &base_images);
        let bundle = bundle_server.bundle_for(client(1), root, &ranked, false);
        etags.insert(bundle.unwrap().etag().to_owned());
    }
    assert_eq!(etags.len(), 1);
    assert_eq!(bundle_server.stat().planned, planned + 1);
    bundle_server.close();
}

#[test]
fn a_slow_image_is_interrupted_for_another_client() {
    let [slow, other] = [6, 7].map(tree);
    let blobs = Arc::<MemoryBlobs>::default();
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (config.cpu_percent, config.optimized_level) = (100, 3);
    // With a time slice of zero, every job exceeds its time slice.
    config.time_slice = Duration::ZERO;
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    for image in [&slow, &other] {
        blobs.put(&image.image);
    }
    let offer = |nth: u8, image: &TreeImage| {
        let manifest = image.image.root;
        let repository = "registry/app".into();
        let of = Image {
            manifest,
            repository,
        };
        bundle_server.offer_for(client(nth), of);
    };
    let [config_blob, layer] = [0, 1].map(|at| slow.image.blobs[at].digest);
    // The indexing of the slow image blocks when it opens the layer.
    blobs.1.close(Some(layer));
    offer(1, &slow);
    // Waits until the indexing of the image has begun.
    until(
        "the indexing of the slow image",
        || matches!(bundle_server.state(&slow.image.root), State::Working(it) if it.stage == Stage::Index),
    );
    offer(2, &other);
    // No client waits for the slow image, so the slow image does not interrupt the other image.
    bundle_server.awaited_by(client(2), &other.image.root);
    // The second attempt to index the slow image blocks when it opens the config.
    blobs.1.close(Some(config_blob));
    assert_eq!(
        wait_until_settled(&bundle_server, &other.image.root),
        State::Ready
    );
    assert!(matches!(
        bundle_server.state(&slow.image.root),
        State::Working(_)
    ));
    assert_eq!(bundle_server.stat().cancelled, 1);
    blobs.1.close(None);
    assert_eq!(
        wait_until_settled(&bundle_server, &slow.image.root),
        State::Ready
    );
    bundle_server.close();
}

/// Blobs in memory, of which one takes a given CPU time to open.
struct SlowBlobs {
    blobs: MemoryBlobs,
    slow: Digest,
    cpu_time: Duration,
}

impl Blobs for SlowBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let cpu_time = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(now).unwrap()
        };
        let begin = cpu_time();
        while *digest == self.slow && cpu_time() - begin < self.cpu_time {
            std::hint::spin_loop();
        }
        self.blobs.open(digest)
    }
}

/// Indexes an image whose layer takes the CPU time `cpu_time` to open, with `index_time` as the
/// limit. With `interrupted`, the image of another client interrupts the indexing once.
fn index_within(index_time: Duration, cpu_time: Duration, interrupted: bool) -> State {
    let [slow, other] = [6, 7].map(tree);
    let layer = slow.image.blobs[1].digest;
    let blobs = Arc::new(SlowBlobs {
        blobs: MemoryBlobs::default(),
        slow: layer,
        cpu_time,
    });
    for image in [&slow, &other] {
        blobs.blobs.put(&image.image);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (config.cpu_percent, config.optimized_level) = (100, 3);
    config.time_slice = Duration::ZERO;
    config.index_time = index_time;
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let offer = |nth: u8, image: &TreeImage| {
        let manifest = image.image.root;
        let repository = "registry/app".into();
        bundle_server.offer_for(
            client(nth),
            Image {
                manifest,
                repository,
            },
        );
    };
    blobs.blobs.1.close(Some(layer));
    offer(1, &slow);
    if interrupted {
        // Whether the indexing of the image has begun.
        let has_started = |state| matches!(state, State::Working(it) if it.stage == Stage::Index);
        until("the indexing of the slow image", || {
            has_started(bundle_server.state(&slow.image.root))
        });
        offer(2, &other);
        bundle_server.awaited_by(client(2), &other.image.root);
    }
    blobs.blobs.1.close(None);
    let state = wait_until_settled(&bundle_server, &slow.image.root);
    assert_eq!(bundle_server.stat().cancelled, u64::from(interrupted));
    bundle_server.close();
    state
}

#[test]
fn all_attempts_at_an_image_share_one_cpu_time_budget() {
    let [short, long] = [100, 600].map(Duration::from_millis);
    assert_eq!(
        index_within(Duration::from_secs(60), short, false),
        State::Ready
    );
    let is_refused = |state: State| match state {
        State::Refused(why) => why.contains("CPU time"),
        _ => false,
    };
    assert!(is_refused(index_within(short / 2, short, false)));
    // A whole attempt opens the layer twice: once to index and once to pack the layer. An
    // interrupted attempt opens the layer one more time.
    let bound = long * 5 / 2;
    assert_eq!(index_within(bound, long, false), State::Ready);
    assert!(is_refused(index_within(bound, long, true)));
}

#[test]
fn a_folder_in_place_of_a_file_is_replaced() {
    let image = tree(6);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&image.image);
    let root = &image.image.root;
    for inside in ["plans", "index/tables", "index/layers"] {
        let folder = tempfile::tempdir().unwrap();
        let bundle_server = open(folder.path(), &blobs);
        assert_eq!(offer(&bundle_server, &image.image), State::Ready);
        bundle_server.close();
        drop(bundle_server);
        // Without plans, the server opens the indexes again.
        std::fs::remove_dir_all(folder.path().join("plans")).unwrap();
        if inside == "plans" {
            std::fs::create_dir(folder.path().join(inside)).unwrap();
        }
        let bundle_server = open(folder.path(), &blobs);
        if inside == "plans" {
            let _ = bundle_server.bundle(root, &[], false);
            wait_until_settled(&bundle_server, root);
            offer(&bundle_server, &image.image);
        }
        for entry in std::fs::read_dir(folder.path().join(inside)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("something"), "else").unwrap();
        }
        bundle_server.close();
        drop(bundle_server);
        let bundle_server = open(folder.path(), &blobs);
        let mut questions = 0;
        let bundle = loop {
            match bundle_server.bundle(root, &[], false) {
                Ok(bundle) => break bundle,
                Err(error) => assert!(matches!(error, Error::Missing(_)), "{inside}: {error}"),
            }
            questions += 1;
            assert!(questions < 4, "{inside}: it is not made again");
            assert_eq!(
                offer(&bundle_server, &image.image),
                State::Ready,
                "{inside}"
            );
        };
        let sent = decode_bundle(&bytes(bundle.stream(None).unwrap()), &[]).2;
        assert!(!sent.is_empty(), "{inside}");
        bundle_server.close();
    }
}

#[test]
fn an_unusable_pack_or_trace_folder_affects_no_other_file() {
    let [first, second] = [6, 7].map(tree);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&first.image);
    blobs.put(&second.image);
    let folder = tempfile::tempdir().unwrap();
    let bundle_server = open(folder.path(), &blobs);
    assert_eq!(offer(&bundle_server, &first.image), State::Ready);
    bundle_server.close();
    drop(bundle_server);
    let packs = std::fs::read_dir(folder.path().join("packs")).unwrap();
    let paths = packs.map(|entry| entry.unwrap().path());
    for pack in paths.filter(|path| path.extension().is_some_and(|it| it == "pack")) {
        std::fs::remove_file(&pack).unwrap();
        std::fs::create_dir(&pack).unwrap();
        std::fs::write(pack.join("something"), "else").unwrap();
    }
    let traces = folder.path().join("index/traces");
    std::fs::remove_dir_all(&traces).unwrap();
    std::fs::write(&traces, "no folder").unwrap();
    let bundle_server = open(folder.path(), &blobs);
    assert!(bundle_server.stat().packs > 0, "its bytes are on the disk");
    for image in [&second, &first] {
        let root = &image.image.root;
        let mut questions = 0;
        let bundle = loop {
            match bundle_server.bundle(root, &[], false) {
                Ok(bundle) => break bundle,
                Err(error) => assert!(matches!(error, Error::Missing(_)), "{error}"),
            }
            questions += 1;
            assert!(questions < 4, "it is not made again");
            assert_eq!(offer(&bundle_server, &image.image), State::Ready);
        };
        let sent = decode_bundle(&bytes(bundle.stream(None).unwrap()), &[]).2;
        assert!(!sent.is_empty());
    }
    bundle_server.close();
}

/// Blobs in memory. A test can make every attempt to open a blob fail with EMFILE.
#[derive(Default)]
struct FewDescriptors {
    blobs: MemoryBlobs,
    is_exhausted: AtomicBool,
}

impl Blobs for FewDescriptors {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        match self.is_exhausted.load(Ordering::Relaxed) {
            true => Err(rustix::io::Errno::MFILE.into()),
            false => self.blobs.open(digest),
        }
    }
}

#[test]
fn a_lack_of_descriptors_is_no_missing_layer() {
    let image = tree(4);
    let (folder, blobs) = (
        tempfile::tempdir().unwrap(),
        Arc::<FewDescriptors>::default(),
    );
    blobs.blobs.put(&image.image);
    let open = || {
        let config = Config::new(folder.path(), 256 << 20, 64 << 20);
        BundleServer::open(config, blobs.clone()).unwrap()
    };
    let bundle_server = open();
    assert_eq!(offer(&bundle_server, &image.image), State::Ready);
    bundle_server.close();
    drop(bundle_server);
    std::fs::remove_dir_all(folder.path().join("packs")).unwrap();
    let bundle_server = open();
    let (content, expected) = image.contents.iter().find(|it| !it.1.is_empty()).unwrap();
    blobs.is_exhausted.store(true, Ordering::Relaxed);
    let mut stream = bundle_server
        .file(&image.image.root, content)
        .unwrap()
        .unwrap();
    let Err(failed) = stream.next_piece() else {
        panic!("no layer could be opened");
    };
    assert!(failed.is_exhausted(), "{failed}");
    // When file descriptors are available again, the server can read the same layers.
    blobs.is_exhausted.store(false, Ordering::Relaxed);
    let stream = bundle_server
        .file(&image.image.root, content)
        .unwrap()
        .unwrap();
    assert_eq!(&bytes(stream), expected);
    bundle_server.close();
}

#[test]
fn single_files_outlive_a_damaged_index() {
    let image = tree(4);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&image.image);
    let folder = tempfile::tempdir().unwrap();
    let bundle_server = open(folder.path(), &blobs);
    assert_eq!(offer(&bundle_server, &image.image), State::Ready);
    bundle_server.close();
    drop(bundle_server);
    std::fs::remove_dir_all(folder.path().join("packs")).unwrap();
    damage(&folder.path().join("index/layers"));
    let bundle_server = open(folder.path(), &blobs);
    let all = |content: &FileDigest| -> Option<Vec<u8>> {
        let mut stream = bundle_server.file(&image.image.root, content).ok()??;
        let mut all = Vec::new();
        while let Some(piece) = stream.next_piece().ok()? {
            let Piece::Bytes(bytes) = piece else {
                panic!("there are no packs");
            };
            all.extend(bytes);
        }
        Some(all)
    };
    for (content, bytes) in &image.contents {
        // One request finds the damage, and the next request finds that the index was deleted.
        let found = (0..3).find_map(|_| {
            let found = all(content);
            wait_until_settled(&bundle_server, &image.image.root);
            found
        });
        assert!(found.as_ref() == Some(bytes), "{content}");
    }
    bundle_server.close();
}

#[test]
fn an_image_whose_toc_exceeds_the_header_limit_is_refused_before_packing() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    tar.append_data(&mut header, "file", &b"x"[..]).unwrap();
    for nth in 0..4300 {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        let target = format!("{nth:04}").repeat(1000);
        tar.append_link(&mut header, format!("{nth}"), target)
            .unwrap();
    }
    let image = images::Image::of_tars("amd64", &[tar.into_inner().unwrap()]);
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    blobs.put(&image);
    let State::Refused(why) = offer(&bundle_server, &image) else {
        panic!("it was not refused");
    };
    assert!(why.contains("TOC is too long"), "{why}");
    assert_eq!(bundle_server.stat().packs, 0);
    bundle_server.close();
}

#[test]
fn an_image_without_its_layer_is_unknown_until_the_layer_is_back() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = tree(7);
    blobs.put(&image.image);
    let layer = image.image.blobs.last().unwrap().digest;
    blobs.take(&layer);
    assert_eq!(offer(&bundle_server, &image.image), State::Unknown);
    index(&bundle_server, &blobs, &image.image);
    // Packed contents stay available after the cache has evicted their layer.
    blobs.take(&layer);
    let bundle = bundle_server.bundle(&image.image.root, &[], false).unwrap();
    let (_, toc, contents) = decode_bundle(&bytes(bundle.stream(None).unwrap()), &[]);
    assert!(u32::try_from(contents.len()).unwrap() <= toc.visible() && !contents.is_empty());
    bundle_server.close();
}

#[test]
fn a_prune_keeps_packs_of_images_whose_plans_were_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let bundle_server = open(folder.path(), &blobs);
    let [kept, gone] = [33, 34].map(tree);
    let mut packs = Vec::new();
    for image in [&kept, &gone] {
        index(&bundle_server, &blobs, &image.image);
        packs.push(bundle_server.stat().packs);
    }
    let room = bundle_server.stat().packs + bundle_server.stat().index;
    bundle_server.prune(room).unwrap();
    assert_eq!(
        (bundle_server.stat().plans, bundle_server.stat().packs),
        (0, packs[1])
    );
    blobs.take(&gone.image.root);
    bundle_server.prune(u64::MAX).unwrap();
    let left = bundle_server.stat().packs;
    assert!(packs[0] <= left, "{left} of {packs:?}");
    blobs.take(&kept.image.root);
    bundle_server.prune(u64::MAX).unwrap();
    until("no pack", || bundle_server.stat().packs == 0);
    bundle_server.close();
}

#[test]
fn a_prune_keeps_superseded_plans_of_cached_images_only() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = fast_packs_config(folder.path());
    config.resume_window = Duration::from_secs(3600);
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let of = |seed| images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(seed))])]);
    let [kept, gone, blocked] = [1, 2, 3].map(of);
    for image in [&kept, &gone, &blocked] {
        blobs.put(image);
    }
    // Low-priority work pauses as long as an image waits for indexing.
    blobs.1.close(Some(blocked.root));
    for image in [&kept, &gone, &blocked] {
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    }
    let started_images = [&kept, &gone].map(|image| {
        assert_eq!(
            wait_until_settled(&bundle_server, &image.root),
            State::Ready
        );
        let bundle = bundle_server.bundle(&image.root, &[], false).unwrap();
        let sent = bytes(bundle.stream(None).unwrap());
        (image.root, bundle.etag().to_owned(), sent)
    });
    blobs.take(&blocked.root);
    blobs.1.close(None);
    until("optimized packs", || bundle_server.stat().optimized == 2);
    let superseded_bundle = |(root, etag, _): &(Digest, String, Vec<u8>)| {
        bundle_server.superseded(root, &[], false, etag).unwrap()
    };
    for one in &started_images {
        let now = bundle_server.bundle(&one.0, &[], false).unwrap();
        assert_ne!(now.etag(), one.1);
        assert!(superseded_bundle(one).is_some());
    }
    blobs.take(&gone.root);
    bundle_server.prune(u64::MAX).unwrap();
    assert!(
        superseded_bundle(&started_images[1]).is_none(),
        "its image is gone"
    );
    let again = superseded_bundle(&started_images[0]).expect("its image is here");
    assert!(bytes(again.stream(None).unwrap()) == started_images[0].2);
    bundle_server.close();
}

/// Blobs in memory that count how many prunes open a blob at the same time.
#[derive(Default)]
struct CountingBlobs {
    blobs: MemoryBlobs,
    here: AtomicUsize,
    max: AtomicUsize,
}

const PRUNE: &str = "prune";

impl Blobs for CountingBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        if std::thread::current().name() != Some(PRUNE) {
            return self.blobs.open(digest);
        }
        let here = self.here.fetch_add(1, Ordering::Relaxed) + 1;
        self.max.fetch_max(here, Ordering::Relaxed);
        // Gives another prune the time to start.
        std::thread::sleep(Duration::from_millis(5));
        let found = self.blobs.open(digest);
        self.here.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

#[test]
fn a_prune_waits_for_the_one_before_it() {
    let (folder, blobs) = (
        tempfile::tempdir().unwrap(),
        Arc::<CountingBlobs>::default(),
    );
    let config = Config::new(folder.path(), 256 << 20, 64 << 20);
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let image = tree(37);
    blobs.blobs.put(&image.image);
    assert_eq!(offer(&bundle_server, &image.image), State::Ready);
    let prunes = [(); 4].map(|()| {
        let bundle_server = bundle_server.clone();
        let thread = std::thread::Builder::new().name(PRUNE.to_owned());
        thread.spawn(move || bundle_server.prune(u64::MAX)).unwrap()
    });
    for prune in prunes {
        prune.join().unwrap().unwrap();
    }
    assert_eq!(blobs.max.load(Ordering::Relaxed), 1);
    bundle_server.close();
}

#[test]
fn unused_packs_are_deleted_after_indexing() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let bundle_server = open(folder.path(), &blobs);
    let [gone, blocked] = [35, 36].map(tree);
    index(&bundle_server, &blobs, &gone.image);
    let before = bundle_server.stat().packs;
    blobs.put(&blocked.image);
    let layer = blocked.image.blobs[1].digest;
    blobs.1.close(Some(layer));
    bundle_server.offer(Image {
        manifest: blocked.image.root,
        repository: "registry/blocked".into(),
    });
    until("the indexing of the image", || {
        match bundle_server.state(&blocked.image.root) {
            State::Working(progress) => progress.stage == Stage::Index,
            _ => false,
        }
    });
    blobs.take(&gone.image.root);
    bundle_server.prune(u64::MAX).unwrap();
    assert_eq!(
        bundle_server.stat().packs,
        before,
        "not while images are packed"
    );
    blobs.take(&layer);
    blobs.1.close(None);
    until("no pack", || bundle_server.stat().packs == 0);
    bundle_server.close();
}

#[test]
fn an_unreadable_plan_keeps_the_packs_of_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    let (image, blocked) = blocked_pair(&blobs);
    offer_and_leave_one_waiting(&bundle_server, (&image, &blocked));
    let packs = fast_packs(folder.path());
    assert!(packs > 0);
    let key = FileDigest::of(format!("bundle 1 {} true", image.root).as_bytes());
    let plan = folder.path().join("plans").join(key.hex());
    let aside = folder.path().join("aside");
    std::fs::rename(&plan, &aside).unwrap();
    // The plan is a link to itself, so opening it fails with ELOOP. This stands for EMFILE or EIO.
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
    std::thread::spawn({
        let blobs = blobs.clone();
        move || blobs.1.close(None)
    });
    bundle_server.close();
    drop(bundle_server);
    blobs.take(&blocked.root);
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    // First, maintenance fails because of the plan, and then the optimization fails.
    until("no job that waits", || bundle_server.stat().jobs == 0);
    assert_eq!(fast_packs(folder.path()), packs, "a plan may name them");
    let gone = tree(38);
    index(&bundle_server, &blobs, &gone.image);
    until("no job that waits", || bundle_server.stat().jobs == 0);
    let packs = fast_packs(folder.path());
    blobs.take(&gone.image.root);
    assert!(
        bundle_server.prune(u64::MAX).is_err(),
        "the plan is unreadable"
    );
    assert_eq!(fast_packs(folder.path()), packs, "a plan may name them");
    bundle_server.close();
    drop(bundle_server);
    // When the plan is readable again, the image is optimized.
    std::fs::remove_file(&plan).unwrap();
    std::fs::rename(&aside, &plan).unwrap();
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    until("optimized packs", || bundle_server.stat().optimized == 1);
    bundle_server.close();
}

/// Replaces the plan of an image with layers by a file that cannot be opened. The open fails with
/// ELOOP, which stands for EIO.
fn make_plan_unreadable(folder: &Path, root: &Digest) {
    let key = FileDigest::of(format!("bundle 1 {root} true").as_bytes());
    let plan = folder.join("plans").join(key.hex());
    std::fs::remove_file(&plan).unwrap();
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
}

#[test]
fn a_query_of_the_start_order_deletes_no_plan() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = tree(44);
    index(&bundle_server, &blobs, &image.image);
    until("no job that waits", || bundle_server.stat().jobs == 0);
    bundle_server.close();
    drop(bundle_server);
    let root = &image.image.root;
    let key = FileDigest::of(format!("bundle 1 {root} false").as_bytes());
    let plan = folder.path().join("plans").join(key.hex());
    let bundle_server = open(folder.path(), &blobs);
    std::fs::write(&plan, b"damaged").unwrap();
    assert!(bundle_server.start_order(root).unwrap().applied);
    assert_eq!(std::fs::read(&plan).unwrap(), b"damaged");
    std::fs::remove_file(&plan).unwrap();
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
    assert!(bundle_server.start_order(root).is_err());
    assert!(plan.is_symlink());
    bundle_server.close();
}

#[test]
fn an_unreadable_plan_is_made_again_when_its_image_is_indexed() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = tree(41);
    index(&bundle_server, &blobs, &image.image);
    bundle_server.close();
    drop(bundle_server);
    make_plan_unreadable(folder.path(), &image.image.root);
    // Without the image database, the server indexes the image again.
    std::fs::remove_dir_all(folder.path().join("directory")).unwrap();
    let bundle_server = open(folder.path(), &blobs);
    assert_eq!(offer(&bundle_server, &image.image), State::Ready);
    let bundle = bundle_server.bundle(&image.image.root, &[], true).unwrap();
    assert!(!bytes(bundle.stream(None).unwrap()).is_empty());
    bundle_server.close();
}

#[test]
fn an_unreadable_plan_is_made_again_for_a_request() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = tree(44);
    index(&bundle_server, &blobs, &image.image);
    until("no job that waits", || bundle_server.stat().jobs == 0);
    bundle_server.close();
    drop(bundle_server);
    let root = &image.image.root;
    make_plan_unreadable(folder.path(), root);
    let bundle_server = open(folder.path(), &blobs);
    let first = bundle_server.bundle(root, &[], true).map(drop);
    assert!(matches!(first, Err(Error::Missing(_))), "{first:?}");
    assert_eq!(wait_until_settled(&bundle_server, root), State::Ready);
    let bundle = bundle_server.bundle(root, &[], true).unwrap();
    assert!(!bytes(bundle.stream(None).unwrap()).is_empty());
    bundle_server.close();
}

/// Blobs that cannot be opened because the disk is full.
struct FullDisk;

impl Blobs for FullDisk {
    fn open(&self, _: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        Err(rustix::io::Errno::NOSPC.into())
    }
}

#[test]
fn clients_learn_that_an_image_waits_for_disk_space() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(folder.path(), 256 << 20, 64 << 20);
    let server = BundleServer::open(config, Arc::new(FullDisk)).unwrap();
    let manifest = tree(45).image.root;
    server.offer(Image {
        manifest,
        repository: "registry/app".into(),
    });
    until("a failure", || server.failure(&manifest).is_some());
    assert!(matches!(server.state(&manifest), State::Working(_)));
    let failure = server.failure(&manifest).unwrap();
    assert!(failure.contains("no space left"), "{failure}");
    server.close();
}

#[test]
fn an_unreadable_plan_does_not_stop_a_prune_to_a_size() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let bundle_server = open(folder.path(), &blobs);
    let [stays, gone] = [42, 43].map(tree);
    for image in [&stays, &gone] {
        index(&bundle_server, &blobs, &image.image);
    }
    until("no job that waits", || bundle_server.stat().jobs == 0);
    make_plan_unreadable(folder.path(), &stays.image.root);
    blobs.take(&gone.image.root);
    let packs = bundle_server.stat().packs;
    assert!(packs > 0);
    assert!(bundle_server.prune(0).is_err(), "a plan is unreadable");
    assert_eq!(bundle_server.stat().packs, 0, "files go all the same");
    bundle_server.close();
}

#[test]
fn a_prune_deletes_the_files_of_removed_images() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let bundle_server = open(folder.path(), &blobs);
    let [gone, kept] = [31, 32].map(tree);
    for (image, repository) in [(&gone, "registry/gone"), (&kept, "registry/kept")] {
        blobs.put(&image.image);
        bundle_server.offer(Image {
            manifest: image.image.root,
            repository: repository.into(),
        });
        assert_eq!(
            wait_until_settled(&bundle_server, &image.image.root),
            State::Ready
        );
        bundle_server.bundle(&image.image.root, &[], false).unwrap();
    }
    let taken = || {
        let stat = bundle_server.stat();
        stat.packs + stat.plans + stat.index
    };
    let before = taken();
    assert_eq!(
        bundle_server.prune(u64::MAX).unwrap(),
        before,
        "all is in use"
    );
    blobs.take(&gone.image.root);
    let left = bundle_server.prune(u64::MAX).unwrap();
    assert_eq!(left, taken());
    assert!(left < before, "{left} of {before}");
    assert_eq!(bundle_server.state(&gone.image.root), State::Unknown);
    assert_eq!(bundle_server.state(&kept.image.root), State::Ready);
    let toc = |image: &TreeImage| {
        let name = image.image.root.to_string().replace(':', "-");
        folder.path().join("index/tables").join(name).exists()
    };
    assert!(!toc(&gone) && toc(&kept));
    bundle_server.bundle(&kept.image.root, &[], false).unwrap();

    // Prunes all files except the indexes of cached images. A later request rebuilds the deleted
    // files.
    let least = bundle_server.prune(0).unwrap();
    let stat = bundle_server.stat();
    assert_eq!((stat.packs, stat.plans, stat.index), (0, 0, least));
    blobs.0.lock().clear();
    assert_eq!(bundle_server.prune(0).unwrap(), 0);
    index(&bundle_server, &blobs, &kept.image);
    bundle_server.bundle(&kept.image.root, &[], false).unwrap();
    bundle_server.close();
}

fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

fn text(seed: u64) -> String {
    let words = images::random_bytes(seed, 40_000);
    words.iter().map(|byte| format!("{byte:x} ")).collect()
}

#[test]
fn a_new_version_is_sent_as_prepared_patches() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let (lib, other) = (text(1), text(2));
    let changed = format!("{}changed{}", &lib[..50_000], &lib[50_000..]);
    let [old, new] = [&lib, &changed].map(|lib| {
        let tar = tar(&[("usr/lib/a.so", lib), ("etc/other", &other)]);
        images::Image::of_tars("amd64", &[tar])
    });
    let base_image = base_image_of(&old);
    for image in [&old, &new] {
        index(&bundle_server, &blobs, image);
    }
    until("a patch", || bundle_server.stat().pairs > 0);
    let fresh = bundle_server.bundle(&old.root, &[], false).unwrap();
    let (_, toc, contents) = decode_bundle(&bytes(fresh.stream(None).unwrap()), &[]);
    let planned = bundle_server.stat().planned;
    let bundle = bundle_server
        .bundle(&new.root, &[base_image], false)
        .unwrap();
    assert_eq!(bundle_server.stat().planned, planned + 1);
    let sent = bytes(bundle.stream(None).unwrap());
    let (header, new_table, came) = decode_bundle_with_contents(&sent, &[toc], &contents);
    let codings: Vec<_> = header.frames.codings().collect();
    assert_eq!(codings, [Coding::Patch]);
    assert_eq!(came.len(), 1, "what did not change does not come");
    assert_eq!(
        came[&FileDigest::of(changed.as_bytes())],
        changed.as_bytes()
    );
    assert_eq!(new_table.visible(), 2);
    assert!(sent.len() < lib.len() / 20, "{}", sent.len());
    bundle_server.close();
}

/// Opens a bundle server whose background work the test can pause with `background`.
fn open_with_background(
    folder: &Path,
    blobs: &Arc<MemoryBlobs>,
    rest: &BackgroundWork,
) -> BundleServer {
    let mut config = Config::new(folder, 256 << 20, 64 << 20);
    (
        config.cpu_percent,
        config.optimized_level,
        config.background,
    ) = (100, 3, rest.clone());
    BundleServer::open(config, blobs.clone()).unwrap()
}

#[test]
fn indexing_ends_when_memory_is_short_and_starts_again() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let rest = BackgroundWork::default();
    let bundle_server = open_with_background(folder.path(), &blobs, &rest);
    let image = images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(1))])]);
    blobs.put(&image);
    let layer = image.blobs.iter().max_by_key(|blob| blob.bytes.len());
    blobs.1.close(layer.map(|blob| blob.digest));
    let before = blobs.2.load(Ordering::Relaxed);
    bundle_server.offer(Image {
        manifest: image.root,
        repository: "registry/app".into(),
    });
    until("a read of a blob", || {
        blobs.2.load(Ordering::Relaxed) > before
    });
    rest.set_memory_short(true);
    rest.set_paused(true);
    blobs.1.close(None);
    until("a cancelled job", || bundle_server.stat().cancelled > 0);
    until("paused threads", || rest.paused_workers() == 2);
    let waits = bundle_server.state(&image.root);
    assert!(
        matches!(waits, State::Working(progress) if progress.stage == Stage::Wait),
        "{waits:?}"
    );
    assert_eq!(bundle_server.stat().jobs, 1, "it waits");
    rest.set_paused(false);
    assert_eq!(
        wait_until_settled(&bundle_server, &image.root),
        State::Ready
    );
    bundle_server.close();
}

#[test]
fn maintenance_removes_evicted_images_during_a_pause() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let rest = BackgroundWork::default();
    let image = images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(1))])]);
    blobs.put(&image);
    let bundle_server = open_with_background(folder.path(), &blobs, &rest);
    assert_eq!(offer(&bundle_server, &image), State::Ready);
    bundle_server.close();
    drop(bundle_server);
    blobs.take(&image.root);
    rest.set_paused(true);
    let bundle_server = open_with_background(folder.path(), &blobs, &rest);
    // An image that waits while indexing is paused does not delay maintenance.
    let other = images::Image::of_tars("amd64", &[tar(&[("usr/lib/b.so", &text(2))])]);
    blobs.put(&other);
    bundle_server.offer(Image {
        manifest: other.root,
        repository: "registry/app".into(),
    });
    until("an unknown image", || {
        bundle_server.state(&image.root) == State::Unknown
    });
    assert!(matches!(
        bundle_server.state(&other.root),
        State::Working(_)
    ));
    bundle_server.close();
}

/// A write budget that the test controls, and that counts written bytes.
#[derive(Debug, Default)]
struct TestBudget {
    may_write_any: AtomicBool,
    may_write_awaited: AtomicBool,
    questions: AtomicUsize,
    written: AtomicU64,
}

impl WriteBudget for TestBudget {
    fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    fn may_write(&self, is_awaited: bool) -> bool {
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.may_write_any.load(Ordering::Relaxed)
            || (is_awaited && self.may_write_awaited.load(Ordering::Relaxed))
    }
}

#[test]
fn a_used_up_write_budget_delays_unawaited_work_and_all_writes_count() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let budget = Arc::<TestBudget>::default();
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (
        config.cpu_percent,
        config.optimized_level,
        config.write_budget,
    ) = (100, 3, budget.clone());
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let [one, two, three] = [1, 2, 3]
        .map(|seed| images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(seed))])]));
    let offer_image = |image: &images::Image| {
        blobs.put(image);
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    };
    offer_image(&one);
    until("a request of the budget", || {
        budget.questions.load(Ordering::Relaxed) > 1
    });
    let refused = bundle_server.awaited(&one.root);
    assert!(
        matches!(&refused, State::Refused(why) if why.contains("cache.daily_write_budget")),
        "{refused:?}"
    );
    assert!(matches!(bundle_server.state(&one.root), State::Working(_)));
    assert_eq!(blobs.2.load(Ordering::Relaxed), 0, "nothing is read");
    // Images that a client waits for have an additional budget.
    budget.may_write_awaited.store(true, Ordering::Relaxed);
    assert!(matches!(
        bundle_server.awaited(&one.root),
        State::Working(_)
    ));
    offer_image(&two);
    assert_eq!(wait_until_settled(&bundle_server, &one.root), State::Ready);
    assert!(matches!(bundle_server.state(&two.root), State::Working(_)));
    // On the next day, all writes are allowed again.
    budget.may_write_any.store(true, Ordering::Relaxed);
    offer_image(&three);
    assert_eq!(wait_until_settled(&bundle_server, &two.root), State::Ready);
    assert_eq!(
        wait_until_settled(&bundle_server, &three.root),
        State::Ready
    );
    until("no job that waits", || bundle_server.stat().jobs == 0);
    bundle_server.close();
    let files: u64 = ["packs", "plans", "index/layers", "index/tables"]
        .map(|name| {
            let entries = std::fs::read_dir(folder.path().join(name)).unwrap();
            let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap());
            sizes.map(|meta| meta.len() / meta.nlink()).sum::<u64>()
        })
        .iter()
        .sum();
    let written = budget.written.load(Ordering::Relaxed);
    assert!(written >= files, "{written} of {files}");
}

/// Returns a configuration with which images get fast packs and then optimized packs.
fn fast_packs_config(folder: &Path) -> Config {
    let mut config = Config::new(folder, 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    (config.fast_level, config.optimized_level) = (1, 12);
    config
}

fn open_with_fast_packs(folder: &Path, blobs: &Arc<MemoryBlobs>) -> BundleServer {
    let mut config = fast_packs_config(folder);
    // Superseded plans expire at once.
    config.resume_window = Duration::ZERO;
    BundleServer::open(config, blobs.clone()).unwrap()
}

/// Returns the number of fast packs on disk.
fn fast_packs(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder.join("packs")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.ends_with(".pack") && name.as_bytes()[0] >= b'8')
        .count()
}

/// Returns an image with two layers of text, and an image whose indexing blocks, so that
/// low-priority work pauses.
fn blocked_pair(blobs: &MemoryBlobs) -> (images::Image, images::Image) {
    let (one, two) = (text(1), text(2));
    let tars = [tar(&[("usr/lib/a.so", &one)]), tar(&[("etc/other", &two)])];
    let image = images::Image::of_tars("amd64", &tars);
    let blocked = images::Image::of_tars("arm64", &tars);
    blobs.put(&image);
    blobs.put(&blocked);
    blobs.1.close(Some(blocked.root));
    (image, blocked)
}

fn offer_and_leave_one_waiting(
    bundle_server: &BundleServer,
    (image, blocked): (&images::Image, &images::Image),
) {
    for image in [image, blocked] {
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    }
    assert_eq!(wait_until_settled(bundle_server, &image.root), State::Ready);
}

#[test]
fn optimized_frames_replace_fast_ones() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    let (image, blocked) = blocked_pair(&blobs);
    offer_and_leave_one_waiting(&bundle_server, (&image, &blocked));
    assert_eq!(
        (
            bundle_server.stat().fast_layers,
            bundle_server.stat().optimized
        ),
        (2, 0)
    );
    assert!(fast_packs(folder.path()) > 0);
    let all = |bundle_server: &BundleServer| {
        [false, true].map(|layers| {
            let bundle = bundle_server.bundle(&image.root, &[], layers).unwrap();
            let sent = bytes(bundle.stream(None).unwrap());
            (bundle, sent)
        })
    };
    let fast = all(&bundle_server);
    // A plan that is made from the fresh plan (the plan for workers without base images) names the
    // same packs.
    let unknown_image = RequestBase {
        manifest: FileDigest::of(b"stranger").into(),
        is_usable: false,
        has_layers: false,
    };
    let derived = bundle_server
        .bundle(&image.root, &[unknown_image], false)
        .unwrap();
    drop(derived);
    // The test removes the layers from the cache, since optimization must work without them.
    for layer in &bundle_server.blobs(&image.root).unwrap()[1..] {
        blobs.take(layer);
    }
    blobs.take(&blocked.root);
    blobs.1.close(None);
    until("optimized packs", || bundle_server.stat().optimized == 1);
    assert_eq!(bundle_server.stat().fast_layers, 0);
    let better = all(&bundle_server);
    for ((old, before), (new, after)) in fast.iter().zip(&better) {
        assert!(old.etag() != new.etag() && after.len() < before.len());
        let (old_header, _, old_contents) = decode_bundle(before, &[]);
        let (header, _, contents) = decode_bundle(after, &[]);
        assert!(contents == old_contents && header.manifest == old_header.manifest);
        // A client can finish the download of the old bundle.
        assert!(bytes(old.stream(None).unwrap()) == *before);
    }
    assert!(fast_packs(folder.path()) > 0, "a reader holds them");
    drop(fast);
    bundle_server.close();
    drop(bundle_server);
    drop(better);
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    until("no fast pack", || fast_packs(folder.path()) == 0);
    let bundle = bundle_server
        .bundle(&image.root, &[unknown_image], false)
        .unwrap();
    decode_bundle(&bytes(bundle.stream(None).unwrap()), &[]);
    bundle_server.close();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn optimization_continues_after_a_restart() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let (image, blocked) = blocked_pair(&blobs);
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    offer_and_leave_one_waiting(&bundle_server, (&image, &blocked));
    let sent = |bundle_server: &BundleServer| {
        let bundle = bundle_server.bundle(&image.root, &[], true).unwrap();
        bytes(bundle.stream(None).unwrap())
    };
    let fast = sent(&bundle_server);
    // A copy of the folder stands for the state after a kill.
    let killed = tempfile::tempdir().unwrap();
    copy(folder.path(), killed.path());
    assert_eq!(bundle_server.stat().optimized, 0);
    blobs.take(&blocked.root);
    blobs.1.close(None);
    bundle_server.close();
    let folder = killed;
    let bundle_server = open_with_fast_packs(folder.path(), &blobs);
    // The copy may lack recent rows of the image database, which the server rebuilds.
    until("a ready image", || {
        bundle_server.state(&image.root) == State::Ready
    });
    until("optimized packs", || bundle_server.stat().optimized == 1);
    let better = sent(&bundle_server);
    assert!(better.len() < fast.len());
    assert!(decode_bundle(&better, &[]).2 == decode_bundle(&fast, &[]).2);
    until("no fast pack", || fast_packs(folder.path()) == 0);
    bundle_server.close();
}

/// Returns the bytes and the number of plans on disk.
fn plans(folder: &Path) -> (u64, usize) {
    let plans = std::fs::read_dir(folder.join("plans")).unwrap();
    let plans = plans.map(|plan| plan.unwrap().metadata());
    // A plan file that was deleted meanwhile is skipped. After its bundle was sent, a plan file has
    // a second name (a hard link); the map by inode counts such a file once.
    let sizes: BTreeMap<_, _> = plans
        .filter_map(|meta| meta.ok().map(|meta| (meta.ino(), meta.len())))
        .collect();
    (sizes.values().sum(), sizes.len())
}

#[test]
fn plans_stay_within_their_budget() {
    const PLAN_BUDGET: u64 = 200_000;
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 256 << 20, PLAN_BUDGET);
    (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let (old, new) = (tree(1), tree(2));
    for image in [&old, &new] {
        index(&bundle_server, &blobs, &image.image);
    }
    let (_, before) = plans(folder.path());
    // Unknown base images do not change the plan.
    let mut etags = Vec::new();
    for nth in 0..20_u32 {
        let unknown_image = RequestBase {
            manifest: FileDigest::of(&nth.to_le_bytes()).into(),
            is_usable: false,
            has_layers: false,
        };
        let bundle = bundle_server
            .bundle(&new.image.root, &[unknown_image], false)
            .unwrap();
        etags.push(bundle.etag().to_owned());
    }
    etags.dedup();
    assert_eq!(etags.len(), 1);
    assert_eq!(plans(folder.path()).1, before);
    // Duplicates of a base image do not change the plan.
    let mut sum = 0;
    for nth in 1..=40 {
        let base_images = vec![base_image_of(&old.image); nth];
        match bundle_server.bundle(&new.image.root, &base_images, false) {
            Ok(bundle) => sum += bytes(bundle.stream(None).unwrap()).len() as u64,
            // The fresh plan (for workers without base images) was evicted, too, so the server
            // indexes the image again.
            Err(_) => assert_eq!(offer(&bundle_server, &new.image), State::Ready),
        }
        // Meanwhile, a background thread prepares the patches of a pair of images. The plan of this
        // pair may exceed the budget for a moment.
        until("few plans", || plans(folder.path()).0 <= PLAN_BUDGET);
    }
    assert!(sum > 2 * PLAN_BUDGET, "{sum} is no test of it");
    bundle_server.close();
}

#[test]
fn a_bundle_uses_a_pair_that_was_prepared_meanwhile() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    // With these settings, the server prepares the patches of a pair of images only after a
    // request.
    (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let images = [tree(1), tree(2), tree(3)];
    for image in &images {
        index(&bundle_server, &blobs, &image.image);
    }
    let [one, two, new] = &images;
    let base_images = [base_image_of(&one.image), base_image_of(&two.image)];
    let ask = || {
        bundle_server
            .bundle(&new.image.root, &base_images, false)
            .unwrap()
    };
    ask();
    until("a patch", || bundle_server.stat().pairs > 0);
    let planned = bundle_server.stat().planned;
    let better = ask();
    assert_eq!(bundle_server.stat().planned, planned + 1);
    assert_eq!(ask().etag(), better.etag());
    assert_eq!(bundle_server.stat().planned, planned + 1);
    bundle_server.close();
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn many_slow_streams_of_one_file_share_memory() {
    const FILES: usize = 100;
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    // A read of any of these files decodes a frame of 4 MiB.
    let large = "is decoded to its frame".repeat(350_000);
    let image = images::Image::of_tars("amd64", &[tar(&[("large", &large)])]);
    index(&bundle_server, &blobs, &image);
    let content = FileDigest::of(large.as_bytes());
    let before = (blobs.2.load(Ordering::Relaxed), resident());
    let mut streams = Vec::new();
    for _ in 0..FILES {
        let mut stream = bundle_server.file(&image.root, &content).unwrap().unwrap();
        assert!(matches!(stream.next_piece(), Ok(Some(Piece::Bytes(_)))));
        streams.push(stream);
    }
    let after = (blobs.2.load(Ordering::Relaxed), resident());
    // The files are packed, so reads open no layer. Only a run of maintenance may open each layer
    // once meanwhile.
    assert!(
        after.0 < before.0 + FILES / 2,
        "what is packed needs no layer"
    );
    // The limit of the memory is generous, since other tests run in this process at the same time.
    let grown = after.1.saturating_sub(before.1);
    assert!(grown < 200 << 20, "{grown} bytes for {FILES} files");
    let all = bytes_after(streams.pop().unwrap());
    assert!(large.as_bytes().ends_with(&all) && !all.is_empty());
    bundle_server.close();
}

/// Returns the remaining bytes of a stream.
fn bytes_after(mut stream: Stream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(Piece::Bytes(bytes)) = stream.next_piece().unwrap() {
        all.extend(bytes);
    }
    all
}

fn open_small(folder: &Path, blobs: &Arc<MemoryBlobs>, packs: u64) -> BundleServer {
    let mut config = Config::new(folder, packs, 64 << 20);
    config.cpu_percent = 100;
    (config.fast_level, config.optimized_level) = (1, 12);
    BundleServer::open(config, blobs.clone()).unwrap()
}

/// Returns an image with text of `len` bytes in one layer.
fn large(len: usize) -> images::Image {
    let words = images::random_bytes(9, len / 2);
    let text: String = words.iter().map(|byte| format!("{byte:02x}")).collect();
    images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text)])])
}

#[test]
fn an_image_larger_than_the_pack_budget_is_refused() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let image = large(1 << 20);
    blobs.put(&image);
    let bundle_server = open_small(folder.path(), &blobs, 256 << 10);
    let State::Refused(why) = offer(&bundle_server, &image) else {
        panic!("it fits");
    };
    assert!(why.contains("bundle.size"), "{why}");
    // A second offer does not start indexing again.
    assert_eq!(offer(&bundle_server, &image), State::Refused(why));
    bundle_server.close();
    drop(bundle_server);
    let bundle_server = open_small(folder.path(), &blobs, 64 << 20);
    assert_eq!(offer(&bundle_server, &image), State::Ready);
    bundle_server.close();
}

#[test]
fn an_image_that_fits_only_once_keeps_its_fast_frames() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let image = large(1 << 20);
    blobs.put(&image);
    let bundle_server = open_small(folder.path(), &blobs, 768 << 10);
    assert_eq!(offer(&bundle_server, &image), State::Ready);
    // Low-priority jobs run one after the other, so the job of the first image has run before the
    // job of the second image.
    let other = images::Image::of_tars("amd64", &[tar(&[("etc/other", "text ")])]);
    index(&bundle_server, &blobs, &other);
    until("one fast layer", || {
        bundle_server.stat().fast_layers == 1 && bundle_server.stat().optimized <= 1
    });
    let bundle = bundle_server.bundle(&image.root, &[], true).unwrap();
    decode_bundle(&bytes(bundle.stream(None).unwrap()), &[]);
    assert_eq!(bundle_server.state(&image.root), State::Ready);
    bundle_server.close();
    drop((bundle, bundle_server));
    // With a larger pack budget, the image is optimized.
    let bundle_server = open_small(folder.path(), &blobs, 64 << 20);
    until("optimized packs", || {
        bundle_server.stat().optimized >= 1 && bundle_server.stat().fast_layers == 0
    });
    bundle_server.close();
}

/// Returns an image of one layer with these files.
fn image_of(files: &[(String, Vec<u8>)]) -> images::Image {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, &bytes[..]).unwrap();
    }
    images::Image::of_tars("amd64", &[tar.into_inner().unwrap()])
}

/// Returns two versions of an image with large files. In the new version, a few bytes of each file
/// change.
fn large_files() -> [images::Image; 2] {
    let old = (0..3).map(|nth| {
        let bytes = images::random_bytes(70 + nth, 1 << 20).to_vec();
        (format!("usr/{nth}"), bytes)
    });
    let old: Vec<_> = old.collect();
    let mut new = old.clone();
    for (_, bytes) in &mut new {
        bytes[500_000..500_100].reverse();
    }
    [old, new].map(|files| image_of(&files))
}

/// Applies a bundle to the store of a worker. Returns the codings of the bundle's frames.
fn pull(store: &Store, bundle: &[u8]) -> Vec<Coding> {
    let mut decoder = Decoder::new();
    let (mut rest, mut apply, mut codings) = (bundle, None, Vec::new());
    while let Some(event) = decoder.feed(&mut rest).unwrap() {
        match event {
            Event::Header {
                prelude,
                body,
                header,
            } => {
                codings = header.frames.codings().collect();
                let begin = NewFetch {
                    name: "app",
                    query: &BundleQuery::default(),
                    etag: &prelude.etag(),
                    prelude: &prelude,
                    body: &body,
                    header: *header,
                    is_toc_verified: false,
                };
                apply = Some(store.begin(begin).unwrap());
            }
            Event::Record {
                frame,
                coding,
                payload,
            } => apply
                .as_ref()
                .unwrap()
                .record(frame, coding, payload)
                .unwrap(),
            _ => {}
        }
    }
    match apply.unwrap().finish().unwrap() {
        // The next bundle uses the stored image as its base image.
        ApplyOutcome::Complete(whole) => drop(whole.recorded().unwrap()),
        outcome @ ApplyOutcome::Missing(_) => panic!("{outcome:?}"),
    }
    codings
}

#[test]
fn an_unprepared_large_pair_reuses_chunks() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 512 << 20, 64 << 20);
    (
        config.cpu_percent,
        config.optimized_level,
        config.max_pairs,
        config.fast_patch_bytes,
    ) = (100, 1, 0, 0);
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    // The image has a large file, a medium file, and small files. One of the small files changes.
    let large = images::random_bytes(1, 64 << 20).to_vec();
    let packed = images::random_bytes(2, 1 << 20).to_vec();
    let small: Vec<Vec<u8>> = (0..40)
        .map(|seed| images::random_bytes(100 + seed, 20_000).to_vec())
        .collect();
    let (mut larger, mut repacked, mut smaller) = (large.clone(), packed.clone(), small.clone());
    larger[20 << 20..21 << 20].reverse();
    repacked.splice(500_000..500_000, *b"inserted");
    smaller[7][0] ^= 1;
    let versions = [(large, packed, small), (larger, repacked, smaller)];
    let [old, new] = versions.each_ref().map(|(large, packed, small)| {
        let mut files = vec![
            ("a/large".to_owned(), large.clone()),
            ("a/packed".to_owned(), packed.clone()),
        ];
        let small = (0..).zip(small.clone());
        files.extend(small.map(|(nth, bytes)| (format!("b/{nth:02}"), bytes)));
        image_of(&files)
    });
    for image in [&old, &new] {
        index(&bundle_server, &blobs, image);
    }
    let worker = tempfile::tempdir().unwrap();
    let store = Store::open(worker.path(), &[]).unwrap();
    let fresh = bundle_server.bundle(&old.root, &[], false).unwrap();
    pull(&store, &bytes(fresh.stream(None).unwrap()));
    let base_image = base_image_of(&old);
    let bundle = bundle_server
        .bundle(&new.root, &[base_image], false)
        .unwrap();
    let sent = bytes(bundle.stream(None).unwrap());
    assert!(sent.len() < 3 << 19, "{} bytes", sent.len());
    let codings = pull(&store, &sent);
    assert!(codings.contains(&Coding::Copy), "{codings:?}");
    let (large, packed, small) = &versions[1];
    for whole in [large, packed, &small[7]] {
        let mut bytes = vec![0; whole.len()];
        store
            .read_at(&FileDigest::of(whole), 0, &mut bytes)
            .unwrap();
        assert!(bytes == *whole);
    }
    bundle_server.close();
}

#[test]
fn without_time_for_deltas_a_plan_has_whole_frames() {
    let [old, new] = large_files();
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&old);
    blobs.put(&new);
    // Number of pairs that the server prepares, and maximum bytes for fast patches.
    for (max_pairs, fast_patch_bytes) in [(0, 0), (0, 96 << 20), (1, 0)] {
        let update_within = |delta_timeout: Duration| {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::new(folder.path(), 512 << 20, 64 << 20);
            (config.cpu_percent, config.optimized_level) = (100, 1);
            (config.max_pairs, config.fast_patch_bytes) = (max_pairs, fast_patch_bytes);
            config.delta_timeout = delta_timeout;
            let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
            for image in [&old, &new] {
                assert_eq!(offer(&bundle_server, image), State::Ready);
            }
            until("a patch", || bundle_server.stat().pairs == max_pairs as u64);
            let worker = tempfile::tempdir().unwrap();
            let store = Store::open(worker.path(), &[]).unwrap();
            let fresh = bundle_server.bundle(&old.root, &[], false).unwrap();
            pull(&store, &bytes(fresh.stream(None).unwrap()));
            let base_image = base_image_of(&old);
            let bundle = bundle_server.bundle(&new.root, &[base_image], false);
            let sent = bytes(bundle.unwrap().stream(None).unwrap());
            let fast_pair = format!("quick 1 {} {} false", new.root, old.root);
            let fast_pair = FileDigest::of(fast_pair.as_bytes()).hex();
            let has_fast_patches = folder.path().join("plans").join(fast_pair).exists();
            assert!(!delta_timeout.is_zero() || !has_fast_patches);
            bundle_server.close();
            (sent.len(), pull(&store, &sent))
        };
        let is_delta = |coding: &Coding| matches!(coding, Coding::Copy | Coding::Patch);
        let (len, codings) = update_within(Duration::from_secs(600));
        assert!(codings.iter().any(is_delta), "{codings:?}");
        assert!(len < 1 << 20, "{len}");
        let (len, codings) = update_within(Duration::ZERO);
        assert!(!codings.iter().any(is_delta), "{codings:?}");
        assert!(len > 3 << 20, "{len}");
    }
}

#[test]
fn a_plan_that_takes_too_long_fails_and_is_made_later() {
    let [old, new] = large_files();
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let base_image = base_image_of(&old);
    let mut config = Config::new(folder.path(), 512 << 20, 64 << 20);
    (config.cpu_percent, config.optimized_level) = (100, 1);
    config.plan_timeout = Duration::ZERO;
    let bundle_server = BundleServer::open(config.clone(), blobs.clone()).unwrap();
    for image in [&old, &new] {
        index(&bundle_server, &blobs, image);
    }
    // This plan is made when the image is indexed.
    assert!(bundle_server.bundle(&new.root, &[], false).is_ok());
    let failed = bundle_server.bundle(&new.root, &[base_image], false);
    let failed = failed.map(drop).expect_err("there is no time");
    assert!(matches!(failed, Error::PlanTimeout(_)), "{failed}");
    assert!(failed.is_retryable() && !failed.is_damage());
    assert_eq!(bundle_server.state(&new.root), State::Ready);
    bundle_server.close();
    drop(bundle_server);
    config.plan_timeout = Duration::from_secs(600);
    let bundle_server = BundleServer::open(config, blobs).unwrap();
    assert!(
        bundle_server
            .bundle(&new.root, &[base_image], false)
            .is_ok()
    );
    bundle_server.close();
}

#[test]
fn a_trace_reorders_the_frames_of_its_image() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let files: Vec<_> = (0..8_u64)
        .map(|nth| (format!("file-{nth}"), text(nth).repeat(20)))
        .collect();
    let named: Vec<_> = files
        .iter()
        .map(|(name, text)| (&**name, &**text))
        .collect();
    let image = images::Image::of_tars("amd64", &[tar(&named)]);
    index(&bundle_server, &blobs, &image);
    let ask = || bundle_server.bundle(&image.root, &[], true).unwrap();
    // Returns the first content of a bundle.
    let first = |sent: &[u8]| {
        let (header, toc, _) = decode_bundle(sent, &[]);
        let sizes = TocSizes(&toc, &[]);
        let frame = header.frames.cursor(&sizes).unwrap().next().unwrap();
        toc.contents().content(frame.unwrap().members[0].content)
    };
    let before = ask();
    let sent = bytes(before.stream(None).unwrap());
    let traced =
        (files.iter().rev()).find(|it| first(&sent) != Some(FileDigest::of(it.1.as_bytes())));
    let (name, text) = traced.unwrap();
    for _ in 0..2 {
        bundle_server
            .trace(client(1), &image.root, std::slice::from_ref(name))
            .unwrap();
        until("another plan", || ask().etag() != before.etag());
    }
    let after = bytes(ask().stream(None).unwrap());
    assert_eq!(first(&after), Some(FileDigest::of(text.as_bytes())));
    assert!(decode_bundle(&after, &[]).2 == decode_bundle(&sent, &[]).2);
    // A client can finish the download of the old bundle, also over another connection and after a
    // restart.
    assert!(bytes(before.stream(None).unwrap()) == sent);
    let etag = before.etag().to_owned();
    drop(before);
    bundle_server.close();
    drop(bundle_server);
    let bundle_server = open(folder.path(), &blobs);
    let superseded_bundle = |layers| {
        bundle_server
            .superseded(&image.root, &[], layers, &etag)
            .unwrap()
    };
    let again = superseded_bundle(true).unwrap();
    assert_eq!(again.etag(), etag);
    assert!(bytes(again.stream(None).unwrap()) == sent);
    assert!(superseded_bundle(false).is_none(), "of another question");
    bundle_server.close();
    // After the resume window, maintenance deletes the superseded plan.
    drop((again, bundle_server));
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    config.resume_window = Duration::ZERO;
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    until("the end of the superseded plan", || {
        matches!(
            bundle_server.superseded(&image.root, &[], true, &etag),
            Ok(None)
        )
    });
    bundle_server.close();
}

#[test]
fn a_trace_determines_the_hot_ranges() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let files: Vec<_> = (0..3_u64).map(text).collect();
    let lower = tar(&[("a", &files[0]), ("b", &files[1])]);
    let image = images::Image::of_tars(
        "amd64",
        &[lower, tar(&[("c", &files[2]), ("again", &files[1])])],
    );
    index(&bundle_server, &blobs, &image);
    assert_eq!(
        (
            bundle_server.traced_images(),
            bundle_server.hot_ranges(&image.root).unwrap()
        ),
        (vec![], vec![])
    );
    let trace = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        bundle_server.trace(client(1), &image.root, &names).unwrap()
    };
    let noted = |matched, clients, is_new| RecordedTrace {
        matched,
        clients,
        is_new,
    };
    let layers = bundle_server.blobs(&image.root).unwrap();
    let layers = &layers[1..];
    let hot_ranges = || bundle_server.hot_ranges(&image.root).unwrap();
    assert_eq!(trace(&["nowhere"]), noted(0, 0, false));
    assert_eq!(bundle_server.traced_images(), []);
    assert_eq!(trace(&["a", "nowhere", "a"]), noted(1, 1, true));
    assert_eq!(trace(&["a"]), noted(1, 1, false), "that was known");
    assert_eq!(
        trace(&["nowhere"]),
        noted(0, 1, false),
        "it replaces nothing"
    );
    assert_eq!(bundle_server.traced_images(), [image.root]);
    assert_eq!(
        hot_ranges().iter().map(|it| it.blob).collect::<Vec<_>>(),
        layers[..1]
    );
    // Both layers have the content of this file, and a mount reads the content from the upper
    // layer.
    assert!(trace(&["b"]).is_new);
    assert_eq!(
        hot_ranges().iter().map(|it| it.blob).collect::<Vec<_>>(),
        layers[1..]
    );
    assert!(trace(&["c", "a"]).is_new);
    assert_eq!(hot_ranges().len(), 2);
    // Another client records its own order for the image.
    let names = ["c", "again"].map(str::to_owned);
    let added = bundle_server.trace(client(2), &image.root, &names).unwrap();
    assert_eq!(added, noted(2, 2, true));
    assert_eq!(
        bundle_server.start_order(&image.root).unwrap().files,
        ["c", "a", "again"]
    );
    // The result has no ranges of a layer that is no longer cached.
    blobs.take(&layers[0]);
    let left = hot_ranges();
    assert_eq!(left.len(), 1);
    let size = blobs.open(&layers[1]).unwrap().unwrap().size();
    assert!(
        left[0]
            .ranges
            .iter()
            .all(|range| range.start < range.end && range.end <= size)
    );
    bundle_server.close();
    assert!(matches!(
        bundle_server.hot_ranges(&image.root),
        Err(Error::Stopped)
    ));
}

#[test]
fn repeated_traces_take_a_bounded_space() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let bundle_server = open(folder.path(), &blobs);
    let image = images::Image::of_tars("amd64", &[tar(&[("a", "x"), ("b", "y")])]);
    index(&bundle_server, &blobs, &image);
    let max = 2 << 20;
    for nth in 0..16 {
        let mut files: Vec<_> = (0..500)
            .map(|line| format!("{nth}/{line}/{}", "x".repeat(1000)))
            .collect();
        // The client records two different orders in turn.
        let known = if nth % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
        files.extend(known.map(str::to_owned));
        bundle_server.trace(client(1), &image.root, &files).unwrap();
    }
    let used = bytes_below(folder.path());
    assert!(used < max, "{used} bytes of an image of two files");
    bundle_server.close();
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let bytes = entries.map(|entry| match entry.file_type() {
        Ok(it) if it.is_dir() => bytes_below(&entry.path()),
        // A file that another thread has deleted counts as 0 bytes.
        _ => entry.metadata().map_or(0, |meta| meta.len()),
    });
    bytes.sum()
}

#[test]
fn plans_of_different_requests_do_not_wait_for_each_other() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
    let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
    let images = [tree(1), tree(2), tree(3)];
    for image in &images {
        index(&bundle_server, &blobs, &image.image);
    }
    let [old, slow, other] = &images;
    let (say, done) = std::sync::mpsc::channel();
    let planned = bundle_server.stat().planned;
    std::thread::scope(|scope| {
        let ask = |image: &TreeImage| {
            let (bundle_server, say) = (bundle_server.clone(), say.clone());
            let (want, base_images) = (image.image.root, [base_image_of(&old.image)]);
            scope.spawn(move || {
                let bundle = bundle_server.bundle(&want, &base_images, false).unwrap();
                say.send((want, bundle.etag().to_owned())).unwrap();
            });
        };
        // The thread that plans the slow image blocks when it opens the manifest.
        blobs.1.close(Some(slow.image.root));
        ask(slow);
        until("a plan", || bundle_server.stat().planned > planned);
        ask(slow);
        ask(other);
        let first = done.recv_timeout(Duration::from_secs(30));
        blobs.1.close(None);
        assert_eq!(first.unwrap().0, other.image.root);
        let (one, two) = (done.recv().unwrap(), done.recv().unwrap());
        assert_eq!(one, two);
    });
    assert_eq!(
        bundle_server.stat().planned,
        planned + 2,
        "the same question is planned once"
    );
    bundle_server.close();
}

/// Returns the sum of the compressed sizes of all files that only the new image has, each at the
/// fast level.
fn whole_files(old: &[(String, Vec<u8>)], new: &[(String, Vec<u8>)]) -> u64 {
    let is_new = |bytes: &&Vec<u8>| !old.iter().any(|(_, base_tocs)| base_tocs == *bytes);
    let alone = |bytes: &Vec<u8>| {
        let coded = zstd::bulk::compress(bytes, 3).unwrap();
        coded.len().min(bytes.len()) as u64
    };
    new.iter()
        .map(|(_, bytes)| bytes)
        .filter(is_new)
        .map(alone)
        .sum()
}

#[test]
fn an_update_takes_no_more_bytes_than_its_changed_files() {
    for seed in 0..6_u64 {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
        let mut config = Config::new(folder.path(), 512 << 20, 64 << 20);
        (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
        // With these budgets, the server may make no patches and split no frames.
        (config.fast_patch_bytes, config.recompress_budget) = (0, 0);
        let bundle_server = BundleServer::open(config, blobs.clone()).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let file = |random: &mut fastrand::Rng| {
            let len = random.usize(2_000..60_000);
            if random.bool() {
                return images::random_bytes(random.u64(..), len).to_vec();
            }
            let mut words = String::new();
            while words.len() < len {
                words.push_str(&format!("word{} and ", random.u16(..300)));
            }
            words.into_bytes()
        };
        let old: Vec<_> = (0..60)
            .map(|nth| (format!("usr/{nth:02}"), file(&mut random)))
            .collect();
        let mut new = old.clone();
        for (_, bytes) in &mut new {
            if random.u8(..8) == 0 {
                *bytes = file(&mut random);
            }
        }
        let [was, is] = [&old, &new].map(|files| image_of(files));
        for image in [&was, &is] {
            index(&bundle_server, &blobs, image);
        }
        let base_image = base_image_of(&was);
        let bundle = bundle_server
            .bundle(&is.root, &[base_image], false)
            .unwrap();
        let records = bytes(bundle.stream(Some((0, bundle.frames()))).unwrap());
        let max = whole_files(&old, &new) * 102 / 100;
        assert!(
            records.len() as u64 <= max,
            "{seed}: {} of {max}",
            records.len()
        );
        bundle_server.close();
    }
}
