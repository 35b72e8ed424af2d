//! Unit tests of an export into a folder: creating entries, setting attributes, and linking files
//! of the store. `tests/trees/` tests exports of whole trees.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use pierhead_testkit::source::MemorySource;
use pierhead_toc::image_toc::LayerEntries;
use pierhead_toc::{Entry, Kind};
use tempfile::TempDir;

use super::attributes::{self, Inode};
use super::link::{self, Link};
use super::*;

const MODIFIED: Time = Time {
    seconds: 7,
    nanos: 9,
};

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn entry(path: &str, kind: Kind) -> Entry {
    Entry {
        path: path.into(),
        kind,
        mode: 0o644,
        uid: own_uid(),
        gid: rustix::process::getegid().as_raw(),
        modified: MODIFIED,
        xattrs: Vec::new(),
    }
}

fn file(path: &str, bytes: &[u8]) -> Entry {
    let content = FileDigest::of(bytes);
    let size = bytes.len() as u64;
    entry(path, Kind::File { content, size })
}

fn hard_link(path: &str, target: &str) -> Entry {
    let target = target.into();
    entry(path, Kind::HardLink { target })
}

fn toc(entries: &[Entry]) -> ImageToc {
    let layer = LayerEntries {
        diff_id: FileDigest::of(b"layer").into(),
        skeleton: (FileDigest::of(b""), 0),
        files: None,
        entries: entries.iter().cloned().map(Ok),
    };
    ImageToc::merge([layer]).expect("a TOC")
}

/// Calls `check` with the row of `entry`, the first below the root of a TOC.
fn with_row<T>(entry: &Entry, check: impl FnOnce(&pierhead_toc::image_toc::Row<'_, '_>) -> T) -> T {
    let toc = toc(std::slice::from_ref(entry));
    let mut rows = toc.rows();
    rows.next().expect("a TOC").expect("the root");
    let row = rows.next().expect("a TOC").expect("an entry");
    check(&row)
}

fn folder() -> (TempDir, OwnedFd) {
    let folder = tempfile::tempdir().expect("a folder");
    let fd = folder::target(folder.path(), true).expect("opened");
    (folder, fd)
}

fn export(toc: &ImageToc, source: &MemorySource, into: &Path) -> Result<Summary, Error> {
    let contents = ContentSource {
        source,
        files: None,
    };
    rootfs(toc, contents, into, &Options::default(), &|_| {})
}

#[test]
fn hard_links_are_one_inode_whose_bytes_count_once() {
    let mut source = MemorySource::default();
    source.add(&b"bytes"[..]);
    let fifo = entry("pipe", Kind::Fifo);
    let target = b"a".to_vec();
    let toc = toc(&[
        file("a", b"bytes"),
        hard_link("b", "a"),
        hard_link("c", "a"),
        fifo,
        hard_link("pipe2", "pipe"),
        entry("link", Kind::Symlink { target }),
        hard_link("link2", "link"),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    let summary = export(&toc, &source, folder.path()).expect("exported");
    let inode = |name: &str| {
        let meta = folder.path().join(name).symlink_metadata().expect(name);
        (meta.ino(), meta.nlink(), meta.mtime())
    };
    assert_eq!(inode("a"), inode("b"));
    assert_eq!(inode("a"), inode("c"));
    assert_eq!((inode("a").1, inode("a").2), (3, 7));
    assert_eq!(inode("pipe"), inode("pipe2"));
    assert_eq!(inode("link"), inode("link2"));
    assert_eq!((summary.bytes, summary.entries), (5, 8));
}

#[test]
fn a_device_that_cannot_be_created_counts_with_all_its_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = MemorySource::default();
    let device = Kind::CharDevice { major: 1, minor: 3 };
    let toc = toc(&[entry("null", device), hard_link("null2", "null")]);
    let summary = export(&toc, &source, folder.path()).expect("exported");
    // Only root outside of a container may create devices, so both results are allowed.
    let is_created = folder.path().join("null").exists();
    assert_eq!(summary.devices, if is_created { 0 } else { 2 });
    assert_eq!(folder.path().join("null2").exists(), is_created);
    assert_eq!(summary.complete(), is_created);
}

#[test]
fn attributes_are_set_on_files_folders_and_links() {
    let (folder, root) = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "x").expect("written");
    fs::create_dir(at("folder")).expect("created");
    symlink("nowhere", at("link")).expect("linked");
    let opened = File::open(at("file")).expect("opened");
    let inner = folder::target(&at("folder"), true).expect("opened");
    let counts = Counters::default();
    for (name, inode, mode) in [
        ("file", Inode::File(&opened), 0o4751),
        ("folder", Inode::Folder(&inner), 0o1777),
        ("link", Inode::Name(&root, b"link", true), 0o600),
    ] {
        let wanted = Entry {
            mode,
            ..entry("x", Kind::Fifo)
        };
        with_row(&wanted, |row| {
            attributes::apply(&inode, row.attributes, row.modified, &counts).expect("set");
        });
        let meta = at(name).symlink_metadata().expect("there");
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (7, 9), "{name}");
        if name != "link" {
            assert_eq!(meta.mode() & 0o7777, mode, "{name}");
        }
    }
    assert!(counts.summary().complete());
}

#[test]
fn a_file_whose_owner_cannot_be_set_loses_setuid() {
    let (folder, _root) = folder();
    let path = folder.path().join("file");
    fs::write(&path, "x").expect("written");
    let opened = File::open(&path).expect("opened");
    let counts = Counters::default();
    // For chown(2), the ID 2^32 - 1 means "no change", so no file can get this owner.
    let wanted = Entry {
        uid: u32::MAX,
        mode: 0o6755,
        ..entry("x", Kind::Fifo)
    };
    with_row(&wanted, |row| {
        assert!(attributes::owner(row.attributes).is_none());
        attributes::apply(&Inode::File(&opened), row.attributes, row.modified, &counts)
            .expect("counted");
    });
    assert_eq!(path.metadata().expect("there").mode() & 0o7777, 0o755);
    let summary = counts.summary();
    assert_eq!(
        (summary.owners, summary.modes, summary.complete()),
        (1, 1, false)
    );
}

/// A file of a store, and a folder in which the tests link it.
struct StoreFile {
    folder: TempDir,
    tree: OwnedFd,
    path: PathBuf,
}

impl StoreFile {
    fn new() -> Self {
        let (folder, tree) = folder();
        let path = folder.path().join("content");
        fs::write(&path, "bytes").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("set");
        Self { folder, tree, path }
    }

    fn link(&self, name: &str, entry: &Entry, is_current: bool) -> Link {
        let file = File::open(&self.path).expect("opened");
        let seen = link::changed(&file.metadata().expect("metadata"));
        self.link_seen(&file, name, entry, seen, is_current)
    }

    fn link_seen(
        &self,
        file: &File,
        name: &str,
        entry: &Entry,
        seen: link::ChangeTime,
        is_current: bool,
    ) -> Link {
        with_row(entry, |row| {
            let current = || Ok(is_current);
            link::link(file, &self.tree, name.as_bytes(), row, seen, true, current).expect("a link")
        })
    }

    fn exists(&self, name: &str) -> bool {
        self.folder.path().join(name).exists()
    }

    fn set(&self, entry: &Entry) {
        let file = File::open(&self.path).expect("opened");
        let counts = Counters::default();
        with_row(entry, |row| {
            attributes::apply(&Inode::File(&file), row.attributes, row.modified, &counts)
                .expect("set");
        });
    }
}

#[test]
fn an_inode_is_shared_only_by_entries_with_the_same_attributes() {
    let store = StoreFile::new();
    let plain = file("x", b"bytes");
    assert!(matches!(
        store.link("first", &plain, true),
        Link::Exclusive(_)
    ));
    store.set(&plain);
    assert!(store.link("second", &plain, true) == Link::Shared);
    for other in [
        Entry {
            mode: 0o600,
            ..plain.clone()
        },
        Entry {
            modified: Time::default(),
            ..plain.clone()
        },
    ] {
        assert!(store.link("other", &other, true) == Link::None);
        assert!(!store.exists("other"));
    }
    assert_eq!(store.path.metadata().expect("there").nlink(), 3);
}

#[test]
fn entries_that_grant_rights_are_not_linked() {
    let plain = file("x", b"bytes");
    let with_xattr = vec![(b"user.a".to_vec(), b"1".to_vec())];
    for refused in [
        Entry {
            mode: 0o4755,
            ..plain.clone()
        },
        Entry {
            mode: 0o664,
            ..plain.clone()
        },
        Entry {
            mode: 0o666,
            ..plain.clone()
        },
        Entry {
            mode: 0o044,
            ..plain.clone()
        },
        Entry {
            uid: own_uid() + 1,
            ..plain.clone()
        },
        Entry {
            xattrs: with_xattr,
            ..plain.clone()
        },
    ] {
        let store = StoreFile::new();
        assert!(
            store.link("name", &refused, true) == Link::None,
            "{refused:?}"
        );
        assert!(!store.exists("name"));
    }
}

#[test]
fn a_changed_replaced_or_locked_inode_is_not_linked() {
    let plain = file("x", b"bytes");
    let store = StoreFile::new();
    assert!(
        store.link("name", &plain, false) == Link::None,
        "the store has another file"
    );
    let opened = File::open(&store.path).expect("opened");
    let (seconds, nanos) = link::changed(&opened.metadata().expect("metadata"));
    let earlier = (seconds - 1, nanos);
    assert!(store.link_seen(&opened, "name", &plain, earlier, true) == Link::None);
    // Closing the file releases the lock of the link.
    drop(opened);
    // Another export holds the lock on the inode.
    let other = File::open(&store.path).expect("opened");
    let operation = rustix::fs::FlockOperation::LockExclusive;
    rustix::fs::flock(&other, operation).expect("locked");
    assert!(store.link("name", &plain, true) == Link::None);
    drop(other);
    assert!(!store.exists("name"));
    assert!(matches!(
        store.link("name", &plain, true),
        Link::Exclusive(_)
    ));
}

#[test]
fn a_folder_is_removed_with_all_entries_without_following_links() {
    let (folder, root) = folder();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("stays"), "x").expect("written");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("deep/er/est")).expect("created");
    fs::write(at("deep/er/file"), "x").expect("written");
    symlink(outside.path(), at("deep/er/link")).expect("linked");
    symlink(outside.path(), at("link")).expect("linked");
    for name in ["deep", "link", "none"] {
        folder::clear(&root, name.as_bytes()).expect("cleared");
        assert!(at(name).symlink_metadata().is_err(), "{name}");
    }
    assert!(outside.path().join("stays").exists());
}

#[test]
fn a_second_export_into_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder::target(folder.path(), false).expect("opened");
    let error = folder::target(folder.path(), false).expect_err("in use");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    folder::target(folder.path(), false).expect("free again");
}

#[test]
fn a_failed_export_removes_the_files_that_it_wrote() {
    let source = MemorySource::default();
    let toc = toc(&[
        entry("d", Kind::Directory),
        file("d/f", b"not in the source"),
    ]);
    let parent = tempfile::tempdir().expect("a folder");
    let (new, empty) = (parent.path().join("new"), parent.path().join("empty"));
    fs::create_dir(&empty).expect("created");
    for into in [&new, &empty] {
        let error = export(&toc, &source, into).expect_err("a missing content");
        assert!(matches!(error, Error::Missing(_)), "{error}");
    }
    assert!(!new.exists());
    assert_eq!(fs::read_dir(&empty).expect("kept").count(), 0);
}

#[test]
fn files_with_holes_have_the_same_bytes() {
    let block = 4096;
    let mut source = MemorySource::default();
    let mut mixed = vec![0; 10 * block + 100];
    mixed[..block].fill(1);
    mixed[3 * block..4 * block + 10].fill(2);
    let (all_zero, tail) = (
        vec![0; 2 * block + 5],
        [vec![3; block], vec![0; 7]].concat(),
    );
    let contents = [mixed, all_zero, tail, vec![4; 3 * block + 1]];
    for bytes in &contents {
        let content = source.add(bytes.clone());
        let out = tempfile::tempfile().expect("a file");
        let sources = ContentSource {
            source: &source,
            files: None,
        };
        let size = bytes.len() as u64;
        Writer::new(sources)
            .write(&out, &content, size)
            .expect("written");
        let mut found = vec![0; bytes.len() + 1];
        let read = std::os::unix::fs::FileExt::read_at(&out, &mut found, 0).expect("read");
        assert_eq!(found[..read], bytes[..]);
    }
}
