//! The walk over the entries of a TOC (table of contents), which decodes one entry after the other.

use crate::varint::Reader;
use crate::{Entry, Error, Kind, Time};

use super::attributes::{AttributeSets, Attributes};
use super::contents::Contents;
use super::format::{rank, reader};
use super::layout::widen;

/// The codes of the kinds of nodes, and the number of kinds.
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

/// Flags in the first byte of an encoded entry.
pub(super) mod flag {
    /// The attributes differ from the attributes of the previous node of the same kind.
    pub(crate) const ATTRIBUTES: u8 = 8;
    /// The seconds of the time differ from the seconds of the previous node of the same class.
    pub(crate) const SECONDS: u8 = 16;
    /// The nanoseconds of the time are not 0.
    pub(crate) const NANOS: u8 = 32;
    /// The entry is a file whose content an earlier entry also has.
    pub(crate) const KNOWN_CONTENT: u8 = 64;
    /// No entry has this bit.
    pub(crate) const UNUSED: u8 = 128;
}

/// Number of nanoseconds in a second.
const SECOND: u32 = 1_000_000_000;

/// Maximum length of a path in bytes.
pub(super) const MAX_PATH: usize = 4096;
/// Maximum length of a name in bytes.
pub(super) const MAX_NAME: usize = 255;
/// One entry of a TOC. The path in this value is valid until the next call of [`Rows::next`].
#[derive(Clone, Copy, Debug)]
pub struct Row<'p, 'a> {
    /// Position of the entry in the TOC; the root is 0.
    pub ordinal: u32,
    /// The path of the entry, as in [`Entry::path`].
    pub path: &'p [u8],
    /// The kind of the entry.
    pub node: Node<'a>,
    /// The attributes of the entry. A hard link has the attributes of its target.
    pub attributes: Attributes<'a>,
    /// Time of the last modification of the entry. A hard link has the time of its target.
    pub modified: Time,
}

/// The kind of a [`Row`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// A directory, whose entries follow in the walk.
    Directory,
    /// A regular file. The number is the number of its content.
    File(u32),
    /// A symbolic link, with its target.
    Symlink(&'a [u8]),
    /// A hard link to the entry with this ordinal, which comes earlier and is neither a directory
    /// nor a hard link.
    HardLink(u32),
    /// A character device, with its major and minor number.
    CharDevice(u32, u32),
    /// A block device, with its major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}

impl Row<'_, '_> {
    /// Returns an owned copy of the entry. If the entry is a hard link, `linked` is the path of its
    /// target; for other entries, `linked` is not used.
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

/// A walk over the entries of a TOC, in order. The walk guarantees for any bytes that paths are
/// clean and ascending, that the directory of a path came earlier, and that numbers are below their
/// counts.
#[derive(Debug)]
pub struct Rows<'a> {
    names: Reader<'a>,
    nodes: Reader<'a>,
    attributes: AttributeSets<'a>,
    path: Vec<u8>,
    /// Attribute number of the previous row.
    pub(super) number: u32,
    /// Whether the previous row was a directory.
    inside: bool,
    ordinal: u32,
    entries: u32,
    visible: u32,
    state: State,
}

/// The values to which encoded numbers are relative. The reader and the writer of a TOC change
/// these values in the same way.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) next_content: u32,
    pub(super) next_attributes: u32,
    /// The last attribute number of each kind of entry.
    pub(super) attributes: [Option<u32>; kind::COUNT],
    /// The seconds of the last directory, and of the last other entry.
    pub(super) seconds: [i64; 2],
}

/// Returns the class of a kind of entry for [`State::seconds`]. Directories and files have separate
/// classes, since their times have different sources: unpacking for directories, and the build for
/// files.
pub(super) const fn time_class(of: u8) -> usize {
    if of == kind::DIRECTORY { 0 } else { 1 }
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        names: &'a [u8],
        nodes: &'a [u8],
        attributes: AttributeSets<'a>,
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

    /// Returns the next entry, or `None` after the last entry.
    ///
    /// # Errors
    /// `Malformed` for a malformed TOC. A TOC that was parsed or built never causes this error.
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
            || flags & flag::UNUSED != 0
            || (flags & flag::KNOWN_CONTENT != 0 && of != kind::FILE)
            || (ordinal == 0 && of != kind::DIRECTORY)
        {
            return Err(self.nodes.wrong("an entry of an unknown kind"));
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
                    _ => return Err(self.nodes.wrong("a hard link to a later entry")),
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
                Err(self.names.wrong("the first entry is not the root"))
            };
        }
        let keep = self.path.len().checked_sub(widen(drop));
        let Some((keep, first)) = keep.zip(new.first()) else {
            return Err(self.names.wrong("an invalid path"));
        };
        // The parent of this path is either the last entry, or the directory of an earlier entry.
        let name = match self.path.get(keep) {
            None if *first == b'/' && self.inside && keep > 0 => &new[1..],
            // Names in the root have no leading slash.
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
                return Err(self.nodes.wrong("invalid attributes"));
            }
            if distance == 0 {
                state.next_attributes += 1;
            }
            *last = number;
        }
        self.number = last.unwrap_or(u32::MAX);
        self.attributes
            .get(self.number)
            .ok_or_else(|| self.nodes.wrong("an attribute number out of range"))
    }

    fn time(&mut self, flags: u8) -> Result<Time, Error> {
        let seconds = &mut self.state.seconds[time_class(flags & kind::MASK)];
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
                return Err(self.nodes.wrong("invalid nanoseconds"));
            }
        }
        Ok(Time {
            seconds: *seconds,
            nanos,
        })
    }

    fn content(&mut self, flags: u8) -> Result<u32, Error> {
        let next = self.state.next_content;
        if flags & flag::KNOWN_CONTENT != 0 {
            let distance = self.nodes.u32()?;
            return match next.checked_sub(distance) {
                Some(number) if distance > 0 => Ok(number),
                _ => Err(self.nodes.wrong("a content number that is not in use yet")),
            };
        }
        if next >= self.visible {
            return Err(self.nodes.wrong("more contents than the head says"));
        }
        self.state.next_content += 1;
        Ok(next)
    }

    fn target(&mut self) -> Result<&'a [u8], Error> {
        let len = widen(self.names.u32()?);
        let target = self.names.take(len)?;
        if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) {
            return Err(self.names.wrong("an invalid link target"));
        }
        Ok(target)
    }

    fn end(&self) -> Result<(), Error> {
        self.names.end()?;
        self.nodes.end()?;
        if self.state.next_content != self.visible
            || widen(self.state.next_attributes) != self.attributes.len()
        {
            return Err(self.nodes.wrong("unused contents or attributes"));
        }
        Ok(())
    }
}
