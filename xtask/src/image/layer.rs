//! A tree of files that becomes a layer of an image: a reproducible tar archive.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use tar::{EntryType, Header};

/// Time of every entry: 2025-01-01T00:00:00Z. The time of the build would change every digest.
pub(crate) const EPOCH: u64 = 1_735_689_600;

/// Folders that Debian has moved into `/usr`. Packages may still contain the old paths.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64"];

/// An entry of the tree.
#[derive(Clone)]
pub(crate) enum Node {
    /// A folder with its mode.
    Folder(u32),
    /// A folder with its mode, and with `id` as its user and group.
    Owned { mode: u32, id: u64 },
    /// A file with its mode and content.
    File(u32, Vec<u8>),
    /// A file of `size` incompressible bytes, which depend only on the seed.
    Noise { seed: u64, size: u64 },
    /// A symbolic link to a target.
    Symlink(String),
    /// A hard link to another file of this layer.
    Hardlink(String),
}

/// A tree of files; paths are relative to the root of the image.
#[derive(Default, Clone)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Puts `node` at `path`, and creates the parent folders.
    pub(crate) fn put(&mut self, path: &str, node: Node) {
        let mut above = path;
        while let Some((parent, _)) = above.rsplit_once('/') {
            self.nodes
                .entry(parent.to_owned())
                .or_insert(Node::Folder(0o755));
            above = parent;
        }
        self.nodes.insert(path.to_owned(), node);
    }

    /// Adds a text file that all users may read.
    pub(crate) fn text(&mut self, path: &str, content: &str) {
        self.put(path, Node::File(0o644, content.into()));
    }

    /// The entry at a path.
    pub(crate) fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// All paths with their entries, sorted by path.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// Adds the entries of a tar stream whose paths `keep` accepts. Moves old paths into `/usr`.
    ///
    /// # Errors
    /// The stream is damaged, or contains an entry that layers here never have, such as a device.
    pub(crate) fn unpack(&mut self, stream: impl Read, keep: impl Fn(&str) -> bool) -> Result<()> {
        let mut archive = tar::Archive::new(stream);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = merged(&entry.path()?.to_string_lossy());
            if path.is_empty() || !keep(&path) {
                continue;
            }
            let mode = entry.header().mode()? & 0o7777;
            let link = entry
                .link_name()?
                .map(|it| it.to_string_lossy().into_owned());
            let node = match (entry.header().entry_type(), link) {
                (EntryType::Directory, _) => Node::Folder(mode),
                (EntryType::Symlink, Some(target)) => Node::Symlink(target),
                (EntryType::Link, Some(target)) => Node::Hardlink(merged(&target)),
                (EntryType::Regular, _) => {
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content)?;
                    Node::File(mode, content)
                }
                (kind, _) => bail!("{path}: a {kind:?} has no place in an image of ours"),
            };
            self.put(&path, node);
        }
        Ok(())
    }

    /// Copies all files below `folder` of this machine to the path `under`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn copy(
        &mut self,
        folder: &Path,
        under: &str,
        keep: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        for entry in folder
            .read_dir()
            .with_context(|| format!("read {}", folder.display()))?
        {
            let entry = entry?;
            let path = format!("{under}/{}", entry.file_name().to_string_lossy());
            if !keep(&path) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.copy(&entry.path(), &path, keep)?;
            } else {
                self.put(&path, Node::File(0o644, std::fs::read(entry.path())?));
            }
        }
        Ok(())
    }

    /// Writes the tree as a tar archive, sorted by path. Root owns the entries, except
    /// [`Node::Owned`].
    ///
    /// # Errors
    /// `to` cannot be written.
    pub(crate) fn write(&self, to: impl Write) -> Result<()> {
        let mut archive = tar::Builder::new(to);
        // Hard links come last, because a client can create a link only after its target.
        let (links, rest): (Vec<_>, Vec<_>) = self
            .nodes
            .iter()
            .partition(|(_, node)| matches!(node, Node::Hardlink(_)));
        for (path, node) in rest.into_iter().chain(links) {
            let mut header = Header::new_gnu();
            header.set_mtime(EPOCH);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(0);
            match node {
                Node::Folder(mode) => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    archive.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                Node::Owned { mode, id } => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_uid(*id);
                    header.set_gid(*id);
                    archive.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                Node::File(mode, content) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    archive.append_data(&mut header, path, content.as_slice())?;
                }
                Node::Noise { seed, size } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(0o644);
                    header.set_size(*size);
                    archive.append_data(&mut header, path, Noise::new(*seed).take(*size))?;
                }
                Node::Symlink(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    archive.append_link(&mut header, path, target)?;
                }
                Node::Hardlink(target) => {
                    header.set_entry_type(EntryType::Link);
                    header.set_mode(0o644);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        archive.finish()?;
        Ok(())
    }
}

/// The path without a leading `./` or `/`. Paths in folders that Debian has moved get the prefix
/// `usr/`.
pub(crate) fn merged(path: &str) -> String {
    let path = path.trim_start_matches("./").trim_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    if MERGED.contains(&first) {
        format!("usr/{path}")
    } else {
        path.to_owned()
    }
}

/// An endless stream of xorshift64* numbers, which is incompressible and fast without optimization.
struct Noise {
    state: u64,
}

impl Noise {
    fn new(seed: u64) -> Self {
        // A state of zero would stay zero, so the seed is changed.
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }
}

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for chunk in buffer.chunks_mut(8) {
            self.state ^= self.state >> 12;
            self.state ^= self.state << 25;
            self.state ^= self.state >> 27;
            let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d);
            chunk.copy_from_slice(&number.to_le_bytes()[..chunk.len()]);
        }
        Ok(buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(tree: &Tree) -> Vec<u8> {
        let mut bytes = Vec::new();
        tree.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_same_tree_is_the_same_archive_in_whatever_order_it_grew() {
        let mut one = Tree::default();
        one.text("b/c", "1");
        one.text("a", "2");
        let mut other = Tree::default();
        other.text("a", "2");
        other.text("b/c", "1");
        assert_eq!(archive(&one), archive(&other));
        other.text("a", "3");
        assert_ne!(archive(&one), archive(&other));
    }

    #[test]
    fn what_was_written_unpacks_to_the_same_tree() {
        let mut tree = Tree::default();
        tree.put("usr/bin/tool", Node::File(0o755, b"tool".to_vec()));
        tree.put("usr/bin/link", Node::Symlink("tool".into()));
        tree.put("usr/bin/also", Node::Hardlink("usr/bin/tool".into()));
        tree.put(
            "noise",
            Node::Noise {
                seed: 7,
                size: 1001,
            },
        );
        let bytes = archive(&tree);
        let mut back = Tree::default();
        back.unpack(bytes.as_slice(), |_| true).unwrap();
        assert_eq!(archive(&back), bytes);
    }

    #[test]
    fn paths_of_before_the_merged_usr_move_below_it() {
        assert_eq!(
            merged("./lib/x86_64-linux-gnu/"),
            "usr/lib/x86_64-linux-gnu"
        );
        assert_eq!(merged("./bin"), "usr/bin");
        assert_eq!(merged("./library/x"), "library/x");
        assert_eq!(merged("./"), "");
    }
}
