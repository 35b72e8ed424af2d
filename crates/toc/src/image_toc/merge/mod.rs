//! Merges layers into one file tree, by the rules with which containerd and umoci unpack layers.
//!
//! - The entries of a layer are applied in the order of its tar.
//! - A whiteout hides entries of lower layers, and never entries of its own layer.
//! - The folder in the path of an entry is resolved through the symbolic links that exist at that
//!   moment. The result never leaves the root.
//! - An entry replaces an existing entry of the same path. But when a directory replaces a
//!   directory, the entries in the directory are kept.
//! - A hard link shares the inode that its target has at that moment, even if the target is
//!   replaced later. As in umoci, the attributes in the link's own tar header are ignored.

use std::collections::BTreeMap;

use pierhead_oci::Digest;

use crate::{Entry, Error, FileDigest, Kind, Time};

use super::attributes::{self, MAX_HELD};
use super::format::{MAX_ENTRIES, MAX_PATH_ERROR};
use super::interned::Interned;

/// The input of a merge: one layer.
pub struct LayerEntries<I, F> {
    /// Digest of the uncompressed tar, which must be a SHA-256.
    pub diff_id: Digest,
    /// Digest and size of the skeleton: the tar without file contents.
    pub skeleton: (FileDigest, u64),
    /// Digest and size of each regular file in the order of the tar, including files that are not
    /// entries.
    pub files: F,
    /// All entries in the order of the tar.
    pub entries: I,
}

/// The names in a directory. The map refers to tree nodes by their position in a list, so that a
/// deep tree causes no deep recursion.
type Children = BTreeMap<Box<[u8]>, u32>;

/// One name in the tree.
struct Name {
    inode: u32,
    /// The last layer that has this name, or a name below this name.
    layer: u32,
    /// The last layer that hid names of lower layers below this name.
    hid: u32,
    children: Children,
}

/// One step of a resolved path: the tree node with this name, if the node exists, and the name.
type Step = (Option<u32>, Box<[u8]>);

/// An inode, which several names can share.
struct Inode {
    kind: InodeKind,
    attributes: u32,
    modified: Time,
}

enum InodeKind {
    Directory,
    File(u32),
    Symlink(Box<[u8]>),
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
}

/// An entry of the merged tree.
pub(super) enum MergedNode<'a> {
    Directory,
    /// A regular file. The number is the identifier of its content.
    File(u32),
    Symlink(&'a [u8]),
    HardLink(u32),
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
}

/// A layer that was merged, which refers to contents by their identifiers.
pub(super) struct MergedLayer {
    pub(super) diff_id: FileDigest,
    pub(super) skeleton: u32,
    pub(super) files: Vec<u32>,
}

/// The merged tree of all layers.
pub(super) struct Merged {
    names: Vec<Name>,
    inodes: Vec<Inode>,
    /// The encoded attribute sets of all entries.
    attributes: Interned,
    contents: Interned,
    sizes: Vec<u64>,
    pub(super) layers: Vec<MergedLayer>,
    /// Number of the layer that is being merged.
    layer: u32,
    /// Remaining number of path components that may be resolved. Without this budget, symbolic
    /// links could make a small image take unlimited time.
    steps: u64,
    /// Remaining memory budget for names, targets and attributes, in bytes.
    bytes: usize,
    /// Buffer for the attribute set that is being encoded.
    coded: Vec<u8>,
}

const ROOT: u32 = 0;

/// Maximum number of symbolic links that are followed for one path, which is also the kernel's
/// limit (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// Maximum number of path components that a merge resolves: enough for a million entries, each as
/// deep as in real images.
const MAX_STEPS: u64 = 256 << 20;

/// Maximum memory of names, link targets, attributes and directories, in bytes. Images of 100 000
/// entries take 2 to 3 MB.
const MAX_BYTES: usize = 2 * MAX_HELD;

/// Memory of a directory besides its name, in bytes: mostly the leaf of a B-tree, with room for
/// eleven children. Because directories count, the memory limit also covers chains of directories
/// with one child each, which take almost no bytes in a layer.
const DIRECTORY: usize = 256;

/// The attributes of the root, and of a folder for which no layer has an entry. The time is 0,
/// since the time of unpacking, which a runtime uses, is not known.
const IMPLIED: Entry = Entry {
    path: Vec::new(),
    kind: Kind::Directory,
    mode: 0o755,
    uid: 0,
    gid: 0,
    modified: Time {
        seconds: 0,
        nanos: 0,
    },
    xattrs: Vec::new(),
};

/// Merges layers, the lowest first.
pub(super) fn merge<I, F>(
    layers: impl IntoIterator<Item = LayerEntries<I, F>>,
) -> Result<Merged, Error>
where
    I: IntoIterator<Item = Result<Entry, Error>>,
    F: IntoIterator<Item = Result<(FileDigest, u64), Error>>,
{
    let mut merged = Merged::new()?;
    for layer in layers {
        merged.layer += 1;
        let (skeleton, size) = layer.skeleton;
        let skeleton = merged.intern(skeleton, size)?;
        let mut files = Vec::new();
        for file in layer.files {
            let (content, size) = file?;
            files.push(merged.intern(content, size)?);
        }
        merged.layers.push(MergedLayer {
            diff_id: FileDigest::try_from(&layer.diff_id)
                .map_err(|digest| Error::Image(format!("the diff ID {digest} is no SHA-256")))?,
            skeleton,
            files,
        });
        for entry in layer.entries {
            merged.apply(entry?)?;
        }
    }
    Ok(merged)
}

fn position(len: usize) -> Result<u32, Error> {
    // Nodes that were replaced stay in memory, but are not entries of the TOC. So the limit of
    // nodes is higher than the limit of entries.
    u32::try_from(len)
        .ok()
        .filter(|position| *position < MAX_ENTRIES + MAX_ENTRIES / 4)
        .ok_or_else(many)
}

fn many() -> Error {
    Error::Image("it has more entries than the limit".to_owned())
}

/// Makes the error of an entry that cannot be merged.
fn bad(path: &[u8], why: &str) -> Error {
    Error::Image(format!("{}: {why}", path.escape_ascii()))
}

/// Returns the components of a path, without empty components and without `.`.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
}

impl Merged {
    fn new() -> Result<Self, Error> {
        let mut merged = Self {
            names: Vec::new(),
            inodes: Vec::new(),
            attributes: Interned::default(),
            contents: Interned::default(),
            sizes: Vec::new(),
            layers: Vec::new(),
            layer: 0,
            steps: MAX_STEPS,
            bytes: MAX_BYTES,
            coded: Vec::new(),
        };
        merged.add_directory()?;
        Ok(merged)
    }

    /// Returns the encoded attribute set with this identifier.
    pub(super) fn attributes(&self, id: u32) -> &[u8] {
        self.attributes.string(id)
    }

    /// Returns digest and size of the content with this identifier.
    pub(super) fn content(&self, id: u32) -> (&[u8], u64) {
        (self.contents.string(id), self.sizes[id as usize])
    }

    fn name(&mut self, name: u32) -> &mut Name {
        &mut self.names[name as usize]
    }

    fn kind(&self, name: u32) -> &InodeKind {
        &self.inodes[self.names[name as usize].inode as usize].kind
    }

    fn child(&self, folder: u32, name: &[u8]) -> Option<u32> {
        self.names[folder as usize].children.get(name).copied()
    }

    fn is_directory(&self, name: u32) -> bool {
        matches!(self.kind(name), InodeKind::Directory)
    }

    fn intern(&mut self, content: FileDigest, size: u64) -> Result<u32, Error> {
        let id = self.contents.get(content.as_bytes()).ok_or_else(many)?;
        position(id as usize)?;
        match self.sizes.get(id as usize) {
            Some(known) if *known != size => Err(Error::Image(format!(
                "{content} has two sizes, {size} and {known}"
            ))),
            Some(_) => Ok(id),
            None => {
                self.sizes.push(size);
                Ok(id)
            }
        }
    }

    /// Adds an inode with the owner, mode, extended attributes and time of an entry.
    fn add_inode(&mut self, kind: InodeKind, of: &Entry) -> Result<u32, Error> {
        let inode = position(self.inodes.len())?;
        if matches!(kind, InodeKind::Directory) {
            self.hold(DIRECTORY)?;
        }
        let mode = match kind {
            // On Linux, a symbolic link always has this mode.
            InodeKind::Symlink(_) => 0o777,
            _ => of.mode,
        };
        let mut coded = std::mem::take(&mut self.coded);
        coded.clear();
        attributes::encode(of, mode, &mut coded);
        if self.attributes.find(&coded).is_none() {
            // The bytes of the attributes count twice, since they are in memory twice: in this
            // table, and in the TOC.
            self.hold(2 * attributes::xattr_memory(of))?;
        }
        let attributes = self.attributes.get(&coded).ok_or_else(many)?;
        self.coded = coded;
        self.inodes.push(Inode {
            kind,
            attributes,
            modified: of.modified,
        });
        Ok(inode)
    }

    fn add_name(&mut self, inode: u32) -> Result<u32, Error> {
        let name = position(self.names.len())?;
        self.names.push(Name {
            inode,
            layer: self.layer,
            hid: 0,
            children: Children::new(),
        });
        Ok(name)
    }

    fn add_directory(&mut self) -> Result<u32, Error> {
        let inode = self.add_inode(InodeKind::Directory, &IMPLIED)?;
        self.add_name(inode)
    }

    fn apply(&mut self, entry: Entry) -> Result<(), Error> {
        let split = entry.path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match split {
            Some(slash) => (&entry.path[..slash], &entry.path[slash + 1..]),
            None => (&[][..], &entry.path[..]),
        };
        let kind = match &entry.kind {
            Kind::Opaque => {
                if let Some(folder) = self.find(&entry.path)?.filter(|f| self.is_directory(*f)) {
                    return self.hide_in(folder);
                }
                return Ok(());
            }
            Kind::Whiteout => {
                if let Some(folder) = self.find(parent)?
                    && let Some(hidden) = self.child(folder, name)
                {
                    if self.names[hidden as usize].layer == self.layer {
                        return self.hide_in(hidden);
                    }
                    self.name(folder).children.remove(name);
                }
                return Ok(());
            }
            Kind::HardLink { target } => {
                let inode = self.linked(&entry.path, target)?;
                return self.put(&entry.path, parent, name, inode);
            }
            Kind::Directory => {
                let inode = self.add_inode(InodeKind::Directory, &entry)?;
                return self.put(&entry.path, parent, name, inode);
            }
            Kind::File { content, size } => InodeKind::File(self.intern(*content, *size)?),
            Kind::Symlink { target } => {
                self.hold(target.len())?;
                InodeKind::Symlink(target.as_slice().into())
            }
            Kind::CharDevice { major, minor } => InodeKind::CharDevice(*major, *minor),
            Kind::BlockDevice { major, minor } => InodeKind::BlockDevice(*major, *minor),
            Kind::Fifo => InodeKind::Fifo,
        };
        let inode = self.add_inode(kind, &entry)?;
        self.put(&entry.path, parent, name, inode)
    }

    /// Gives an inode a name. Replaces an existing entry with this name.
    fn put(&mut self, path: &[u8], parent: &[u8], name: &[u8], inode: u32) -> Result<(), Error> {
        let directory = matches!(self.inodes[inode as usize].kind, InodeKind::Directory);
        if name.is_empty() {
            if !directory {
                return Err(bad(path, "the root is not a directory"));
            }
            let layer = self.layer;
            let root = self.name(ROOT);
            (root.inode, root.layer) = (inode, layer);
            return Ok(());
        }
        let folder = self.make(parent)?;
        let layer = self.layer;
        match self.child(folder, name) {
            Some(old) if directory && self.is_directory(old) => {
                let old = self.name(old);
                (old.inode, old.layer) = (inode, layer);
            }
            _ => {
                self.hold(name.len())?;
                let new = self.add_name(inode)?;
                self.name(folder).children.insert(name.into(), new);
            }
        }
        Ok(())
    }

    /// Returns the inode of the target of a hard link. If the last component of the target is a
    /// symbolic link, this link is not followed.
    fn linked(&mut self, path: &[u8], target: &[u8]) -> Result<u32, Error> {
        let (parent, name) = match target.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&target[..slash], &target[slash + 1..]),
            None => (&[][..], target),
        };
        let found = match self.find(parent)? {
            Some(folder) => self.child(folder, name),
            None => None,
        };
        match found {
            None => Err(bad(path, "a hard link to a missing file")),
            Some(found) if self.is_directory(found) => Err(bad(path, "a hard link to a directory")),
            Some(found) => Ok(self.names[found as usize].inode),
        }
    }

    /// Removes the names that lower layers added to a directory from this directory.
    fn hide_in(&mut self, folder: u32) -> Result<(), Error> {
        let layer = self.layer;
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            let name = self.name(folder);
            if name.hid == layer {
                continue;
            }
            name.hid = layer;
            let mut children = std::mem::take(&mut name.children);
            self.step(children.len() as u64)?;
            children.retain(|_, child| self.names[*child as usize].layer == layer);
            folders.extend(children.values());
            self.name(folder).children = children;
        }
        Ok(())
    }

    /// Subtracts steps from the budget of path components, which limits the time that a small
    /// hostile layer can take.
    fn step(&mut self, steps: u64) -> Result<(), Error> {
        let left = self.steps.checked_sub(steps);
        self.steps =
            left.ok_or_else(|| Error::Image("merging its layers takes too many steps".to_owned()))?;
        Ok(())
    }

    /// Subtracts bytes from the memory budget.
    fn hold(&mut self, bytes: usize) -> Result<(), Error> {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| {
            Error::Image("its names and attributes take more bytes than the limit".to_owned())
        })?;
        Ok(())
    }

    /// Resolves a path through symbolic links. Returns the steps from the root. A missing node
    /// counts as an empty directory. A node that is not a directory also counts as an empty
    /// directory.
    fn resolve(&mut self, path: &[u8]) -> Result<Vec<Step>, Error> {
        let mut way: Vec<Step> = Vec::new();
        let mut todo: Vec<Box<[u8]>> = components(path).rev().map(Box::from).collect();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            self.steps = self
                .steps
                .checked_sub(1)
                .ok_or_else(|| bad(path, "too many symbolic links in the path"))?;
            if *name == *b".." {
                way.pop();
                continue;
            }
            let folder = way.last().map_or(Some(ROOT), |(folder, _)| *folder);
            let child = folder.and_then(|folder| self.child(folder, &name));
            if let Some(InodeKind::Symlink(target)) = child.map(|child| self.kind(child)) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(bad(path, "too many symbolic links in the path"));
                }
                if target.starts_with(b"/") {
                    way.clear();
                }
                todo.extend(components(target).rev().map(Box::from));
                continue;
            }
            way.push((child, name));
        }
        Ok(way)
    }

    /// Returns the tree node at a path. Symbolic links are followed.
    fn find(&mut self, path: &[u8]) -> Result<Option<u32>, Error> {
        let way = self.resolve(path)?;
        Ok(way.last().map_or(Some(ROOT), |(found, _)| *found))
    }

    /// Returns the directory at a path. Creates missing directories, and marks all directories of
    /// the path as part of the current layer.
    fn make(&mut self, path: &[u8]) -> Result<u32, Error> {
        let layer = self.layer;
        let mut folder = ROOT;
        self.name(ROOT).layer = layer;
        for (found, name) in self.resolve(path)? {
            folder = match found {
                Some(found) if self.is_directory(found) => {
                    self.name(found).layer = layer;
                    found
                }
                // A layer may replace an entry of a lower layer by a directory, but not an entry of
                // the same layer.
                Some(found) if self.names[found as usize].layer == layer => {
                    return Err(bad(path, "its folder is not a directory"));
                }
                _ => {
                    self.hold(name.len())?;
                    let new = self.add_directory()?;
                    self.name(folder).children.insert(name, new);
                    new
                }
            };
        }
        Ok(folder)
    }

    /// Calls `visit` with each entry, in the order of a TOC.
    pub(super) fn walk(
        &self,
        mut each: impl FnMut(&[u8], &MergedNode<'_>, u32, Time) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut first: Vec<Option<u32>> = vec![None; self.inodes.len()];
        let mut path = Vec::new();
        let mut ordinal = 0;
        let mut visit = |path: &[u8], name: &Name| {
            let inode = &self.inodes[name.inode as usize];
            let item = match (&inode.kind, first[name.inode as usize]) {
                (InodeKind::Directory, _) => MergedNode::Directory,
                (_, Some(to)) => MergedNode::HardLink(to),
                (InodeKind::File(content), None) => MergedNode::File(*content),
                (InodeKind::Symlink(target), None) => MergedNode::Symlink(target),
                (InodeKind::CharDevice(major, minor), None) => {
                    MergedNode::CharDevice(*major, *minor)
                }
                (InodeKind::BlockDevice(major, minor), None) => {
                    MergedNode::BlockDevice(*major, *minor)
                }
                (InodeKind::Fifo, None) => MergedNode::Fifo,
            };
            first[name.inode as usize].get_or_insert(ordinal);
            ordinal += 1;
            each(path, &item, inode.attributes, inode.modified)
        };
        visit(&path, &self.names[ROOT as usize])?;
        let mut ways = vec![(0, self.names[ROOT as usize].children.iter())];
        while let Some((len, children)) = ways.last_mut() {
            path.truncate(*len);
            let Some((name, child)) = children.next() else {
                ways.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name.iter());
            if path.len() > super::rows::MAX_PATH {
                return Err(bad(&path, MAX_PATH_ERROR));
            }
            let child = &self.names[*child as usize];
            visit(&path, child)?;
            if !child.children.is_empty() {
                ways.push((path.len(), child.children.iter()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
