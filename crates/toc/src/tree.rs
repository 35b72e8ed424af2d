//! Finds files and symbolic links of a TOC (table of contents) by path, for the planning of
//! bundles.

use crate::TocView;
use crate::image_toc::{Node, compare};
use crate::{Error, FileDigest};

/// The files of an image in path order. Hard links count as files. A file takes about 16 bytes of
/// memory, and the bytes of its path.
#[derive(Debug)]
pub struct Tree<'a> {
    image: TocView<'a>,
    bytes: Vec<u8>,
    names: Vec<Name>,
}

/// The object at a path of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf<'a> {
    /// A regular file. The number is the number of its content.
    File(u32),
    /// A symbolic link, with its target.
    Symlink(&'a [u8]),
}

/// A file or a symbolic link. The numbers up to `target_end` are offsets in [`Tree::bytes`].
#[derive(Clone, Copy, Debug)]
struct Name {
    start: u32,
    path_end: u32,
    /// End of the target of a symbolic link, which is stored after the path. For a file, this
    /// equals `path_end`.
    target_end: u32,
    content: u32,
}

/// Maximum bytes of all paths and targets. The limit is needed, since small layers may name half a
/// million files below one long path.
const MAX_PATHS: usize = 96 << 20;

/// Content number of directories, symbolic links and devices.
const NO_CONTENT: u32 = u32::MAX;

impl<'a> Tree<'a> {
    /// Makes the tree of a TOC, which is read once.
    ///
    /// # Errors
    /// [`Error::Image`] when the paths take more than 96 MiB; `Malformed` for a malformed TOC. A
    /// TOC that was parsed or built never causes this error.
    pub fn of(image: TocView<'a>) -> Result<Self, Error> {
        Self::within(image, MAX_PATHS)
    }

    fn within(image: TocView<'a>, most: usize) -> Result<Self, Error> {
        let mut tree = Self {
            image,
            bytes: Vec::new(),
            names: Vec::new(),
        };
        let mut contents = Vec::new();
        let mut rows = image.toc.rows();
        while let Some(row) = rows.next()? {
            let content = match row.node {
                Node::File(number) => number,
                Node::HardLink(to) => usize::try_from(to)
                    .ok()
                    .and_then(|to| contents.get(to).copied())
                    .unwrap_or(NO_CONTENT),
                _ => NO_CONTENT,
            };
            contents.push(content);
            let target = match row.node {
                Node::Symlink(target) => target,
                _ if content == NO_CONTENT => continue,
                _ => &[],
            };
            if tree.bytes.len() + row.path.len() + target.len() > most {
                return Err(Error::Image(format!(
                    "its paths take more than {most} bytes"
                )));
            }
            tree.push(row.path, target, content)?;
        }
        Ok(tree)
    }

    fn push(&mut self, path: &[u8], target: &[u8], content: u32) -> Result<(), Error> {
        let at = |len: usize| {
            u32::try_from(len).map_err(|_| Error::malformed("TOC", "paths of over 4 GiB"))
        };
        let start = at(self.bytes.len())?;
        self.bytes.extend_from_slice(path);
        let path_end = at(self.bytes.len())?;
        self.bytes.extend_from_slice(target);
        self.names.push(Name {
            start,
            path_end,
            target_end: at(self.bytes.len())?,
            content,
        });
        Ok(())
    }

    /// Returns the number of files and symbolic links.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether the tree has no files and no symbolic links.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the path at a position of the tree.
    pub fn path(&self, at: usize) -> &[u8] {
        self.names
            .get(at)
            .map_or(&[], |name| self.slice(name.start, name.path_end))
    }

    /// Returns the object at a position of the tree.
    pub fn leaf(&self, at: usize) -> Option<Leaf<'_>> {
        let name = self.names.get(at)?;
        Some(match name.content {
            NO_CONTENT => Leaf::Symlink(self.slice(name.path_end, name.target_end)),
            number => Leaf::File(number),
        })
    }

    /// Returns all regular files, each with its position and its content number.
    pub fn files(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let files = self.names.iter().enumerate();
        files.filter_map(|(at, name)| (name.content != NO_CONTENT).then_some((at, name.content)))
    }

    /// Finds the position of a path by a binary search. Symbolic links are not followed.
    pub fn find(&self, path: &[u8]) -> Option<usize> {
        let order = |name: &Name| compare(self.slice(name.start, name.path_end), path);
        self.names.binary_search_by(order).ok()
    }

    /// Returns the content number of the regular file at a path.
    pub fn file(&self, path: &[u8]) -> Option<u32> {
        let name = self.names.get(self.find(path)?)?;
        (name.content != NO_CONTENT).then_some(name.content)
    }

    /// Returns digest and size of a content in the view of this tree.
    pub fn content(&self, number: u32) -> Option<(FileDigest, u64)> {
        self.image.content(number)
    }

    /// Returns the view from which the tree was made.
    pub const fn image(&self) -> &TocView<'a> {
        &self.image
    }

    fn slice(&self, start: u32, end: u32) -> &[u8] {
        let at = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
        self.bytes.get(at(start)..at(end)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_toc::LayerEntries;
    use crate::{Entry, ImageToc, Kind, Time};

    #[test]
    fn the_total_length_of_paths_is_limited() {
        let file = |path: &str| {
            Ok(Entry {
                path: path.into(),
                kind: Kind::Symlink {
                    target: b"to".to_vec(),
                },
                mode: 0o644,
                uid: 0,
                gid: 0,
                modified: Time::default(),
                xattrs: Vec::new(),
            })
        };
        let layer = LayerEntries {
            diff_id: FileDigest::of(b"diff").into(),
            files: std::iter::empty(),
            skeleton: (FileDigest::of(b"skeleton"), 8),
            entries: ["one", "two"].map(file).into_iter(),
        };
        let toc = ImageToc::merge([layer]).expect("sound");
        let image = TocView::mounted(&toc);
        assert_eq!(Tree::within(image, 10).expect("they fit").len(), 2);
        assert!(matches!(Tree::within(image, 9), Err(Error::Image(_))));
    }
}
