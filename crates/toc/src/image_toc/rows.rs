//! A walk over the entries of a table.

use crate::varint::Reader;
use crate::{Entry, Error, Kind, Time};

use super::attributes::{Attributes, Numbered};
use super::contents::Contents;
use super::format::{rank, reader};
use super::layout::widen;

/// The kinds of nodes as they are coded, and their number.
pub(super) mod kind {
    pub(crate) const DIRECTORY: u8 = 0;
    pub(crate) const FILE: u8 = 1;
    pub(crate) const SYMLINK: u8 = 2;
    pub(crate) const HARD_LINK: u8 = 3;
    pub(crate) const CHAR: u8 = 4;
    pub(crate) const BLOCK: u8 = 5;
    pub(crate) const FIFO: u8 = 6;
    pub(crate) const COUNT: usize = 7;
    pub(crate) const MASK: u8 = 7;
}

/// What stands behind the byte of a node.
pub(super) mod flag {
    /// Attributes other than those of the last node of the same kind.
    pub(crate) const ATTRIBUTES: u8 = 8;
    /// Seconds other than those of the last node of the same class.
    pub(crate) const SECONDS: u8 = 16;
    /// Nanoseconds that are not 0.
    pub(crate) const NANOS: u8 = 32;
    /// Of a file: a content that had its number before.
    pub(crate) const AGAIN: u8 = 64;
    pub(crate) const NONE: u8 = 128;
}

/// Nanoseconds in a second.
const SECOND: u32 = 1_000_000_000;

/// Maximum length of a path in bytes, as in Linux.
pub(super) const MAX_PATH: usize = 4096;
/// Maximum length of a file name in bytes, as in Linux.
pub(super) const MAX_NAME: usize = 255;
/// One entry; its path lives until the next is asked for, all else as long as the table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'p, 'a> {
    /// Position in the table; the root is 0.
    pub ordinal: u32,
    /// As [`Entry::path`].
    pub path: &'p [u8],
    /// What it is.
    pub node: Node<'a>,
    /// Of a hard link, those of what it names.
    pub attributes: Attributes<'a>,
    /// Of a hard link, that of what it names.
    pub modified: Time,
}

/// What a [`Row`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A directory; what is in it follows.
    Directory,
    /// A regular file, by the number of its content.
    File(u32),
    /// A symbolic link and its target.
    Symlink(&'a [u8]),
    /// Another name of the entry of that ordinal, which comes before and is neither a directory nor a hard link.
    HardLink(u32),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}

impl Row<'_, '_> {
    /// A copy that stands alone. `linked` is the path of the entry that a hard link names, else unused.
    pub fn to_entry(self, contents: &Contents<'_>, linked: &[u8]) -> Option<Entry> {
        let kind = match self.node {
            Node::Directory => Kind::Directory,
            Node::File(number) => Kind::File {
                content: contents.content(number)?,
                size: contents.size(number)?,
            },
            Node::Symlink(target) => Kind::Symlink {
                target: target.to_vec(),
            },
            Node::HardLink(_) => Kind::HardLink {
                target: linked.to_vec(),
            },
            Node::CharDevice(major, minor) => Kind::CharDevice { major, minor },
            Node::BlockDevice(major, minor) => Kind::BlockDevice { major, minor },
            Node::Fifo => Kind::Fifo,
        };
        Some(Entry {
            path: self.path.to_vec(),
            kind,
            mode: self.attributes.mode,
            uid: self.attributes.uid,
            gid: self.attributes.gid,
            modified: self.modified,
            xattrs: self.attributes.xattrs.to_vec(),
        })
    }
}

/// A walk over the entries, in their order. What it yields is sound whatever the bytes are: paths are clean, ascend
/// and lie in directories that came before; numbers are below their counts.
#[derive(Debug)]
pub struct Rows<'a> {
    names: Reader<'a>,
    nodes: Reader<'a>,
    attributes: Numbered<'a>,
    path: Vec<u8>,
    /// Number of the attributes of the last row.
    pub(super) number: u32,
    /// Whether the last row was a directory.
    inside: bool,
    ordinal: u32,
    entries: u32,
    visible: u32,
    state: State,
}

/// What is relative to what came before; reader and writer go through the same.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) next_content: u32,
    pub(super) next_attributes: u32,
    /// By kind.
    pub(super) attributes: [Option<u32>; kind::COUNT],
    /// Of directories, and of everything else.
    pub(super) seconds: [i64; 2],
}

/// Directories have their times from when they were changed, files from when they were built.
pub(super) const fn class(of: u8) -> usize {
    if of == kind::DIRECTORY { 0 } else { 1 }
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        names: &'a [u8],
        nodes: &'a [u8],
        attributes: Numbered<'a>,
        entries: u32,
        visible: u32,
    ) -> Self {
        Self {
            names: reader(names),
            nodes: reader(nodes),
            attributes,
            path: Vec::new(),
            number: 0,
            inside: false,
            ordinal: 0,
            entries,
            visible,
            state: State::default(),
        }
    }

    /// The next entry; `None` after the last.
    ///
    /// # Errors
    /// `Malformed`, never for a table that was parsed or built.
    #[expect(clippy::should_implement_trait, reason = "it lends its path")]
    pub fn next(&mut self) -> Result<Option<Row<'_, 'a>>, Error> {
        if self.ordinal == self.entries {
            self.end()?;
            return Ok(None);
        }
        let ordinal = self.ordinal;
        self.name()?;
        let flags = self.nodes.byte()?;
        let of = flags & kind::MASK;
        if widen(of.into()) >= kind::COUNT
            || flags & flag::NONE != 0
            || (flags & flag::AGAIN != 0 && of != kind::FILE)
            || (ordinal == 0 && of != kind::DIRECTORY)
        {
            return Err(self.nodes.wrong("an entry of no known kind"));
        }
        let attributes = self.attributes_of(flags)?;
        let modified = self.time(flags)?;
        let node = match of {
            kind::DIRECTORY => Node::Directory,
            kind::FILE => Node::File(self.content(flags)?),
            kind::SYMLINK => Node::Symlink(self.target()?),
            kind::HARD_LINK => {
                let distance = self.nodes.u32()?;
                match ordinal.checked_sub(distance) {
                    Some(to) if distance > 0 => Node::HardLink(to),
                    _ => return Err(self.nodes.wrong("a link to what does not come before")),
                }
            }
            kind::CHAR => Node::CharDevice(self.nodes.u32()?, self.nodes.u32()?),
            kind::BLOCK => Node::BlockDevice(self.nodes.u32()?, self.nodes.u32()?),
            _ => Node::Fifo,
        };
        self.inside = of == kind::DIRECTORY;
        self.ordinal += 1;
        Ok(Some(Row {
            ordinal,
            path: &self.path,
            node,
            attributes,
            modified,
        }))
    }

    fn name(&mut self) -> Result<(), Error> {
        let drop = self.names.u32()?;
        let len = widen(self.names.u32()?);
        let new = self.names.take(len)?;
        if self.ordinal == 0 {
            return if drop == 0 && len == 0 {
                Ok(())
            } else {
                Err(self.names.wrong("its first entry is not the root"))
            };
        }
        let keep = self.path.len().checked_sub(widen(drop));
        let Some((keep, first)) = keep.zip(new.first()) else {
            return Err(self.names.wrong("a path that is none"));
        };
        // A new component begins inside the last entry only; anything else shares its directory with an entry before.
        let name = match self.path.get(keep) {
            None if *first == b'/' && self.inside && keep > 0 => &new[1..],
            // In the root, names have no slash before them.
            None if *first != b'/' => new,
            Some(replaced) if *first != b'/' && rank(*first) > rank(*replaced) => new,
            _ => return Err(self.names.wrong("paths out of order, or in no directory")),
        };
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(self.names.wrong("a path that is not clean"));
        }
        self.path.truncate(keep);
        self.path.extend_from_slice(new);
        let start = self
            .path
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |slash| slash + 1);
        let name = &self.path[start..];
        if name == b"." || name == b".." || name.len() > MAX_NAME || self.path.len() > MAX_PATH {
            return Err(self.names.wrong("a path that is not clean"));
        }
        Ok(())
    }

    fn attributes_of(&mut self, flags: u8) -> Result<Attributes<'a>, Error> {
        let state = &mut self.state;
        let last = &mut state.attributes[usize::from(flags & kind::MASK)];
        if flags & flag::ATTRIBUTES != 0 {
            let distance = self.nodes.u32()?;
            let number = state.next_attributes.checked_sub(distance);
            if number.is_none() || number == *last {
                return Err(self.nodes.wrong("attributes that are none"));
            }
            if distance == 0 {
                state.next_attributes += 1;
            }
            *last = number;
        }
        self.number = last.unwrap_or(u32::MAX);
        self.attributes
            .get(self.number)
            .ok_or_else(|| self.nodes.wrong("attributes over the end"))
    }

    fn time(&mut self, flags: u8) -> Result<Time, Error> {
        let seconds = &mut self.state.seconds[class(flags & kind::MASK)];
        if flags & flag::SECONDS != 0 {
            let delta = self.nodes.i64()?;
            if delta == 0 {
                return Err(self.nodes.wrong("a time that did not change"));
            }
            *seconds = seconds.wrapping_add(delta);
        }
        let mut nanos = 0;
        if flags & flag::NANOS != 0 {
            nanos = self.nodes.u32()?;
            if nanos == 0 || nanos >= SECOND {
                return Err(self.nodes.wrong("nanoseconds that are none"));
            }
        }
        Ok(Time {
            seconds: *seconds,
            nanos,
        })
    }

    fn content(&mut self, flags: u8) -> Result<u32, Error> {
        let next = self.state.next_content;
        if flags & flag::AGAIN != 0 {
            let distance = self.nodes.u32()?;
            return match next.checked_sub(distance) {
                Some(number) if distance > 0 => Ok(number),
                _ => Err(self.nodes.wrong("a content that does not come before")),
            };
        }
        if next >= self.visible {
            return Err(self.nodes.wrong("more contents than it says"));
        }
        self.state.next_content += 1;
        Ok(next)
    }

    fn target(&mut self) -> Result<&'a [u8], Error> {
        let len = widen(self.names.u32()?);
        let target = self.names.take(len)?;
        if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) {
            return Err(self.names.wrong("a link to nowhere"));
        }
        Ok(target)
    }

    fn end(&self) -> Result<(), Error> {
        self.names.end()?;
        self.nodes.end()?;
        if self.state.next_content != self.visible
            || widen(self.state.next_attributes) != self.attributes.len()
        {
            return Err(self.nodes.wrong("contents or attributes that nobody uses"));
        }
        Ok(())
    }
}
