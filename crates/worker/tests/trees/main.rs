//! Tests of exports of images into folders. Random images are indexed, merged and exported, and the
//! files on the disk are compared with the expected tree. Also tests hard links into a store,
//! existing files in the target, and errors.
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

mod compare;

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

use compare::{LinkCount, compare_tree};
use pierhead_testkit::images::{Image, TreeImage, TreeOptions, digest_of};
use pierhead_testkit::source::{MemoryBlob, MemorySource};
use pierhead_toc::image_toc::{LayerEntries, Node};
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing, Pace, Request};
use pierhead_toc::{Entry, FileDigest, ImageToc, Kind, Time};
use pierhead_worker::Error;
use pierhead_worker::export::rootfs::{
    self, ContentSource, Options, ReuseMode, StoreFiles, Summary, rootfs,
};

fn toc(image: &TreeImage) -> ImageToc {
    let layers = layers(image);
    ImageToc::build(&layers.iter().collect::<Vec<_>>()).expect("built")
}

/// Indexes the layers of an image. The returned indexes remain usable after their folder is
/// deleted.
fn layers(image: &TreeImage) -> Vec<LayerIndex> {
    let folder = tempfile::tempdir().expect("a folder");
    (0..)
        .zip(&image.tars)
        .map(|(nth, tar): (u32, _)| {
            let request = Request {
                media_type: "application/vnd.oci.image.layer.v1.tar",
                diff_id: &digest_of(tar),
                limits: Limits::default(),
            };
            let out = folder.path().join(nth.to_string());
            layer::index(&MemoryBlob(tar.clone()), &request, &mut NoPacing, &out).expect("indexed")
        })
        .collect()
}

fn entries(toc: &ImageToc) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut rows = toc.rows();
    while let Some(row) = rows.next().expect("a valid TOC") {
        let linked = match row.node {
            Node::HardLink(to) => entries[to as usize].path.clone(),
            _ => Vec::new(),
        };
        entries.push(row.to_entry(&toc.contents(), &linked).expect("contents"));
    }
    entries
}

fn source(image: &TreeImage) -> MemorySource {
    let mut source = MemorySource::default();
    for bytes in image.contents.values() {
        source.add(bytes.clone());
    }
    source
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_random_image_merges_to_the_expected_tree() {
    for seed in 0..30 {
        let options = TreeOptions {
            layers: 1 + u32::try_from(seed % 5).expect("small"),
            parents: seed % 2 == 0,
            ..TreeOptions::default()
        };
        let image = Image::tree(seed, &options);
        let toc = toc(&image);
        for (found, expected) in entries(&toc).iter().zip(&image.tree) {
            assert_eq!(found, expected, "seed {seed}");
        }
        assert_eq!(toc.entries() as usize, image.tree.len());
        let parsed = ImageToc::parse(toc.bytes().to_vec()).expect("canonical");
        assert_eq!(parsed.bytes(), toc.bytes());
    }
}

#[test]
fn an_exported_random_image_has_the_expected_files() {
    for seed in 0..8 {
        let options = TreeOptions {
            privileged: is_root(),
            large: seed == 0,
            ..TreeOptions::default()
        };
        let image = Image::tree(seed, &options);
        let (toc, source) = (toc(&image), source(&image));
        let folder = tempfile::tempdir().expect("a folder");
        let summary = export(
            &toc,
            &source,
            None,
            folder.path(),
            &with(ReuseMode::Clone, 2),
        );
        let summary = summary.expect("exported");
        assert_eq!(summary.entries, u64::from(toc.entries()));
        assert!(summary.complete() || !is_root(), "{summary:?}");
        compare_tree(
            folder.path(),
            &image.tree,
            &image.contents,
            is_root(),
            LinkCount::OfTree,
        );
    }
}

fn with(reuse: ReuseMode, threads: usize) -> Options {
    Options {
        reuse,
        threads: NonZeroUsize::new(threads).expect("some"),
        ..Options::default()
    }
}

fn export(
    toc: &ImageToc,
    source: &MemorySource,
    files: Option<&dyn StoreFiles>,
    into: &Path,
    options: &Options,
) -> Result<Summary, Error> {
    rootfs(toc, ContentSource { source, files }, into, options, &|_| {})
}

/// A store with one file for each file content.
struct Store(tempfile::TempDir);

impl Store {
    fn of(image: &TreeImage) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (content, bytes) in &image.contents {
            std::fs::write(folder.path().join(content.hex()), bytes).expect("written");
        }
        Self(folder)
    }
}

impl StoreFiles for Store {
    fn file(&self, content: &FileDigest) -> io::Result<Option<std::fs::File>> {
        std::fs::File::open(self.0.path().join(content.hex())).map(Some)
    }

    fn is_current(&self, content: &FileDigest, file: &std::fs::File) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt as _;
        let named = std::fs::metadata(self.0.path().join(content.hex()))?;
        Ok(named.ino() == file.metadata()?.ino())
    }

    fn record_link(&self, _: &FileDigest, _: &std::fs::File, _: Time) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn linked_and_copied_files_have_the_attributes_of_their_own_tree() {
    let options = TreeOptions {
        privileged: is_root(),
        ..TreeOptions::default()
    };
    let image = Image::tree(21, &options);
    let (toc, store) = (toc(&image), Store::of(&image));
    // The second version of the image: most of its files have changed attributes, and the remaining
    // files occur twice.
    let mut changed = entries(&toc);
    for (nth, entry) in (0_u32..).zip(&mut changed) {
        if matches!(entry.kind, Kind::File { .. }) {
            match nth % 4 {
                0 => entry.modified.seconds += 1,
                1 => entry.modified.nanos ^= 1,
                2 => entry.mode ^= 0o001,
                _ => {}
            }
        }
    }
    let same = changed
        .iter()
        .zip(entries(&toc))
        .filter(|(one, other)| *one == other && matches!(one.kind, Kind::File { .. }));
    let twins: Vec<Entry> = (0..)
        .zip(same)
        .map(|(nth, (entry, _)): (u32, _)| Entry {
            path: format!("zzz-{nth:03}").into_bytes(),
            ..entry.clone()
        })
        .collect();
    assert!(twins.len() > 3);
    changed.extend(twins);
    let other = of(&changed);
    let changed = entries(&other);
    let nothing = MemorySource::default();
    let trees = [
        (ReuseMode::Clone, &toc, &image.tree),
        (ReuseMode::HardLink, &toc, &image.tree),
        (ReuseMode::HardLink, &toc, &image.tree),
        (ReuseMode::HardLink, &other, &changed),
        (ReuseMode::HardLink, &other, &changed),
        (ReuseMode::HardLink, &toc, &image.tree),
    ];
    let mut folders = Vec::new();
    let mut shared = Vec::new();
    for (reuse, toc, _) in trees {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Some(&store as &dyn StoreFiles);
        let summary = export(toc, &nothing, files, folder.path(), &with(reuse, 2));
        let summary = summary.expect("exported");
        assert!(summary.complete() || !is_root(), "{summary:?}");
        shared.push(summary.shared);
        folders.push(folder);
    }
    // Compares each tree only after all trees were written.
    for (folder, (reuse, _, tree)) in folders.iter().zip(trees) {
        let links = match reuse {
            ReuseMode::HardLink => LinkCount::Any,
            _ => LinkCount::OfTree,
        };
        compare_tree(folder.path(), tree, &image.contents, is_root(), links);
    }
    if is_root() {
        let [_, first, again, other, _, last] = shared[..] else {
            panic!("six trees");
        };
        assert!(first > 10, "{shared:?}");
        assert_eq!((again, last), (first, first), "{shared:?}");
        assert!(other > 0 && other < first, "{shared:?}");
    }
    for (content, bytes) in &image.contents {
        let kept = std::fs::read(store.0.path().join(content.hex())).expect("kept");
        assert!(kept == *bytes, "{content}");
    }
    // After the trees are deleted, no tree relies on the attributes of the store's files.
    drop(folders);
    let folder = tempfile::tempdir().expect("a folder");
    let files = Some(&store as &dyn StoreFiles);
    let linked = with(ReuseMode::HardLink, 1);
    let summary = export(&other, &nothing, files, folder.path(), &linked).expect("exported");
    assert!(!is_root() || summary.shared > shared[3], "{summary:?}");
    compare_tree(
        folder.path(),
        &changed,
        &image.contents,
        is_root(),
        LinkCount::Any,
    );
}

#[test]
fn concurrent_exports_keep_the_attributes_of_each_tree() {
    let mut source = MemorySource::default();
    let files: Vec<Entry> = (0..300_u32)
        .map(|nth| file(&format!("f{nth:03}"), &mut source, &nth.to_le_bytes()))
        .collect();
    let store = Store(tempfile::tempdir().expect("a folder"));
    let contents = (0..300_u32).map(u32::to_le_bytes);
    let contents = contents.map(|bytes| (FileDigest::of(&bytes), bytes.to_vec()));
    let contents: std::collections::BTreeMap<_, _> = contents.collect();
    for (content, bytes) in &contents {
        std::fs::write(store.0.path().join(content.hex()), bytes).expect("written");
    }
    let version = |seconds: i64| {
        let mut entries = files.clone();
        for entry in &mut entries {
            entry.modified.seconds = seconds;
        }
        of(&entries)
    };
    let versions = [version(1), version(2)];
    let folders = [(); 4].map(|()| tempfile::tempdir().expect("a folder"));
    std::thread::scope(|scope| {
        for (nth, folder) in folders.iter().enumerate() {
            let (toc, store) = (&versions[nth % 2], &store);
            scope.spawn(move || {
                let nothing = MemorySource::default();
                let linked = with(ReuseMode::HardLink, 2);
                export(toc, &nothing, Some(store), folder.path(), &linked).expect("exported");
            });
        }
    });
    for (nth, folder) in folders.iter().enumerate() {
        let tree = entries(&versions[nth % 2]);
        compare_tree(folder.path(), &tree, &contents, false, LinkCount::Any);
    }
}

#[test]
fn an_export_over_a_folder_shares_no_inode_with_its_old_files() {
    let mut source = MemorySource::default();
    let store = Store(tempfile::tempdir().expect("a folder"));
    let path = store.0.path().join(FileDigest::of(b"same").hex());
    std::fs::write(path, b"same").expect("written");
    let [old, new] = ["old", "new"].map(|name| of(&[file(name, &mut source, b"same")]));
    let folder = tempfile::tempdir().expect("a folder");
    let over = Options {
        over: true,
        ..with(ReuseMode::HardLink, 1)
    };
    for toc in [&old, &new] {
        export(toc, &source, Some(&store), folder.path(), &over).expect("exported");
    }
    use std::os::unix::fs::MetadataExt as _;
    let inode = |name: &str| folder.path().join(name).metadata().expect("there").ino();
    assert_ne!(inode("old"), inode("new"));
}

#[test]
fn files_that_others_may_write_to_are_copied_and_not_linked() {
    use std::os::unix::fs::MetadataExt as _;
    let mut source = MemorySource::default();
    let store = Store(tempfile::tempdir().expect("a folder"));
    let cases: [(&str, u32, u32); 5] = [
        ("own", 0o755, 0),
        ("of-the-group", 0o664, 0),
        ("of-all", 0o646, 0),
        ("sticky", 0o1777, 0),
        ("foreign", 0o644, 1000),
    ];
    let entries = cases.map(|(name, mode, uid)| {
        std::fs::write(
            store.0.path().join(FileDigest::of(name.as_bytes()).hex()),
            name,
        )
        .expect("written");
        let entry = file(name, &mut source, name.as_bytes());
        Entry {
            mode,
            uid: entry.uid + uid,
            ..entry
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let linked = with(ReuseMode::HardLink, 1);
    export(&of(&entries), &source, Some(&store), folder.path(), &linked).expect("exported");
    for (name, ..) in cases {
        let kept = store.0.path().join(FileDigest::of(name.as_bytes()).hex());
        let names = kept.metadata().expect("kept").nlink();
        assert_eq!(names == 2, name == "own", "{name}");
        let read = std::fs::read(folder.path().join(name)).expect("there");
        assert_eq!(read, name.as_bytes());
    }
}

/// A store that replaces the file of a content after it was opened, and moves the opened file into
/// a tree.
struct ReplacedFile<'a>(&'a Store, &'a Path);

impl StoreFiles for ReplacedFile<'_> {
    fn file(&self, content: &FileDigest) -> io::Result<Option<std::fs::File>> {
        let file = self.0.file(content)?;
        let named = self.0.0.path().join(content.hex());
        let bytes = std::fs::read(&named)?;
        if !self.1.exists() {
            std::fs::rename(&named, self.1)?;
            std::fs::write(named, bytes)?;
        }
        Ok(file)
    }

    fn is_current(&self, content: &FileDigest, file: &std::fs::File) -> io::Result<bool> {
        self.0.is_current(content, file)
    }

    fn record_link(&self, _: &FileDigest, _: &std::fs::File, _: Time) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_left_the_store_keeps_the_attributes_of_its_tree() {
    use std::os::unix::fs::MetadataExt as _;
    let mut source = MemorySource::default();
    let store = Store(tempfile::tempdir().expect("a folder"));
    let path = store.0.path().join(FileDigest::of(b"same").hex());
    std::fs::write(path, b"same").expect("written");
    let toc = of(&[file("f", &mut source, b"same")]);
    let trees = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let of_a_tree = trees[0].path().join("f");
    let replaced = ReplacedFile(&store, &of_a_tree);
    let linked = with(ReuseMode::HardLink, 1);
    export(&toc, &source, Some(&replaced), trees[1].path(), &linked).expect("exported");
    let [kept, new] =
        [&of_a_tree, &trees[1].path().join("f")].map(|path| path.metadata().expect("there"));
    assert_ne!(kept.ino(), new.ino());
    assert_ne!(kept.mtime(), 7);
    assert_eq!(new.mtime(), 7);
}

/// Returns the TOC of an image of one layer.
fn of(entries: &[Entry]) -> ImageToc {
    ImageToc::merge([LayerEntries {
        diff_id: digest_of(b""),
        skeleton: (FileDigest::of(b""), 0),
        files: None,
        entries: entries.iter().cloned().map(Ok),
    }])
    .expect("merged")
}

fn entry(path: &str, kind: Kind) -> Entry {
    Entry {
        path: path.into(),
        kind,
        mode: 0o755,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        modified: Time {
            seconds: 7,
            nanos: 9,
        },
        xattrs: Vec::new(),
    }
}

fn file(path: &str, source: &mut MemorySource, bytes: &[u8]) -> Entry {
    let content = source.add(bytes);
    let size = bytes.len() as u64;
    entry(path, Kind::File { content, size })
}

#[test]
fn a_folder_with_files_is_refused_without_the_option_over() {
    let mut source = MemorySource::default();
    let toc = of(&[
        entry("a", Kind::Directory),
        file("a/f", &mut source, b"new"),
        file("b", &mut source, b"new"),
        entry("c", Kind::Directory),
        file("c/f", &mut source, b"new"),
    ]);
    let outside = tempfile::tempdir().expect("a folder");
    std::fs::write(outside.path().join("f"), b"old").expect("written");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| folder.path().join(path);
    // At paths that are also in the image, the target already has a file, a folder that contains a
    // link, and a link to a folder outside of the target.
    std::fs::write(at("a"), b"old").expect("written");
    std::fs::create_dir_all(at("b/deep")).expect("made");
    std::os::unix::fs::symlink(outside.path(), at("b/deep/link")).expect("linked");
    std::os::unix::fs::symlink(outside.path(), at("c")).expect("linked");
    std::fs::write(at("stays"), b"old").expect("written");
    let refused = export(&toc, &source, None, folder.path(), &Options::default());
    assert!(matches!(refused, Err(Error::File { .. })), "{refused:?}");
    assert!(at("b").is_dir());
    let over = Options {
        over: true,
        ..Options::default()
    };
    export(&toc, &source, None, folder.path(), &over).expect("exported");
    for path in ["a/f", "b", "c/f"] {
        assert_eq!(std::fs::read(at(path)).expect("a file"), b"new");
    }
    assert!(at("c").symlink_metadata().expect("there").is_dir());
    assert_eq!(std::fs::read(at("stays")).expect("a file"), b"old");
    assert_eq!(
        std::fs::read(outside.path().join("f")).expect("a file"),
        b"old"
    );
}

#[test]
fn blocks_of_zeros_become_holes() {
    use std::os::unix::fs::MetadataExt as _;
    let mut source = MemorySource::default();
    let mut bytes = vec![0; 3 << 20];
    bytes[1_000_000] = 1;
    let toc = of(&[
        file("some", &mut source, &bytes),
        file("zeros", &mut source, &vec![0; 1 << 20]),
        file("short", &mut source, &[0; 100]),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    export(&toc, &source, None, folder.path(), &Options::default()).expect("exported");
    let meta = |name: &str| folder.path().join(name).metadata().expect("there");
    assert!(meta("some").blocks() * 512 < 100_000);
    assert_eq!(meta("zeros").blocks(), 0);
    assert_eq!((meta("zeros").len(), meta("short").len()), (1 << 20, 100));
    assert!(std::fs::read(folder.path().join("some")).expect("read") == bytes);
}

#[test]
fn a_very_deep_tree_is_written() {
    let mut entries = Vec::new();
    let mut path = String::new();
    for _ in 0..200 {
        path.push_str("/d");
        entries.push(entry(&path[1..], Kind::Directory));
        entries.push(entry(&format!("{}/z", &path[1..]), Kind::Fifo));
    }
    let mut link = entry("y", Kind::Fifo);
    link.kind = Kind::HardLink {
        target: format!("{}/z", &path[1..]).into(),
    };
    entries.push(link);
    let toc = of(&entries);
    let folder = tempfile::tempdir().expect("a folder");
    let none = MemorySource::default();
    export(&toc, &none, None, folder.path(), &Options::default()).expect("exported");
    compare_tree(
        folder.path(),
        &self::entries(&toc),
        &[].into(),
        is_root(),
        LinkCount::OfTree,
    );
}

#[test]
fn the_error_of_a_too_large_entry_names_its_size_and_the_fix() {
    let of_one = |entry: Entry| {
        let folder = tempfile::tempdir().expect("a folder");
        let options = with(ReuseMode::Clone, 1);
        let source = MemorySource::default();
        let done = export(&of(&[entry]), &source, None, folder.path(), &options);
        done.map(|summary| summary.entries).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", cause.unwrap_or_default())
        })
    };
    let target = vec![b'x'; 4096];
    let link = entry("a", Kind::Symlink { target });
    let error = of_one(link).expect_err("longer than PATH_MAX");
    for part in ["export a into", "4096 bytes", "4095", "--as oci-layout"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    // The file systems tmpfs and XFS support an extended attribute of this size.
    let large = Entry {
        xattrs: vec![(b"user.large".to_vec(), vec![7; 60_000])],
        ..entry("a", Kind::Directory)
    };
    if let Err(error) = of_one(large) {
        for part in ["folder a:", "user.large", "60000 bytes", "--as oci-layout"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

#[test]
fn a_missing_content_ends_the_export() {
    let mut source = MemorySource::default();
    let present: Vec<Entry> = (0..2000)
        .map(|nth: u32| file(&format!("f{nth}"), &mut source, &nth.to_le_bytes()))
        .collect();
    let mut all = present.clone();
    let content = FileDigest::of(b"nowhere");
    all.insert(3, entry("a", Kind::File { content, size: 7 }));
    let folder = tempfile::tempdir().expect("a folder");
    let failed = export(
        &of(&all),
        &source,
        None,
        folder.path(),
        &with(ReuseMode::Clone, 3),
    );
    assert!(matches!(failed, Err(Error::Missing(_))), "{failed:?}");
    let left = std::fs::read_dir(folder.path()).expect("the folder stays");
    assert_eq!(left.count(), 0, "a retry needs an empty folder");
}

#[test]
fn the_summary_counts_entries_bytes_and_failed_attributes() {
    let mut source = MemorySource::default();
    let mut odd = file("x", &mut source, b"1234");
    odd.xattrs = vec![(b"nonsense.name".to_vec(), b"value".to_vec())];
    odd.uid = u32::MAX;
    let folder = tempfile::tempdir().expect("a folder");
    let summary = export(
        &of(&[odd]),
        &source,
        None,
        folder.path(),
        &Options::default(),
    );
    let expected = rootfs::Summary {
        entries: 2,
        bytes: 4,
        owners: if is_root() { 1 } else { 2 },
        modes: 0,
        xattrs: 1,
        ..Summary::default()
    };
    assert_eq!(summary.expect("exported"), expected);
}

#[test]
fn a_file_whose_owner_cannot_be_set_is_not_setuid() {
    use std::os::unix::fs::MetadataExt as _;
    let mut source = MemorySource::default();
    let mut entries = Vec::new();
    for (path, mode, uid) in [("kept", 0o4755, None), ("lost", 0o6755, Some(u32::MAX))] {
        let mut entry = file(path, &mut source, b"program");
        entry.mode = mode;
        entry.uid = uid.unwrap_or(entry.uid);
        entries.push(entry);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let toc = of(&entries);
    let summary = export(&toc, &source, None, folder.path(), &Options::default());
    let summary = summary.expect("exported");
    let mode = |name: &str| {
        let meta = folder.path().join(name).metadata().expect("there");
        meta.mode() & 0o7777
    };
    assert_eq!((mode("kept"), mode("lost")), (0o4755, 0o755));
    assert_eq!(summary.modes, 1);
    assert!(!summary.complete());
}

/// A `Pace` that returns an error after this number of pauses.
struct StopsAfter(u32);

impl Pace for StopsAfter {
    fn pause(&mut self, _bytes: u64) -> Result<(), pierhead_toc::Error> {
        self.0 = self.0.checked_sub(1).ok_or(pierhead_toc::Error::Stopped)?;
        Ok(())
    }
}

#[test]
fn the_merge_of_layers_stops_when_its_pace_returns_an_error() {
    let layers = layers(&Image::tree(1, &TreeOptions::default()));
    let layers: Vec<_> = layers.iter().collect();
    for pauses in 0..2 {
        let stopped = ImageToc::build_paced(&layers, &mut StopsAfter(pauses));
        assert!(
            matches!(stopped, Err(pierhead_toc::Error::Stopped)),
            "{pauses}"
        );
    }
    let built = ImageToc::build_paced(&layers, &mut StopsAfter(u32::MAX)).expect("built");
    let expected = ImageToc::build(&layers).expect("built");
    assert!(built.bytes() == expected.bytes());
}
