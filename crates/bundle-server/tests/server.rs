//! The server's library as a whole: from blobs to the bytes of a bundle, and back to contents.
#![allow(clippy::unwrap_used, reason = "all of it is test")]

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

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
use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::{Blob, Blobs, FileDigest, ImageToc, Source as _, image_toc};
use pierhead_worker::store::{ApplyOutcome, NewFetch, Store};

/// Blobs in memory, which can be taken away, and how often one was opened.
#[derive(Default)]
struct MemoryBlobs(Mutex<HashMap<Digest, Arc<MemoryBlob>>>, Gate, AtomicUsize);

/// While a blob is named, opening it waits.
#[derive(Default)]
struct Gate(Mutex<Option<Digest>>, Condvar);

impl Gate {
    fn close(&self, digest: Option<Digest>) {
        *self.0.lock().unwrap() = digest;
        self.1.notify_all();
    }
}

impl Blobs for MemoryBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let closed = self.1.0.lock().unwrap();
        let is_closed = |closed: &mut Option<Digest>| *closed == Some(*digest);
        drop(self.1.1.wait_while(closed, is_closed).unwrap());
        self.2.fetch_add(1, Ordering::Relaxed);
        let found = self.0.lock().unwrap().get(digest).cloned();
        Ok(found.map(|bytes| bytes as Arc<dyn Blob>))
    }
}

impl MemoryBlobs {
    fn put(&self, image: &images::Image) {
        let mut blobs = self.0.lock().unwrap();
        for blob in &image.blobs {
            blobs.insert(blob.digest, Arc::new(MemoryBlob(blob.bytes.to_vec())));
        }
        for document in &image.documents {
            let bytes = Arc::new(MemoryBlob(document.bytes.to_vec()));
            blobs.insert(document.digest, bytes);
        }
    }

    fn take(&self, digest: &Digest) {
        self.0.lock().unwrap().remove(digest);
    }
}

fn open(folder: &Path, blobs: &Arc<MemoryBlobs>) -> BundleServer {
    let mut config = Config::new(folder, 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    config.optimized_level = 3;
    BundleServer::open(config, blobs.clone()).unwrap()
}

/// No test may hang: a generous limit, not a figure.
fn settled(library: &BundleServer, manifest: &Digest) -> State {
    let started = Instant::now();
    loop {
        match library.state(manifest) {
            State::Working(_) => {}
            state => return state,
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn offer(library: &BundleServer, image: &images::Image) -> State {
    library.offer(Image {
        manifest: image.root,
        repository: "registry/app".into(),
    });
    settled(library, &image.root)
}

fn tree(seed: u64) -> TreeImage {
    images::Image::tree(seed, &TreeOptions::default())
}

fn have(image: &TreeImage) -> RequestBase {
    RequestBase {
        manifest: image.image.root,
        is_known: true,
        has_layers: false,
    }
}

/// All bytes of a stream.
fn bytes(mut stream: Stream) -> Vec<u8> {
    let said = stream.len();
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
    if let Some(said) = said {
        assert_eq!(all.len() as u64, said);
    }
    all
}

struct TocSizes<'a>(&'a ImageToc, &'a [ImageToc]);

impl Sizes for TocSizes<'_> {
    fn wanted(&self, content: u32) -> Option<u64> {
        self.0.contents().size(content)
    }

    fn base(&self, have: u16, content: u32) -> Option<u64> {
        self.1.get(usize::from(have))?.contents().size(content)
    }
}

/// What a worker makes of a bundle: the header, the table, and the contents that came.
fn received(bundle: &[u8], had: &[ImageToc]) -> (Header, ImageToc, BTreeMap<FileDigest, Vec<u8>>) {
    applied(bundle, had, &BTreeMap::new())
}

/// The same of a worker that has these contents.
fn applied(
    bundle: &[u8],
    had: &[ImageToc],
    old: &BTreeMap<FileDigest, Vec<u8>>,
) -> (Header, ImageToc, BTreeMap<FileDigest, Vec<u8>>) {
    let mut decoder = Decoder::new();
    let mut rest = bytes_of(bundle);
    let Some(Event::Header { header, .. }) = decoder.feed(&mut rest).unwrap() else {
        panic!("no header");
    };
    let base = header.toc.base.map(|at| &had[usize::from(at)]);
    let toc = image_toc::decode(&header.toc.coded, base).unwrap();
    let sizes = TocSizes(&toc, had);
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
                        let toc = &had[usize::from(base.image)];
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
fn a_fresh_bundle_has_all_that_the_tree_needs() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let image = tree(1);
    blobs.put(&image.image);
    assert_eq!(library.state(&image.image.root), State::Unknown);
    assert_eq!(offer(&library, &image.image), State::Ready);
    for layers in [false, true] {
        let bundle = library.bundle(&image.image.root, &[], layers).unwrap();
        let sent = bytes(bundle.stream(None).unwrap());
        let (header, toc, contents) = received(&sent, &[]);
        assert_eq!(header.manifest, image.image.root_document().bytes);
        assert_eq!((header.layers, header.base_images.len()), (layers, 0));
        let all = toc.contents();
        let most = if layers { all.len() } else { toc.visible() };
        for number in 0..most {
            let (content, size) = (all.content(number).unwrap(), all.size(number).unwrap());
            assert!(
                size == 0 || contents.contains_key(&content),
                "{number} of {most}"
            );
        }
        // Nothing that was not asked for.
        for content in contents.keys() {
            assert!(toc.find(content).unwrap() < most);
        }
        // The same question has the same answer, of a new process too.
        let again = library.bundle(&image.image.root, &[], layers).unwrap();
        assert_eq!(again.etag(), bundle.etag());
        assert_eq!(bytes(again.stream(None).unwrap()), sent);
    }
    library.close();
}

/// Waits until both threads have looked for work again, and found that they should rest.
fn looked(rest: &BackgroundWork) {
    let before = rest.pauses();
    while rest.pauses() < before + 5 {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_nobody_waits_for_rests_and_the_rest_goes_on() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let rest = BackgroundWork::default();
    rest.set_paused(true);
    let library = open_resting(folder.path(), &blobs, &rest);
    let versions = [text(1), format!("{}changed", text(1)), text(2)].map(|lib| {
        let tar = tar(&[("usr/lib/a.so", &lib)]);
        images::Image::of_tars("amd64", &[tar])
    });
    let [first, second, third] = versions.each_ref();
    let add = |image: &images::Image| {
        blobs.put(image);
        library.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    };
    let is_working =
        |image: &images::Image| matches!(library.state(&image.root), State::Working(_));
    add(first);
    looked(&rest);
    assert!(is_working(first));
    assert_eq!(blobs.2.load(Ordering::Relaxed), 0, "nothing is read");
    // Somebody waits for one of two, and then nobody waits.
    add(second);
    library.awaited(&first.root);
    assert_eq!(settled(&library, &first.root), State::Ready);
    looked(&rest);
    assert!(is_working(second));
    library.awaited(&second.root);
    assert_eq!(settled(&library, &second.root), State::Ready);
    looked(&rest);
    assert_eq!(library.stat().pairs, 0, "patches can wait");
    rest.set_paused(false);
    while library.stat().jobs > 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(library.stat().pairs > 0);
    // In the middle of an image.
    let layer = third.blobs.iter().max_by_key(|blob| blob.bytes.len());
    blobs.1.close(layer.map(|blob| blob.digest));
    let before = blobs.2.load(Ordering::Relaxed);
    add(third);
    while blobs.2.load(Ordering::Relaxed) == before {
        std::thread::sleep(Duration::from_millis(2));
    }
    rest.set_paused(true);
    blobs.1.close(None);
    while rest.paused_workers() < 2 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(is_working(third));
    rest.set_paused(false);
    assert_eq!(settled(&library, &third.root), State::Ready);
    library.close();
}

#[test]
fn an_update_has_what_the_worker_lacks_and_ignores_what_is_unknown() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let (old, new) = (tree(1), tree(2));
    // The new one is the old one and a layer.
    let tars = [&old.tars[..], &new.tars[..1]].concat();
    let update = images::Image::of_tars("amd64", &tars);
    blobs.put(&old.image);
    blobs.put(&update);
    assert_eq!(offer(&library, &old.image), State::Ready);
    assert_eq!(offer(&library, &update), State::Ready);
    let stranger = RequestBase {
        manifest: FileDigest::of(b"stranger").into(),
        is_known: false,
        has_layers: false,
    };
    let base_images = [stranger, have(&old)];
    let bundle = library.bundle(&update.root, &base_images, false).unwrap();
    let fresh = library.bundle(&old.image.root, &[], false).unwrap();
    let (_, old_table, old_contents) = received(&bytes(fresh.stream(None).unwrap()), &[]);
    let had = [old_table];
    let sent = bytes(bundle.stream(None).unwrap());
    let (header, toc, contents) = received(&sent, &had);
    let known: Vec<_> = header.base_images.iter().map(|had| had.usable).collect();
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
    let whole = library.bundle(&update.root, &[], false).unwrap();
    let whole = bytes(whole.stream(None).unwrap()).len();
    assert!(sent.len() < whole, "{} of {whole}", sent.len());
    library.close();
}

#[test]
fn a_bundle_goes_on_at_any_frame() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let image = tree(3);
    blobs.put(&image.image);
    assert_eq!(offer(&library, &image.image), State::Ready);
    let bundle = library.bundle(&image.image.root, &[], true).unwrap();
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
    library.close();
}

#[test]
fn a_layer_that_lies_is_never_bundled() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let image = images::Image::random(1, &[1000]);
    blobs.put(&image);
    assert!(matches!(offer(&library, &image), State::Refused(_)));
    // The layers of one image under the config of another.
    let (one, other) = (tree(1), tree(2));
    let text =
        |image: &images::Image| String::from_utf8(image.root_document().bytes.to_vec()).unwrap();
    let layers = |image: &images::Image| {
        let json: serde_json::Value = serde_json::from_str(&text(image)).unwrap();
        json["layers"].clone()
    };
    let mut lie: serde_json::Value = serde_json::from_str(&text(&one.image)).unwrap();
    lie["layers"] = layers(&other.image);
    let lie = images::Document::new(&lie);
    blobs.put(&one.image);
    blobs.put(&other.image);
    let liar = images::Image {
        root: lie.digest,
        documents: vec![lie],
        blobs: Vec::new(),
    };
    blobs.put(&liar);
    let State::Refused(why) = offer(&library, &liar) else {
        panic!("it was believed");
    };
    assert!(why.contains("digest"), "{why}");
    assert_eq!(library.stat().diff_id_mismatches, 1);
    assert!(library.bundle(&liar.root, &[], false).is_err());
    // The same layers under a config that tells the truth.
    assert_eq!(offer(&library, &other.image), State::Ready);
    // And the lie is found with the index at hand, too.
    library.close();
}

#[test]
fn single_files_come_from_packs_and_from_layers() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let (image, other) = (tree(4), tree(5));
    blobs.put(&image.image);
    assert_eq!(offer(&library, &image.image), State::Ready);
    for (content, bytes_of_it) in &image.contents {
        let stream = library.file(&image.image.root, content).unwrap().unwrap();
        assert_eq!(&bytes(stream), bytes_of_it);
    }
    let foreign = other
        .contents
        .keys()
        .find(|it| !image.contents.contains_key(*it));
    let found = library.file(&image.image.root, foreign.unwrap()).unwrap();
    assert!(found.is_none(), "another image's");
    assert!(library.file(&other.image.root, foreign.unwrap()).is_err());
    library.close();
}

#[test]
fn what_is_lost_is_made_again() {
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
            let library = open(folder.path(), &blobs);
            assert_eq!(offer(&library, &image.image), State::Ready);
            let bundle = library.bundle(&image.image.root, &[], false).unwrap();
            let sent = bytes(bundle.stream(None).unwrap());
            library.close();
            sent
        };
        std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
        let library = open(folder.path(), &blobs);
        if library.state(&image.image.root) != State::Ready {
            assert_eq!(offer(&library, &image.image), State::Ready, "{lost}");
        }
        // The first question may find that something is missing.
        let mut bundle = library.bundle(&image.image.root, &[], false);
        if bundle.is_err() {
            assert_eq!(offer(&library, &image.image), State::Ready, "{lost}");
            bundle = library.bundle(&image.image.root, &[], false);
        }
        let sent = bytes(bundle.unwrap().stream(None).unwrap());
        let ([_, _, one], [_, _, other]) = {
            let (a, b) = (received(&before, &[]), received(&sent, &[]));
            ([0; 3].map(|_| a.2.clone()), [0; 3].map(|_| b.2.clone()))
        };
        assert!(one == other, "{lost}");
        library.close();
    }
}

/// Changes a byte of every 64 of each file of a folder. Indexes still open: their directory, which the foot knows the
/// begin of, is left as it is.
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
fn what_is_damaged_is_made_again() {
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
            let library = open(folder.path(), &blobs);
            assert_eq!(offer(&library, &image.image), State::Ready);
            let bundle = library.bundle(root, &[], false).unwrap();
            let sent = bytes(bundle.stream(None).unwrap());
            library.close();
            sent
        };
        for lost in lost {
            std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
        }
        damage(&folder.path().join(damaged));
        let library = open(folder.path(), &blobs);
        if library.state(root) != State::Ready {
            assert_eq!(offer(&library, &image.image), State::Ready, "{damaged}");
        }
        // The first question may find the damage: it is told to come again, and needs no more than that.
        let mut bundle = library.bundle(root, &[], false);
        if let Err(error) = &bundle {
            assert!(matches!(error, Error::Missing(_)), "{damaged}: {error}");
            assert_eq!(settled(&library, root), State::Ready, "{damaged}");
            bundle = library.bundle(root, &[], false);
        }
        let after = bytes(bundle.unwrap().stream(None).unwrap());
        let [before, after] = [before, after].map(|sent| received(&sent, &[]).2);
        assert!(before == after, "{damaged}");
        library.close();
    }
}

#[test]
fn a_table_that_cannot_be_read_is_an_error_of_its_image_and_made_anew() {
    let [image, other] = [6, 7].map(tree);
    let blobs = Arc::<MemoryBlobs>::default();
    let folder = tempfile::tempdir().unwrap();
    let library = open(folder.path(), &blobs);
    for image in [&image, &other] {
        blobs.put(&image.image);
        assert_eq!(offer(&library, &image.image), State::Ready);
    }
    let root = &image.image.root;
    let name = root.to_string().replace(':', "-");
    let toc = folder.path().join("index/tables").join(name);
    // Opening it fails with an error of the file system, which proves no damage.
    std::fs::remove_file(&toc).unwrap();
    std::os::unix::fs::symlink(&toc, &toc).unwrap();
    let file = |image: &TreeImage| {
        let (content, _) = image.contents.iter().next().unwrap();
        library
            .file(&image.image.root, content)
            .map(|it| it.is_some())
    };
    let failed = file(&image).expect_err("it cannot be read");
    assert!(matches!(failed, Error::Missing(_)), "{failed}");
    assert!(file(&other).unwrap(), "the other image is concerned");
    assert_eq!(settled(&library, root), State::Ready);
    assert!(file(&image).unwrap());
    assert!(toc.symlink_metadata().unwrap().is_file());
    // Only once: a file that stays unreadable is neither rebuilt in a loop nor deleted.
    library.close();
    std::fs::remove_file(&toc).unwrap();
    std::os::unix::fs::symlink(&toc, &toc).unwrap();
    let wanted = library.trace(client(1), root, &["file".to_owned()]);
    assert!(matches!(wanted, Err(Error::Io { .. })), "{wanted:?}");
    assert!(toc.is_symlink());
}

#[test]
fn the_lookup_of_one_file_does_not_verify_the_whole_toc() {
    /// Bytes of a TOC file per checksum.
    const BLOCK: usize = 4096;
    let names: Vec<_> = (0..3000).map(|nth| format!("folder/file-{nth}")).collect();
    let files: Vec<_> = names.iter().map(|name| (&**name, &**name)).collect();
    let image = images::Image::of_tars("amd64", &[tar(&files)]);
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    blobs.put(&image);
    assert_eq!(offer(&library, &image), State::Ready);
    let name = image.root.to_string().replace(':', "-");
    let toc = folder.path().join("index/tables").join(name);
    let mut damaged = std::fs::read(&toc).unwrap();
    let blocks = damaged.len() / BLOCK;
    assert!(blocks > 30, "{blocks} blocks are no large TOC");
    // The second block has names of files. The lookup of a content needs no names.
    damaged[BLOCK + BLOCK / 2] ^= 1;
    std::fs::write(&toc, damaged).unwrap();
    let content = FileDigest::of(names[7].as_bytes());
    let found = library.file(&image.root, &content).unwrap();
    assert_eq!(bytes(found.unwrap()), names[7].as_bytes());
    assert_eq!(library.state(&image.root), State::Ready);
    // A read of the whole TOC finds the damage.
    let traced = library.trace(client(1), &image.root, &names[..1]);
    assert!(matches!(traced, Err(Error::Missing(_))), "{traced:?}");
    library.close();
}

/// Several versions of one tree, all ready.
fn versions(library: &BundleServer, blobs: &MemoryBlobs, count: u32) -> Vec<TreeImage> {
    let version = |version| {
        let options = TreeOptions {
            version,
            ..TreeOptions::default()
        };
        let image = images::Image::tree(9, &options);
        blobs.put(&image.image);
        assert_eq!(offer(library, &image.image), State::Ready);
        image
    };
    (0..count).map(version).collect()
}

fn client(nth: u8) -> ClientKey {
    ClientKey::of([10, 0, 0, nth].into())
}

#[test]
fn permutations_of_what_a_worker_has_are_one_plan() {
    let blobs = Arc::<MemoryBlobs>::default();
    let folder = tempfile::tempdir().unwrap();
    let library = open(folder.path(), &blobs);
    let images = versions(&library, &blobs, 5);
    let (want, had) = images.split_last().unwrap();
    while library.stat().jobs > 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let planned = library.stat().planned;
    let mut random = fastrand::Rng::with_seed(7);
    let mut etags = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        // Unknown and duplicate digests make no other plan either.
        let mut have: Vec<_> = had.iter().chain(&had[..2]).map(self::have).collect();
        have.push(RequestBase {
            manifest: FileDigest::of(&random.u64(..).to_le_bytes()).into(),
            is_known: false,
            has_layers: false,
        });
        random.shuffle(&mut have);
        let bundle = library.bundle_for(client(1), &want.image.root, &have, false);
        etags.insert(bundle.unwrap().etag().to_owned());
    }
    assert_eq!(etags.len(), 1);
    assert_eq!(library.stat().planned, planned + 1);
    library.close();
}

#[test]
fn an_image_that_takes_long_is_interrupted_for_another_client() {
    let [slow, other] = [6, 7].map(tree);
    let blobs = Arc::<MemoryBlobs>::default();
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (config.cpu_percent, config.optimized_level) = (100, 3);
    // Any CPU time exceeds this slice.
    config.time_slice = Duration::ZERO;
    let library = BundleServer::open(config, blobs.clone()).unwrap();
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
        library.offer_for(client(nth), of);
    };
    let [config_blob, layer] = [0, 1].map(|at| slow.image.blobs[at].digest);
    // Indexing blocks at its layer.
    blobs.1.close(Some(layer));
    offer(1, &slow);
    let until = |is_it: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !is_it() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "it takes too long"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    // Indexing has begun.
    until(
        &|| matches!(library.state(&slow.image.root), State::Working(it) if it.stage == Stage::Index),
    );
    offer(2, &other);
    // No client waits for the slow image, so it does not interrupt the other one.
    library.awaited_by(client(2), &other.image.root);
    // On its second attempt it blocks at its config.
    blobs.1.close(Some(config_blob));
    assert_eq!(settled(&library, &other.image.root), State::Ready);
    assert!(matches!(library.state(&slow.image.root), State::Working(_)));
    assert_eq!(library.stat().cancelled, 1);
    blobs.1.close(None);
    assert_eq!(settled(&library, &slow.image.root), State::Ready);
    library.close();
}

/// Blobs in memory. Opening one of them takes CPU time.
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

/// Indexes an image whose layer takes `cpu_time` to open within `index_time`. With `interrupted`, the image of another
/// client interrupts it once.
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
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let offer = |nth: u8, image: &TreeImage| {
        let manifest = image.image.root;
        let repository = "registry/app".into();
        library.offer_for(
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
        // Indexing has begun.
        let has_begun = |state| matches!(state, State::Working(it) if it.stage == Stage::Index);
        while !has_begun(library.state(&slow.image.root)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        offer(2, &other);
        library.awaited_by(client(2), &other.image.root);
    }
    blobs.blobs.1.close(None);
    let state = settled(&library, &slow.image.root);
    assert_eq!(library.stat().cancelled, u64::from(interrupted));
    library.close();
    state
}

#[test]
fn an_image_has_a_bound_of_cpu_time_that_its_attempts_share() {
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
    // A whole attempt opens the layer twice, to index it and to pack it. An interrupted attempt opens it once more.
    let bound = long * 5 / 2;
    assert_eq!(index_within(bound, long, false), State::Ready);
    assert!(is_refused(index_within(bound, long, true)));
}

#[test]
fn a_folder_in_place_of_a_file_is_put_out_of_the_way() {
    let image = tree(6);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&image.image);
    let root = &image.image.root;
    for inside in ["plans", "index/tables", "index/layers"] {
        let folder = tempfile::tempdir().unwrap();
        let library = open(folder.path(), &blobs);
        assert_eq!(offer(&library, &image.image), State::Ready);
        library.close();
        drop(library);
        // What an index is made anew for.
        std::fs::remove_dir_all(folder.path().join("plans")).unwrap();
        if inside == "plans" {
            std::fs::create_dir(folder.path().join(inside)).unwrap();
        }
        let library = open(folder.path(), &blobs);
        if inside == "plans" {
            let _ = library.bundle(root, &[], false);
            settled(&library, root);
            offer(&library, &image.image);
        }
        for entry in std::fs::read_dir(folder.path().join(inside)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("something"), "else").unwrap();
        }
        library.close();
        drop(library);
        let library = open(folder.path(), &blobs);
        let mut asked = 0;
        let bundle = loop {
            match library.bundle(root, &[], false) {
                Ok(bundle) => break bundle,
                Err(error) => assert!(matches!(error, Error::Missing(_)), "{inside}: {error}"),
            }
            asked += 1;
            assert!(asked < 4, "{inside}: it is not made again");
            assert_eq!(offer(&library, &image.image), State::Ready, "{inside}");
        };
        let sent = received(&bytes(bundle.stream(None).unwrap()), &[]).2;
        assert!(!sent.is_empty(), "{inside}");
        library.close();
    }
}

#[test]
fn one_unusable_pack_and_the_folder_of_traces_do_not_stop_the_others() {
    let [first, second] = [6, 7].map(tree);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&first.image);
    blobs.put(&second.image);
    let folder = tempfile::tempdir().unwrap();
    let library = open(folder.path(), &blobs);
    assert_eq!(offer(&library, &first.image), State::Ready);
    library.close();
    drop(library);
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
    let library = open(folder.path(), &blobs);
    assert!(library.stat().packs > 0, "its bytes are on the disk");
    for image in [&second, &first] {
        let root = &image.image.root;
        let mut asked = 0;
        let bundle = loop {
            match library.bundle(root, &[], false) {
                Ok(bundle) => break bundle,
                Err(error) => assert!(matches!(error, Error::Missing(_)), "{error}"),
            }
            asked += 1;
            assert!(asked < 4, "it is not made again");
            assert_eq!(offer(&library, &image.image), State::Ready);
        };
        let sent = received(&bytes(bundle.stream(None).unwrap()), &[]).2;
        assert!(!sent.is_empty());
    }
    library.close();
}

/// Blobs in memory, which cannot be opened while file descriptors are used up.
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
fn a_layer_that_lacks_a_descriptor_is_not_absent() {
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
    let library = open();
    assert_eq!(offer(&library, &image.image), State::Ready);
    library.close();
    drop(library);
    std::fs::remove_dir_all(folder.path().join("packs")).unwrap();
    let library = open();
    let (content, expected) = image.contents.iter().find(|it| !it.1.is_empty()).unwrap();
    blobs.is_exhausted.store(true, Ordering::Relaxed);
    let mut stream = library.file(&image.image.root, content).unwrap().unwrap();
    let Err(failed) = stream.next_piece() else {
        panic!("no layer could be opened");
    };
    assert!(failed.is_exhausted(), "{failed}");
    // The lack passes, and the same layers are read.
    blobs.is_exhausted.store(false, Ordering::Relaxed);
    let stream = library.file(&image.image.root, content).unwrap().unwrap();
    assert_eq!(&bytes(stream), expected);
    library.close();
}

#[test]
fn single_files_outlive_a_damaged_index() {
    let image = tree(4);
    let blobs = Arc::<MemoryBlobs>::default();
    blobs.put(&image.image);
    let folder = tempfile::tempdir().unwrap();
    let library = open(folder.path(), &blobs);
    assert_eq!(offer(&library, &image.image), State::Ready);
    library.close();
    drop(library);
    std::fs::remove_dir_all(folder.path().join("packs")).unwrap();
    damage(&folder.path().join("index/layers"));
    let library = open(folder.path(), &blobs);
    let all = |content: &FileDigest| -> Option<Vec<u8>> {
        let mut stream = library.file(&image.image.root, content).ok()??;
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
        // One question to find the damage, one to find that the index is gone.
        let found = (0..3).find_map(|_| {
            let found = all(content);
            settled(&library, &image.image.root);
            found
        });
        assert!(found.as_ref() == Some(bytes), "{content}");
    }
    library.close();
}

#[test]
fn an_image_whose_table_does_not_fit_into_a_header_is_refused_unpacked() {
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
    let library = open(folder.path(), &blobs);
    blobs.put(&image);
    let State::Refused(why) = offer(&library, &image) else {
        panic!("it was not refused");
    };
    assert!(why.contains("TOC is too long"), "{why}");
    assert_eq!(library.stat().packs, 0);
    library.close();
}

#[test]
fn an_image_whose_layer_is_gone_is_forgotten_until_it_is_back() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let image = tree(7);
    blobs.put(&image.image);
    let layer = image.image.blobs.last().unwrap().digest;
    blobs.take(&layer);
    assert_eq!(offer(&library, &image.image), State::Unknown);
    blobs.put(&image.image);
    assert_eq!(offer(&library, &image.image), State::Ready);
    // What is packed outlives its layer.
    blobs.take(&layer);
    let bundle = library.bundle(&image.image.root, &[], false).unwrap();
    let (_, toc, contents) = received(&bytes(bundle.stream(None).unwrap()), &[]);
    assert!(u32::try_from(contents.len()).unwrap() <= toc.visible() && !contents.is_empty());
    library.close();
}

#[test]
fn a_prune_keeps_packs_of_images_whose_plans_were_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let library = open(folder.path(), &blobs);
    let [kept, gone] = [33, 34].map(tree);
    let mut packs = Vec::new();
    for image in [&kept, &gone] {
        blobs.put(&image.image);
        assert_eq!(offer(&library, &image.image), State::Ready);
        packs.push(library.stat().packs);
    }
    let room = library.stat().packs + library.stat().index;
    library.prune(room).unwrap();
    assert_eq!((library.stat().plans, library.stat().packs), (0, packs[1]));
    blobs.take(&gone.image.root);
    library.prune(u64::MAX).unwrap();
    let left = library.stat().packs;
    assert!(packs[0] <= left, "{left} of {packs:?}");
    blobs.take(&kept.image.root);
    library.prune(u64::MAX).unwrap();
    until(|| library.stat().packs == 0);
    library.close();
}

#[test]
fn a_prune_keeps_superseded_plans_of_images_that_are_here_and_no_others() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = staged_config(folder.path());
    config.resume_window = Duration::from_secs(3600);
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let of = |seed| images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(seed))])]);
    let [kept, gone, blocked] = [1, 2, 3].map(of);
    for image in [&kept, &gone, &blocked] {
        blobs.put(image);
    }
    // What can wait rests as long as this one waits.
    blobs.1.close(Some(blocked.root));
    for image in [&kept, &gone, &blocked] {
        library.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    }
    let started_images = [&kept, &gone].map(|image| {
        assert_eq!(settled(&library, &image.root), State::Ready);
        let bundle = library.bundle(&image.root, &[], false).unwrap();
        let sent = bytes(bundle.stream(None).unwrap());
        (image.root, bundle.etag().to_owned(), sent)
    });
    blobs.take(&blocked.root);
    blobs.1.close(None);
    until(|| library.stat().optimized == 2);
    let earlier = |(root, etag, _): &(Digest, String, Vec<u8>)| {
        library.superseded(root, &[], false, etag).unwrap()
    };
    for one in &started_images {
        let now = library.bundle(&one.0, &[], false).unwrap();
        assert_ne!(now.etag(), one.1);
        assert!(earlier(one).is_some());
    }
    blobs.take(&gone.root);
    library.prune(u64::MAX).unwrap();
    assert!(earlier(&started_images[1]).is_none(), "its image is gone");
    let again = earlier(&started_images[0]).expect("its image is here");
    assert!(bytes(again.stream(None).unwrap()) == started_images[0].2);
    library.close();
}

/// Blobs in memory, and how many prunes looked for one at the same time.
#[derive(Default)]
struct Crowd {
    blobs: MemoryBlobs,
    here: AtomicUsize,
    most: AtomicUsize,
}

const PRUNE: &str = "prune";

impl Blobs for Crowd {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        if std::thread::current().name() != Some(PRUNE) {
            return self.blobs.open(digest);
        }
        let here = self.here.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(here, Ordering::Relaxed);
        // Time for another one to come.
        std::thread::sleep(Duration::from_millis(5));
        let found = self.blobs.open(digest);
        self.here.fetch_sub(1, Ordering::Relaxed);
        found
    }
}

#[test]
fn a_prune_waits_for_the_one_before_it() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<Crowd>::default());
    let config = Config::new(folder.path(), 256 << 20, 64 << 20);
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let image = tree(37);
    blobs.blobs.put(&image.image);
    assert_eq!(offer(&library, &image.image), State::Ready);
    let prunes = [(); 4].map(|()| {
        let library = library.clone();
        let thread = std::thread::Builder::new().name(PRUNE.to_owned());
        thread.spawn(move || library.prune(u64::MAX)).unwrap()
    });
    for prune in prunes {
        prune.join().unwrap().unwrap();
    }
    assert_eq!(blobs.most.load(Ordering::Relaxed), 1);
    library.close();
}

#[test]
fn packs_that_nobody_needs_leave_when_the_indexing_ends() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let library = open(folder.path(), &blobs);
    let [gone, blocked] = [35, 36].map(tree);
    blobs.put(&gone.image);
    assert_eq!(offer(&library, &gone.image), State::Ready);
    let before = library.stat().packs;
    blobs.put(&blocked.image);
    let layer = blocked.image.blobs[1].digest;
    blobs.1.close(Some(layer));
    library.offer(Image {
        manifest: blocked.image.root,
        repository: "registry/blocked".into(),
    });
    until(|| match library.state(&blocked.image.root) {
        State::Working(progress) => progress.stage == Stage::Index,
        _ => false,
    });
    blobs.take(&gone.image.root);
    library.prune(u64::MAX).unwrap();
    assert_eq!(library.stat().packs, before, "not while images are packed");
    blobs.take(&layer);
    blobs.1.close(None);
    until(|| library.stat().packs == 0);
    library.close();
}

#[test]
fn images_are_indexed_while_a_prune_reads_plans() {
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open as open_file};
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let library = open(folder.path(), &blobs);
    let [gone, new] = [35, 36].map(tree);
    blobs.put(&gone.image);
    assert_eq!(offer(&library, &gone.image), State::Ready);
    // The indexing thread deletes unused packs at the end of a job. It is idle before prune begins.
    until(|| library.stat().jobs == 0);
    blobs.put(&new.image);
    // A plan whose read lasts until the writer closes the pipe.
    let pipe = folder.path().join("plans").join("0".repeat(64));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    blobs.take(&gone.image.root);
    let pruning = {
        let library = library.clone();
        std::thread::spawn(move || library.prune(u64::MAX))
    };
    let mut writer = None;
    until(|| {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        writer = open_file(&pipe, flags, Mode::empty()).ok();
        writer.is_some()
    });
    library.offer(Image {
        manifest: new.image.root,
        repository: "registry/new".into(),
    });
    let started = Instant::now();
    while library.state(&new.image.root) != State::Ready {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(20), "indexing waits for prune");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::fs::remove_file(&pipe).unwrap();
    drop(writer);
    pruning.join().unwrap().unwrap();
    // Packs that were written meanwhile stay.
    let bundle = library.bundle(&new.image.root, &[], false).unwrap();
    assert!(!bytes(bundle.stream(None).unwrap()).is_empty());
    library.close();
}

/// Makes a pipe, and waits until the server reads it. The read ends when the returned writer is dropped.
fn blocked_reader(pipe: &Path) -> rustix::fd::OwnedFd {
    use rustix::fs::{Mode, OFlags, open as open_file};
    let mut writer = None;
    until(|| {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        writer = open_file(pipe, flags, Mode::empty()).ok();
        writer.is_some()
    });
    writer.expect("a reader")
}

#[test]
fn images_are_indexed_while_maintenance_reads_superseded_plans() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    open(folder.path(), &blobs).close();
    let new = tree(37);
    blobs.put(&new.image);
    let pipe = folder.path().join("plans").join("0".repeat(64) + ".sent");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // The first job of the low-priority thread is the maintenance.
    let library = open(folder.path(), &blobs);
    let writer = blocked_reader(&pipe);
    library.offer(Image {
        manifest: new.image.root,
        repository: "registry/new".into(),
    });
    let started = Instant::now();
    while library.state(&new.image.root) != State::Ready {
        let waited = started.elapsed();
        assert!(
            waited < Duration::from_secs(20),
            "indexing waits for maintenance"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    std::fs::remove_file(&pipe).unwrap();
    drop(writer);
    library.close();
}

#[test]
fn an_unreadable_plan_keeps_the_packs_of_its_image() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let library = open_staged(folder.path(), &blobs);
    let (image, blocked) = staged(&blobs);
    offer_both(&library, (&image, &blocked));
    let packs = quick_packs(folder.path());
    assert!(packs > 0);
    let key = FileDigest::of(format!("bundle 1 {} true", image.root).as_bytes());
    let plan = folder.path().join("plans").join(key.hex());
    let aside = folder.path().join("aside");
    std::fs::rename(&plan, &aside).unwrap();
    // Opening it fails with ELOOP, as it could fail with EMFILE or EIO.
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
    std::thread::spawn({
        let blobs = blobs.clone();
        move || blobs.1.close(None)
    });
    library.close();
    drop(library);
    blobs.take(&blocked.root);
    let library = open_staged(folder.path(), &blobs);
    // The maintenance, and then the optimization, fail.
    until(|| library.stat().jobs == 0);
    assert_eq!(quick_packs(folder.path()), packs, "a plan may name them");
    let gone = tree(38);
    blobs.put(&gone.image);
    assert_eq!(offer(&library, &gone.image), State::Ready);
    until(|| library.stat().jobs == 0);
    let packs = quick_packs(folder.path());
    blobs.take(&gone.image.root);
    assert!(library.prune(u64::MAX).is_err(), "the plan is unreadable");
    assert_eq!(quick_packs(folder.path()), packs, "a plan may name them");
    library.close();
    drop(library);
    // Once the plan is readable again, the image is optimized.
    std::fs::remove_file(&plan).unwrap();
    std::fs::rename(&aside, &plan).unwrap();
    let library = open_staged(folder.path(), &blobs);
    until(|| library.stat().optimized == 1);
    library.close();
}

/// Puts a file that cannot be opened (ELOOP, as it could be EIO) in place of the plan of an image with layers.
fn make_plan_unreadable(folder: &Path, root: &Digest) {
    let key = FileDigest::of(format!("bundle 1 {root} true").as_bytes());
    let plan = folder.join("plans").join(key.hex());
    std::fs::remove_file(&plan).unwrap();
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
}

#[test]
fn an_unreadable_plan_is_made_again_when_its_image_is_indexed() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let image = tree(41);
    blobs.put(&image.image);
    assert_eq!(offer(&library, &image.image), State::Ready);
    library.close();
    drop(library);
    make_plan_unreadable(folder.path(), &image.image.root);
    // Without its directory, the server indexes the image again.
    std::fs::remove_dir_all(folder.path().join("directory")).unwrap();
    let library = open(folder.path(), &blobs);
    assert_eq!(offer(&library, &image.image), State::Ready);
    let bundle = library.bundle(&image.image.root, &[], true).unwrap();
    assert!(!bytes(bundle.stream(None).unwrap()).is_empty());
    library.close();
}

#[test]
fn an_unreadable_plan_stops_no_prune_to_a_size() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let library = open(folder.path(), &blobs);
    let [stays, gone] = [42, 43].map(tree);
    for image in [&stays, &gone] {
        blobs.put(&image.image);
        assert_eq!(offer(&library, &image.image), State::Ready);
    }
    until(|| library.stat().jobs == 0);
    make_plan_unreadable(folder.path(), &stays.image.root);
    blobs.take(&gone.image.root);
    let packs = library.stat().packs;
    assert!(packs > 0);
    assert!(library.prune(0).is_err(), "a plan is unreadable");
    assert_eq!(library.stat().packs, 0, "files go all the same");
    library.close();
}

/// A tar of some files of text.
#[test]
fn a_prune_frees_what_belongs_to_images_that_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let library = open(folder.path(), &blobs);
    let [gone, kept] = [31, 32].map(tree);
    for (image, repository) in [(&gone, "registry/gone"), (&kept, "registry/kept")] {
        blobs.put(&image.image);
        library.offer(Image {
            manifest: image.image.root,
            repository: repository.into(),
        });
        assert_eq!(settled(&library, &image.image.root), State::Ready);
        library.bundle(&image.image.root, &[], false).unwrap();
    }
    let taken = || {
        let stat = library.stat();
        stat.packs + stat.plans + stat.index
    };
    let before = taken();
    assert_eq!(library.prune(u64::MAX).unwrap(), before, "all is in use");
    blobs.take(&gone.image.root);
    let left = library.prune(u64::MAX).unwrap();
    assert_eq!(left, taken());
    assert!(left < before, "{left} of {before}");
    assert_eq!(library.state(&gone.image.root), State::Unknown);
    assert_eq!(library.state(&kept.image.root), State::Ready);
    let toc = |image: &TreeImage| {
        let name = image.image.root.to_string().replace(':', "-");
        folder.path().join("index/tables").join(name).exists()
    };
    assert!(!toc(&gone) && toc(&kept));
    library.bundle(&kept.image.root, &[], false).unwrap();

    // Prunes all but the indexes of cached images. A later request rebuilds the rest.
    let least = library.prune(0).unwrap();
    let stat = library.stat();
    assert_eq!((stat.packs, stat.plans, stat.index), (0, 0, least));
    blobs.0.lock().unwrap().clear();
    assert_eq!(library.prune(0).unwrap(), 0);
    blobs.put(&kept.image);
    assert_eq!(offer(&library, &kept.image), State::Ready);
    library.bundle(&kept.image.root, &[], false).unwrap();
    library.close();
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
fn a_new_version_comes_as_patches_made_ahead_of_time() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let (lib, other) = (text(1), text(2));
    let changed = format!("{}changed{}", &lib[..50_000], &lib[50_000..]);
    let [old, new] = [&lib, &changed].map(|lib| {
        let tar = tar(&[("usr/lib/a.so", lib), ("etc/other", &other)]);
        images::Image::of_tars("amd64", &[tar])
    });
    let have = RequestBase {
        manifest: old.root,
        is_known: true,
        has_layers: false,
    };
    for image in [&old, &new] {
        blobs.put(image);
        assert_eq!(offer(&library, image), State::Ready);
    }
    let started = Instant::now();
    while library.stat().pairs == 0 {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let fresh = library.bundle(&old.root, &[], false).unwrap();
    let (_, toc, contents) = received(&bytes(fresh.stream(None).unwrap()), &[]);
    let planned = library.stat().planned;
    let bundle = library.bundle(&new.root, &[have], false).unwrap();
    assert_eq!(library.stat().planned, planned + 1);
    let sent = bytes(bundle.stream(None).unwrap());
    let (header, new_table, came) = applied(&sent, &[toc], &contents);
    let codings: Vec<_> = header.frames.codings().collect();
    assert_eq!(codings, [Coding::Patch]);
    assert_eq!(came.len(), 1, "what did not change does not come");
    assert_eq!(
        came[&FileDigest::of(changed.as_bytes())],
        changed.as_bytes()
    );
    assert_eq!(new_table.visible(), 2);
    assert!(sent.len() < lib.len() / 20, "{}", sent.len());
    library.close();
}

/// A library that should rest, and why.
fn open_resting(folder: &Path, blobs: &Arc<MemoryBlobs>, rest: &BackgroundWork) -> BundleServer {
    let mut config = Config::new(folder, 256 << 20, 64 << 20);
    (
        config.cpu_percent,
        config.optimized_level,
        config.background,
    ) = (100, 3, rest.clone());
    BundleServer::open(config, blobs.clone()).unwrap()
}

#[test]
fn an_image_gives_back_what_it_holds_when_memory_is_short_and_begins_again() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let rest = BackgroundWork::default();
    let library = open_resting(folder.path(), &blobs, &rest);
    let image = images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(1))])]);
    blobs.put(&image);
    let layer = image.blobs.iter().max_by_key(|blob| blob.bytes.len());
    blobs.1.close(layer.map(|blob| blob.digest));
    let before = blobs.2.load(Ordering::Relaxed);
    library.offer(Image {
        manifest: image.root,
        repository: "registry/app".into(),
    });
    until(|| blobs.2.load(Ordering::Relaxed) > before);
    rest.set_memory_short(true);
    rest.set_paused(true);
    blobs.1.close(None);
    until(|| library.stat().cancelled > 0);
    until(|| rest.paused_workers() == 2);
    let waits = library.state(&image.root);
    assert!(
        matches!(waits, State::Working(progress) if progress.stage == Stage::Wait),
        "{waits:?}"
    );
    assert_eq!(library.stat().jobs, 1, "it waits");
    rest.set_paused(false);
    assert_eq!(settled(&library, &image.root), State::Ready);
    library.close();
}

#[test]
fn what_was_evicted_is_forgotten_while_all_else_rests() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let rest = BackgroundWork::default();
    let image = images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(1))])]);
    blobs.put(&image);
    let library = open_resting(folder.path(), &blobs, &rest);
    assert_eq!(offer(&library, &image), State::Ready);
    library.close();
    drop(library);
    blobs.take(&image.root);
    rest.set_paused(true);
    let library = open_resting(folder.path(), &blobs, &rest);
    // One that waits, and rests, is not in the way.
    let other = images::Image::of_tars("amd64", &[tar(&[("usr/lib/b.so", &text(2))])]);
    blobs.put(&other);
    library.offer(Image {
        manifest: other.root,
        repository: "registry/app".into(),
    });
    until(|| library.state(&image.root) == State::Unknown);
    assert!(matches!(library.state(&other.root), State::Working(_)));
    library.close();
}

/// What may be written, and what was.
#[derive(Debug, Default)]
struct Flash {
    has_room: AtomicBool,
    has_room_for_awaited: AtomicBool,
    asked: AtomicUsize,
    written: AtomicU64,
}

impl WriteBudget for Flash {
    fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    fn may_write(&self, is_awaited: bool) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.has_room.load(Ordering::Relaxed)
            || (is_awaited && self.has_room_for_awaited.load(Ordering::Relaxed))
    }
}

#[test]
fn when_enough_was_written_what_can_wait_does_and_all_is_counted() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let flash = Arc::<Flash>::default();
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (
        config.cpu_percent,
        config.optimized_level,
        config.write_budget,
    ) = (100, 3, flash.clone());
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let [one, two, three] = [1, 2, 3]
        .map(|seed| images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text(seed))])]));
    let add = |image: &images::Image| {
        blobs.put(image);
        library.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    };
    add(&one);
    until(|| flash.asked.load(Ordering::Relaxed) > 1);
    let refused = library.awaited(&one.root);
    assert!(
        matches!(&refused, State::Refused(why) if why.contains("cache.daily_write_budget")),
        "{refused:?}"
    );
    assert!(matches!(library.state(&one.root), State::Working(_)));
    assert_eq!(blobs.2.load(Ordering::Relaxed), 0, "nothing is read");
    // What somebody waits for has a little more.
    flash.has_room_for_awaited.store(true, Ordering::Relaxed);
    assert!(matches!(library.awaited(&one.root), State::Working(_)));
    add(&two);
    assert_eq!(settled(&library, &one.root), State::Ready);
    assert!(matches!(library.state(&two.root), State::Working(_)));
    // Another day.
    flash.has_room.store(true, Ordering::Relaxed);
    add(&three);
    assert_eq!(settled(&library, &two.root), State::Ready);
    assert_eq!(settled(&library, &three.root), State::Ready);
    until(|| library.stat().jobs == 0);
    library.close();
    let files: u64 = ["packs", "plans", "index/layers", "index/tables"]
        .map(|name| {
            let entries = std::fs::read_dir(folder.path().join(name)).unwrap();
            let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap());
            sizes.map(|meta| meta.len() / meta.nlink()).sum::<u64>()
        })
        .iter()
        .sum();
    let written = flash.written.load(Ordering::Relaxed);
    assert!(written >= files, "{written} of {files}");
}

/// With packs made in two stages.
fn staged_config(folder: &Path) -> Config {
    let mut config = Config::new(folder, 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    (config.fast_level, config.optimized_level) = (1, 12);
    config
}

fn open_staged(folder: &Path, blobs: &Arc<MemoryBlobs>) -> BundleServer {
    let mut config = staged_config(folder);
    // Nobody goes on with what was made of quick packs.
    config.resume_window = Duration::ZERO;
    BundleServer::open(config, blobs.clone()).unwrap()
}

fn until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Quick packs on disk.
fn quick_packs(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder.join("packs")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.ends_with(".pack") && name.as_bytes()[0] >= b'8')
        .count()
}

/// Two layers of text, and an image that is waited for at its first blob: what can wait rests as long as that.
fn staged(blobs: &MemoryBlobs) -> (images::Image, images::Image) {
    let (one, two) = (text(1), text(2));
    let tars = [tar(&[("usr/lib/a.so", &one)]), tar(&[("etc/other", &two)])];
    let image = images::Image::of_tars("amd64", &tars);
    let blocked = images::Image::of_tars("arm64", &tars);
    blobs.put(&image);
    blobs.put(&blocked);
    blobs.1.close(Some(blocked.root));
    (image, blocked)
}

fn offer_both(library: &BundleServer, (image, blocked): (&images::Image, &images::Image)) {
    for image in [image, blocked] {
        library.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
    }
    assert_eq!(settled(library, &image.root), State::Ready);
}

#[test]
fn better_frames_replace_quick_ones() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open_staged(folder.path(), &blobs);
    let (image, blocked) = staged(&blobs);
    offer_both(&library, (&image, &blocked));
    assert_eq!(
        (library.stat().fast_layers, library.stat().optimized),
        (2, 0)
    );
    assert!(quick_packs(folder.path()) > 0);
    let all = |library: &BundleServer| {
        [false, true].map(|layers| {
            let bundle = library.bundle(&image.root, &[], layers).unwrap();
            let sent = bytes(bundle.stream(None).unwrap());
            (bundle, sent)
        })
    };
    let fast = all(&library);
    // A plan that was made from the fresh one names its packs too.
    let stranger = RequestBase {
        manifest: FileDigest::of(b"stranger").into(),
        is_known: false,
        has_layers: false,
    };
    let derived = library.bundle(&image.root, &[stranger], false).unwrap();
    drop(derived);
    // No layer is needed any more.
    for layer in &library.blobs(&image.root).unwrap()[1..] {
        blobs.take(layer);
    }
    blobs.take(&blocked.root);
    blobs.1.close(None);
    until(|| library.stat().optimized == 1);
    assert_eq!(library.stat().fast_layers, 0);
    let better = all(&library);
    for ((old, before), (new, after)) in fast.iter().zip(&better) {
        assert!(old.etag() != new.etag() && after.len() < before.len());
        let (old_header, _, old_contents) = received(before, &[]);
        let (header, _, contents) = received(after, &[]);
        assert!(contents == old_contents && header.manifest == old_header.manifest);
        // Whoever began with the old one ends with it.
        assert!(bytes(old.stream(None).unwrap()) == *before);
    }
    assert!(quick_packs(folder.path()) > 0, "a reader holds them");
    drop(fast);
    library.close();
    drop(library);
    drop(better);
    let library = open_staged(folder.path(), &blobs);
    until(|| quick_packs(folder.path()) == 0);
    let bundle = library.bundle(&image.root, &[stranger], false).unwrap();
    received(&bytes(bundle.stream(None).unwrap()), &[]);
    library.close();
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
fn a_restart_knows_what_waits_for_better_frames() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let (image, blocked) = staged(&blobs);
    let library = open_staged(folder.path(), &blobs);
    offer_both(&library, (&image, &blocked));
    let sent = |library: &BundleServer| {
        let bundle = library.bundle(&image.root, &[], true).unwrap();
        bytes(bundle.stream(None).unwrap())
    };
    let fast = sent(&library);
    // As a kill leaves it at this instant.
    let killed = tempfile::tempdir().unwrap();
    copy(folder.path(), killed.path());
    assert_eq!(library.stat().optimized, 0);
    blobs.take(&blocked.root);
    blobs.1.close(None);
    library.close();
    let folder = killed;
    let library = open_staged(folder.path(), &blobs);
    // The directory brings its notes to the disk twice a second: what the copy lacks of them is found again.
    until(|| library.state(&image.root) == State::Ready);
    until(|| library.stat().optimized == 1);
    let better = sent(&library);
    assert!(better.len() < fast.len());
    assert!(received(&better, &[]).2 == received(&fast, &[]).2);
    until(|| quick_packs(folder.path()) == 0);
    library.close();
}

/// Bytes of plans on disk, and how many there are.
fn plans(folder: &Path) -> (u64, usize) {
    let plans = std::fs::read_dir(folder.join("plans")).unwrap();
    let plans = plans.map(|plan| plan.unwrap().metadata());
    // One that leaves meanwhile takes nothing; one that was handed out has two names.
    let sizes: BTreeMap<_, _> = plans
        .filter_map(|meta| meta.ok().map(|meta| (meta.ino(), meta.len())))
        .collect();
    (sizes.values().sum(), sizes.len())
}

#[test]
fn plans_keep_to_their_bytes_while_they_are_made() {
    const MOST: u64 = 200_000;
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 256 << 20, MOST);
    (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let (old, new) = (tree(1), tree(2));
    for image in [&old, &new] {
        blobs.put(&image.image);
        assert_eq!(offer(&library, &image.image), State::Ready);
    }
    let (_, before) = plans(folder.path());
    // Images that nobody knows make no other plan.
    let mut etags = Vec::new();
    for nth in 0..20_u32 {
        let stranger = RequestBase {
            manifest: FileDigest::of(&nth.to_le_bytes()).into(),
            is_known: false,
            has_layers: false,
        };
        let bundle = library.bundle(&new.image.root, &[stranger], false).unwrap();
        etags.push(bundle.etag().to_owned());
    }
    etags.dedup();
    assert_eq!(etags.len(), 1);
    assert_eq!(plans(folder.path()).1, before);
    // The same image as often as somebody likes to say makes as many.
    let mut sum = 0;
    for nth in 1..=40 {
        let base_images = vec![have(&old); nth];
        match library.bundle(&new.image.root, &base_images, false) {
            Ok(bundle) => sum += bytes(bundle.stream(None).unwrap()).len() as u64,
            // The plan that it is made of has left, too.
            Err(_) => assert_eq!(offer(&library, &new.image), State::Ready),
        }
        // The pair is prepared meanwhile: what comes of it is there for a moment before others leave.
        until(|| plans(folder.path()).0 <= MOST);
    }
    assert!(sum > 2 * MOST, "{sum} is no test of it");
    library.close();
}

#[test]
fn a_bundle_for_many_images_gets_better_when_one_pair_was_prepared() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    // No pair is prepared before somebody asks.
    (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let images = [tree(1), tree(2), tree(3)];
    for image in &images {
        blobs.put(&image.image);
        assert_eq!(offer(&library, &image.image), State::Ready);
    }
    let [one, two, new] = &images;
    let base_images = [have(one), have(two)];
    let ask = || {
        library
            .bundle(&new.image.root, &base_images, false)
            .unwrap()
    };
    ask();
    let started = Instant::now();
    while library.stat().pairs == 0 {
        let is_soon = started.elapsed() < Duration::from_secs(60);
        assert!(is_soon, "it takes too long");
        std::thread::sleep(Duration::from_millis(2));
    }
    let planned = library.stat().planned;
    let better = ask();
    assert_eq!(library.stat().planned, planned + 1);
    assert_eq!(ask().etag(), better.etag());
    assert_eq!(library.stat().planned, planned + 1);
    library.close();
}

/// What this process has in memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn many_files_that_nobody_takes_share_their_memory() {
    const FILES: usize = 100;
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    // A frame of 4 MiB each, as it decodes.
    let large = "is decoded to its frame".repeat(350_000);
    let image = images::Image::of_tars("amd64", &[tar(&[("large", &large)])]);
    blobs.put(&image);
    assert_eq!(offer(&library, &image), State::Ready);
    let content = FileDigest::of(large.as_bytes());
    let before = (blobs.2.load(Ordering::Relaxed), resident());
    let mut streams = Vec::new();
    for _ in 0..FILES {
        let mut stream = library.file(&image.root, &content).unwrap().unwrap();
        assert!(matches!(stream.next_piece(), Ok(Some(Piece::Bytes(_)))));
        streams.push(stream);
    }
    let after = (blobs.2.load(Ordering::Relaxed), resident());
    // The tidying looks at each of them once.
    assert!(
        after.0 < before.0 + FILES / 2,
        "what is packed needs no layer"
    );
    // Other tests run beside this one.
    let grown = after.1.saturating_sub(before.1);
    assert!(grown < 200 << 20, "{grown} bytes for {FILES} files");
    let all = bytes_after(streams.pop().unwrap());
    assert!(large.as_bytes().ends_with(&all) && !all.is_empty());
    library.close();
}

/// What is left of a stream.
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

/// Text of `len` bytes, in one layer.
fn large(len: usize) -> images::Image {
    let words = images::random_bytes(9, len / 2);
    let text: String = words.iter().map(|byte| format!("{byte:02x}")).collect();
    images::Image::of_tars("amd64", &[tar(&[("usr/lib/a.so", &text)])])
}

#[test]
fn an_image_that_packs_cannot_hold_is_refused_until_they_can() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let image = large(1 << 20);
    blobs.put(&image);
    let library = open_small(folder.path(), &blobs, 256 << 10);
    let State::Refused(why) = offer(&library, &image) else {
        panic!("it fits");
    };
    assert!(why.contains("bundle.size"), "{why}");
    // Asking again does not begin anew.
    assert_eq!(offer(&library, &image), State::Refused(why));
    library.close();
    drop(library);
    let library = open_small(folder.path(), &blobs, 64 << 20);
    assert_eq!(offer(&library, &image), State::Ready);
    library.close();
}

#[test]
fn an_image_that_fits_once_stays_as_it_was_packed_at_first() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let image = large(1 << 20);
    blobs.put(&image);
    let library = open_small(folder.path(), &blobs, 768 << 10);
    assert_eq!(offer(&library, &image), State::Ready);
    // What can wait is done one after the other: behind the image, the second is what came after it.
    let other = images::Image::of_tars("amd64", &[tar(&[("etc/other", "text ")])]);
    blobs.put(&other);
    assert_eq!(offer(&library, &other), State::Ready);
    until(|| library.stat().fast_layers == 1 && library.stat().optimized <= 1);
    let bundle = library.bundle(&image.root, &[], true).unwrap();
    received(&bytes(bundle.stream(None).unwrap()), &[]);
    assert_eq!(library.state(&image.root), State::Ready);
    library.close();
    drop((bundle, library));
    // With more room it is packed well.
    let library = open_small(folder.path(), &blobs, 64 << 20);
    until(|| library.stat().optimized >= 1 && library.stat().fast_layers == 0);
    library.close();
}

/// Applies a bundle to a store as a worker does; the codings of its frames.
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
        // What comes next builds upon it.
        ApplyOutcome::Complete(whole) => drop(whole.recorded().unwrap()),
        outcome @ ApplyOutcome::Missing(_) => panic!("{outcome:?}"),
    }
    codings
}

#[test]
fn where_there_is_no_time_for_patches_the_worker_copies_chunks() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 512 << 20, 64 << 20);
    (
        config.cpu_percent,
        config.optimized_level,
        config.max_pairs,
        config.fast_patch_bytes,
    ) = (100, 1, 0, 0);
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    // A large file; one that is packed with others; small ones of which one changes.
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
            ("a/large".to_owned(), large),
            ("a/packed".to_owned(), packed),
        ];
        files.extend(
            (0..)
                .zip(small)
                .map(|(nth, bytes)| (format!("b/{nth:02}"), bytes)),
        );
        let mut tar = tar::Builder::new(Vec::new());
        for (path, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, &bytes[..]).unwrap();
        }
        images::Image::of_tars("amd64", &[tar.into_inner().unwrap()])
    });
    for image in [&old, &new] {
        blobs.put(image);
        assert_eq!(offer(&library, image), State::Ready);
    }
    let worker = tempfile::tempdir().unwrap();
    let store = Store::open(worker.path(), &[]).unwrap();
    let fresh = library.bundle(&old.root, &[], false).unwrap();
    pull(&store, &bytes(fresh.stream(None).unwrap()));
    let have = RequestBase {
        manifest: old.root,
        is_known: true,
        has_layers: false,
    };
    let bundle = library.bundle(&new.root, &[have], false).unwrap();
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
    library.close();
}

#[test]
fn a_trace_orders_the_frames_of_its_own_image() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let files: Vec<_> = (0..8_u64)
        .map(|nth| (format!("file-{nth}"), text(nth).repeat(20)))
        .collect();
    let named: Vec<_> = files
        .iter()
        .map(|(name, text)| (&**name, &**text))
        .collect();
    let image = images::Image::of_tars("amd64", &[tar(&named)]);
    blobs.put(&image);
    assert_eq!(offer(&library, &image), State::Ready);
    let ask = || library.bundle(&image.root, &[], true).unwrap();
    // The content that comes first.
    let first = |sent: &[u8]| {
        let (header, toc, _) = received(sent, &[]);
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
        library
            .trace(client(1), &image.root, std::slice::from_ref(name))
            .unwrap();
        until(|| ask().etag() != before.etag());
    }
    let after = bytes(ask().stream(None).unwrap());
    assert_eq!(first(&after), Some(FileDigest::of(text.as_bytes())));
    assert!(received(&after, &[]).2 == received(&sent, &[]).2);
    // Whoever began with the other goes on with it, over another connection and after a restart too.
    assert!(bytes(before.stream(None).unwrap()) == sent);
    let etag = before.etag().to_owned();
    drop(before);
    library.close();
    drop(library);
    let library = open(folder.path(), &blobs);
    let earlier = |layers| library.superseded(&image.root, &[], layers, &etag).unwrap();
    let again = earlier(true).unwrap();
    assert_eq!(again.etag(), etag);
    assert!(bytes(again.stream(None).unwrap()) == sent);
    assert!(earlier(false).is_none(), "of another question");
    library.close();
    // Nobody went on with it for too long, when the library looked.
    drop((again, library));
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    config.resume_window = Duration::ZERO;
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    until(|| matches!(library.superseded(&image.root, &[], true, &etag), Ok(None)));
    library.close();
}

#[test]
fn a_trace_tells_which_bytes_of_which_layers_a_start_reads() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let files: Vec<_> = (0..3_u64).map(text).collect();
    let lower = tar(&[("a", &files[0]), ("b", &files[1])]);
    let image = images::Image::of_tars(
        "amd64",
        &[lower, tar(&[("c", &files[2]), ("again", &files[1])])],
    );
    blobs.put(&image);
    assert_eq!(offer(&library, &image), State::Ready);
    assert_eq!(
        (
            library.traced_images(),
            library.hot_ranges(&image.root).unwrap()
        ),
        (vec![], vec![])
    );
    let trace = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        library.trace(client(1), &image.root, &names).unwrap()
    };
    let noted = |matched, clients, is_new| RecordedTrace {
        matched,
        clients,
        is_new,
    };
    let layers = library.blobs(&image.root).unwrap();
    let layers = &layers[1..];
    let hot_ranges = || library.hot_ranges(&image.root).unwrap();
    assert_eq!(trace(&["nowhere"]), noted(0, 0, false));
    assert_eq!(library.traced_images(), []);
    assert_eq!(trace(&["a", "nowhere", "a"]), noted(1, 1, true));
    assert_eq!(trace(&["a"]), noted(1, 1, false), "that was known");
    assert_eq!(
        trace(&["nowhere"]),
        noted(0, 1, false),
        "it replaces nothing"
    );
    assert_eq!(library.traced_images(), [image.root]);
    assert_eq!(
        hot_ranges().iter().map(|it| it.blob).collect::<Vec<_>>(),
        layers[..1]
    );
    // Both layers have it: the upper one is mounted above.
    assert!(trace(&["b"]).is_new);
    assert_eq!(
        hot_ranges().iter().map(|it| it.blob).collect::<Vec<_>>(),
        layers[1..]
    );
    assert!(trace(&["c", "a"]).is_new);
    assert_eq!(hot_ranges().len(), 2);
    // Another client adds its order, and replaces no other client's.
    let names = ["c", "again"].map(str::to_owned);
    let added = library.trace(client(2), &image.root, &names).unwrap();
    assert_eq!(added, noted(2, 2, true));
    assert_eq!(
        library.start_order(&image.root).unwrap().files,
        ["c", "a", "again"]
    );
    // A layer that is gone is left out.
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
    library.close();
    assert!(matches!(
        library.hot_ranges(&image.root),
        Err(Error::Stopped)
    ));
}

#[test]
fn traces_without_end_take_no_more_room() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let library = open(folder.path(), &blobs);
    let image = images::Image::of_tars("amd64", &[tar(&[("a", "x"), ("b", "y")])]);
    blobs.put(&image);
    assert_eq!(offer(&library, &image), State::Ready);
    let most = 2 << 20;
    for nth in 0..16 {
        let mut files: Vec<_> = (0..500)
            .map(|line| format!("{nth}/{line}/{}", "x".repeat(1000)))
            .collect();
        // Two orders that are worth keeping, by turns.
        let known = if nth % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
        files.extend(known.map(str::to_owned));
        library.trace(client(1), &image.root, &files).unwrap();
    }
    let used = bytes_below(folder.path());
    assert!(used < most, "{used} bytes of an image of two files");
    library.close();
}

fn bytes_below(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let bytes = entries.map(|entry| match entry.file_type() {
        Ok(it) if it.is_dir() => bytes_below(&entry.path()),
        // It may be gone by now.
        _ => entry.metadata().map_or(0, |meta| meta.len()),
    });
    bytes.sum()
}

#[test]
fn plans_of_different_questions_do_not_wait_for_each_other() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
    let library = BundleServer::open(config, blobs.clone()).unwrap();
    let images = [tree(1), tree(2), tree(3)];
    for image in &images {
        blobs.put(&image.image);
        assert_eq!(offer(&library, &image.image), State::Ready);
    }
    let [old, slow, other] = &images;
    let (say, done) = std::sync::mpsc::channel();
    let planned = library.stat().planned;
    std::thread::scope(|scope| {
        let ask = |image: &TreeImage| {
            let (library, say) = (library.clone(), say.clone());
            let (want, base_images) = (image.image.root, [have(old)]);
            scope.spawn(move || {
                let bundle = library.bundle(&want, &base_images, false).unwrap();
                say.send((want, bundle.etag().to_owned())).unwrap();
            });
        };
        // Whoever plans it waits for its manifest.
        blobs.1.close(Some(slow.image.root));
        ask(slow);
        until(|| library.stat().planned > planned);
        ask(slow);
        ask(other);
        let first = done.recv_timeout(Duration::from_secs(30));
        blobs.1.close(None);
        assert_eq!(first.unwrap().0, other.image.root);
        let (one, two) = (done.recv().unwrap(), done.recv().unwrap());
        assert_eq!(one, two);
    });
    assert_eq!(
        library.stat().planned,
        planned + 2,
        "the same question is planned once"
    );
    library.close();
}

/// Bytes of all files that one of these and not the other has, each compressed as fast as answers are.
fn whole_files(old: &[(String, Vec<u8>)], new: &[(String, Vec<u8>)]) -> u64 {
    let is_new = |bytes: &&Vec<u8>| !old.iter().any(|(_, had)| had == *bytes);
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
fn no_update_takes_more_than_its_changed_files() {
    for seed in 0..6_u64 {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::<MemoryBlobs>::default());
        let mut config = Config::new(folder.path(), 512 << 20, 64 << 20);
        (config.cpu_percent, config.optimized_level, config.max_pairs) = (100, 3, 0);
        // No time for patches, and none to take frames apart.
        (config.fast_patch_bytes, config.recompress_budget) = (0, 0);
        let library = BundleServer::open(config, blobs.clone()).unwrap();
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
        let [was, is] = [&old, &new].map(|files| {
            let mut tar = tar::Builder::new(Vec::new());
            for (path, bytes) in files {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                tar.append_data(&mut header, path, &bytes[..]).unwrap();
            }
            images::Image::of_tars("amd64", &[tar.into_inner().unwrap()])
        });
        for image in [&was, &is] {
            blobs.put(image);
            assert_eq!(offer(&library, image), State::Ready);
        }
        let have = RequestBase {
            manifest: was.root,
            is_known: true,
            has_layers: false,
        };
        let bundle = library.bundle(&is.root, &[have], false).unwrap();
        let records = bytes(bundle.stream(Some((0, bundle.frames()))).unwrap());
        let most = whole_files(&old, &new) * 102 / 100;
        assert!(
            records.len() as u64 <= most,
            "{seed}: {} of {most}",
            records.len()
        );
        library.close();
    }
}
