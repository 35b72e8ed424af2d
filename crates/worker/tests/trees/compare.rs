//! Compares the files in a folder with the expected file tree of an image.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use pierhead_toc::{Entry, FileDigest, Kind};

/// Expected number of hard links of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkCount {
    /// The number of names that the file has in the tree.
    OfTree,
    /// Any number: files have further hard links in a store and in other trees.
    Any,
}

/// Compares a folder with the expected tree, and panics at the first difference. Compares owners
/// only with `as_root`, because only root can set owners.
pub(crate) fn compare_tree(
    root: &Path,
    tree: &[Entry],
    contents: &BTreeMap<FileDigest, Vec<u8>>,
    as_root: bool,
    links: LinkCount,
) {
    assert_eq!(count(root), tree.len());
    let at = |path: &[u8]| -> PathBuf { root.join(OsStr::from_bytes(path)) };
    let mut names: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for entry in tree {
        let first = match &entry.kind {
            Kind::HardLink { target } => target,
            _ => &entry.path,
        };
        *names.entry(first.clone()).or_default() += 1;
    }
    let mut inodes: BTreeMap<u64, &[u8]> = BTreeMap::new();
    for entry in tree {
        let path = at(&entry.path);
        let meta = path.symlink_metadata().expect("it is there");
        let kind = meta.file_type();
        let device = |major: u32, minor: u32| rustix::fs::makedev(major, minor);
        let same = match &entry.kind {
            Kind::Directory => kind.is_dir(),
            Kind::File { content, size } => {
                let bytes = fs::read(&path).expect("it can be read");
                kind.is_file() && bytes.len() as u64 == *size && bytes == contents[content]
            }
            Kind::Symlink { target } => {
                kind.is_symlink()
                    && fs::read_link(&path).expect("a link").as_os_str().as_bytes() == target
            }
            Kind::HardLink { target } => {
                let other = at(target).symlink_metadata().expect("it is there");
                (other.dev(), other.ino()) == (meta.dev(), meta.ino())
            }
            Kind::CharDevice { major, minor } => {
                kind.is_char_device() && meta.rdev() == device(*major, *minor)
            }
            Kind::BlockDevice { major, minor } => {
                kind.is_block_device() && meta.rdev() == device(*major, *minor)
            }
            Kind::Fifo => kind.is_fifo(),
            other => panic!("{other:?} in a merged tree"),
        };
        assert!(same, "{entry:?} is {meta:?}");
        assert_eq!(meta.mode() & 0o7777, entry.mode, "{entry:?}");
        if as_root {
            assert_eq!(
                (meta.uid(), meta.gid()),
                (entry.uid, entry.gid),
                "{entry:?}"
            );
        }
        let time = (entry.modified.seconds, i64::from(entry.modified.nanos));
        assert_eq!((meta.mtime(), meta.mtime_nsec()), time, "{entry:?}");
        for (name, value) in &entry.xattrs {
            let mut found = vec![0; 1000];
            let len = rustix::fs::lgetxattr(&path, name, &mut found[..]).expect("it has it");
            assert_eq!(&found[..len], value, "{entry:?}");
        }
        let first = match &entry.kind {
            Kind::HardLink { target } => target,
            _ => &entry.path,
        };
        let same = *inodes.entry(meta.ino()).or_insert(first);
        assert_eq!(same, first, "{entry:?} is one file with another");
        if let Some(names) = names.get(&entry.path)
            && links == LinkCount::OfTree
            && !kind.is_dir()
        {
            assert_eq!(meta.nlink(), *names, "{entry:?}");
        }
    }
}

fn count(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("a folder");
    1 + entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                count(&entry.path())
            } else {
                1
            }
        })
        .sum::<usize>()
}
