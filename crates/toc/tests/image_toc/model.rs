//! A model of how container runtimes unpack layers, and a generator of random layers, on which
//! tests compare the model with the crate.
//!
//! The model is a map from paths to files, which shares no code with the crate. The model is slow,
//! and does not support symbolic links in the middle of paths.

use std::collections::BTreeMap;

use pierhead_toc::image_toc::{LayerEntries, Node};
use pierhead_toc::{Entry, Error, FileDigest, ImageToc, Kind, Time};
use proptest::prelude::*;

/// The paths of all entries. Some paths are parents of other paths, so that files and directories
/// collide.
const PATHS: [&str; 12] = [
    "a", "a/x", "a/x/y", "a/z", "a-b", "b", "b/c", "b/c/d", "b/c/e", "b.c", "c", "c/d",
];

/// The contents of all files. The empty content is never transferred.
pub(super) const CONTENTS: [&str; 6] = ["", "one", "two", "three", "four", "five"];

/// One change that a layer makes at a path.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Adds a directory.
    Directory,
    /// Adds a regular file with this number in [`CONTENTS`].
    File(usize),
    /// Adds a symbolic link that nothing follows.
    Symlink,
    /// Adds a hard link to another path.
    HardLink(&'static str),
    /// Deletes the entry at the path in lower layers.
    Whiteout,
    /// Hides the entries of lower layers below the path.
    Opaque,
}

/// The changes of one layer in the order of its tar.
pub(super) type Layer = Vec<(&'static str, Change)>;

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => Just(Change::Directory),
        6 => (0..CONTENTS.len()).prop_map(Change::File),
        1 => Just(Change::Symlink),
        1 => prop::sample::select(&PATHS[..]).prop_map(Change::HardLink),
        2 => Just(Change::Whiteout),
        1 => Just(Change::Opaque),
    ]
}

/// Generates up to four layers of up to eight changes.
pub(super) fn layers() -> impl Strategy<Value = Vec<Layer>> {
    let layer = proptest::collection::vec((prop::sample::select(&PATHS[..]), change()), 0..8);
    proptest::collection::vec(layer, 0..4)
}

/// Returns the digest and the size of a content of [`CONTENTS`].
pub(super) fn content(number: usize) -> (FileDigest, u64) {
    let bytes = CONTENTS[number].as_bytes();
    (FileDigest::of(bytes), bytes.len() as u64)
}

/// Returns the entry of a change, as a layer index would return this entry.
fn entry(path: &str, change: &Change) -> Entry {
    let kind = match change {
        Change::Directory => Kind::Directory,
        Change::File(number) => {
            let (content, size) = content(*number);
            Kind::File { content, size }
        }
        Change::Symlink => Kind::Symlink {
            target: b"/nowhere".to_vec(),
        },
        Change::HardLink(target) => Kind::HardLink {
            target: target.as_bytes().to_vec(),
        },
        Change::Whiteout => Kind::Whiteout,
        Change::Opaque => Kind::Opaque,
    };
    Entry {
        path: path.as_bytes().to_vec(),
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        modified: Time::default(),
        xattrs: Vec::new(),
    }
}

/// Merges random layers with the crate.
pub(super) fn merge(layers: &[Layer]) -> Result<ImageToc, Error> {
    ImageToc::merge(layers.iter().enumerate().map(|(number, layer)| {
        let files = layer.iter().filter_map(|(_, change)| match change {
            Change::File(number) => Some(Ok(content(*number))),
            _ => None,
        });
        LayerEntries {
            diff_id: FileDigest::of(&[0, u8::try_from(number).unwrap()]).into(),
            skeleton: (FileDigest::of(&[1, u8::try_from(number).unwrap()]), 7),
            files: files.collect::<Vec<_>>(),
            entries: layer.iter().map(|(path, change)| Ok(entry(path, change))),
        }
    }))
}

/// The object at a path of the model. Hard links are copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leaf {
    Directory,
    File(FileDigest),
    Symlink,
}

/// For each path: its object, and the last layer that added this object or an entry below it.
type Tree = BTreeMap<String, (Leaf, usize)>;

/// Returns the parents of a path, the outermost first.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Merges random layers with the model. Returns `None` if an entry cannot be unpacked.
pub(super) fn merge_by_model(layers: &[Layer]) -> Option<BTreeMap<String, Leaf>> {
    let mut tree = Tree::new();
    for (layer, changes) in layers.iter().enumerate() {
        for (path, change) in changes {
            let leaf = match change {
                Change::Directory => Leaf::Directory,
                Change::File(number) => Leaf::File(content(*number).0),
                Change::Symlink => Leaf::Symlink,
                Change::HardLink(target) => {
                    // In the model, no entry is below a symbolic link, and no path leads through a
                    // symbolic link.
                    tree.get(*target)
                        .map(|(leaf, _)| leaf.clone())
                        .filter(|leaf| *leaf != Leaf::Directory)?
                }
                Change::Whiteout => {
                    match tree.get(*path) {
                        Some((_, last)) if *last == layer => hide_below(&mut tree, path, layer),
                        _ => tree.retain(|other, _| other != path && !is_below(other, path)),
                    }
                    continue;
                }
                Change::Opaque => {
                    if matches!(tree.get(*path), Some((Leaf::Directory, _))) {
                        hide_below(&mut tree, path, layer);
                    }
                    continue;
                }
            };
            add(&mut tree, path, leaf, layer)?;
        }
    }
    let leaves = tree.into_iter();
    Some(leaves.map(|(path, (leaf, _))| (path, leaf)).collect())
}

/// Removes the entries of lower layers below a directory.
fn hide_below(tree: &mut Tree, folder: &str, layer: usize) {
    tree.retain(|path, (_, last)| !is_below(path, folder) || *last == layer);
}

/// Adds a leaf and its missing parents. Returns `None` if this layer has a file at the path of a
/// parent.
fn add(tree: &mut Tree, path: &str, leaf: Leaf, layer: usize) -> Option<()> {
    for parent in parents(path) {
        match tree.get_mut(parent) {
            Some((Leaf::Directory, last)) => *last = layer,
            Some((_, last)) if *last == layer => return None,
            _ => {
                tree.insert(parent.to_owned(), (Leaf::Directory, layer));
            }
        }
    }
    let was_directory = matches!(tree.get(path), Some((Leaf::Directory, _)));
    if !(was_directory && leaf == Leaf::Directory) {
        tree.retain(|other, _| !is_below(other, path));
    }
    tree.insert(path.to_owned(), (leaf, layer));
    Some(())
}

/// Whether a path of these layers leads through a symbolic link, which the model cannot follow.
pub(super) fn is_outside_model(layers: &[Layer]) -> bool {
    let is_symlink = |change: &Change| matches!(change, Change::Symlink | Change::HardLink(_));
    let changes = || layers.iter().flatten();
    let mut links = changes().filter(|(_, change)| is_symlink(change));
    links.any(|(link, _)| {
        changes().any(|(path, change)| {
            is_below(path, link)
                || *path == *link && matches!(change, Change::Opaque)
                || matches!(change, Change::HardLink(target) if is_below(target, link))
        })
    })
}

/// Returns the tree of a table of contents, in which hard links are copies.
pub(super) fn leaves(toc: &ImageToc) -> BTreeMap<String, Leaf> {
    let mut all: Vec<(String, Leaf)> = Vec::new();
    let mut rows = toc.rows();
    while let Some(row) = rows.next().unwrap() {
        let leaf = match row.node {
            Node::Directory => Leaf::Directory,
            Node::File(number) => Leaf::File(toc.contents().content(number).unwrap()),
            Node::Symlink(target) => {
                assert_eq!(target, b"/nowhere");
                Leaf::Symlink
            }
            Node::HardLink(to) => all[usize::try_from(to).unwrap()].1.clone(),
            other => panic!("no layer has a {other:?}"),
        };
        all.push((String::from_utf8(row.path.to_vec()).unwrap(), leaf));
    }
    let root = all.remove(0);
    assert_eq!(root, (String::new(), Leaf::Directory));
    all.into_iter().collect()
}
