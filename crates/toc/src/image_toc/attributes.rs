//! Encodes and decodes the attribute sets of a TOC: mode, owner, group and extended attributes.
//! Many entries share one set. To read a set, no memory is allocated.

use std::collections::HashSet;

use crate::varint::{self, Reader};
use crate::{Entry, Error};

use super::format::reader;
use super::layout::{Layout, widen};

/// Maximum length of the name of an extended attribute in bytes, which is the limit of Linux.
const MAX_XATTR_NAME: usize = 255;
/// Maximum length of the value of an extended attribute in bytes, which is the limit of Linux.
const MAX_XATTR_VALUE: usize = 64 << 10;

/// Number of bytes of memory that an extended attribute takes besides its name and value.
const XATTR_OVERHEAD: usize = 48;
/// Maximum memory of all extended attributes of a TOC, in bytes.
pub(super) const MAX_HELD: usize = 32 << 20;

/// The attribute set of one or more entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Permission bits including setuid, setgid and sticky.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the entry.
    pub gid: u32,
    /// Extended attributes of the entry.
    pub xattrs: Xattrs<'a>,
}

/// Encoded extended attributes: names and values, sorted by name, without duplicate names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattrs<'a>(&'a [u8]);

impl<'a> Xattrs<'a> {
    /// Whether the set has no extended attributes.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns an iterator over names and values. The iterator ends at malformed bytes, which do
    /// not occur in an opened TOC.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut reader = reader(self.0);
        std::iter::from_fn(move || pair(&mut reader).ok())
    }

    /// Returns an owned copy of names and values.
    pub fn to_vec(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let pairs = self.iter();
        pairs
            .map(|(name, value)| (name.to_vec(), value.to_vec()))
            .collect()
    }
}

fn pair<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), Error> {
    let len = reader.count()?;
    let name = reader.take(len)?;
    let len = reader.count()?;
    Ok((name, reader.take(len)?))
}

/// All attribute sets of a TOC, by their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttributeSets<'a> {
    section: &'a [u8],
    /// Offset of each attribute set in the section of attributes.
    starts: &'a [u32],
}

impl<'a> AttributeSets<'a> {
    pub(super) const fn new(section: &'a [u8], starts: &'a [u32]) -> Self {
        Self { section, starts }
    }

    pub(super) const fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<Attributes<'a>> {
        let mut reader = reader(self.encoded_set(widen(number))?);
        let attributes = Attributes {
            mode: reader.u32().ok()?,
            uid: reader.u32().ok()?,
            gid: reader.u32().ok()?,
            // The number of extended attributes precedes the attributes.
            xattrs: match reader.count() {
                Ok(0) | Err(_) => Xattrs(&[]),
                Ok(_) => Xattrs(reader.rest()),
            },
        };
        Some(attributes)
    }

    /// Whether the TOC has two equal sets. Equal sets have equal bytes, since every number has only
    /// one encoded form.
    pub(super) fn has_twice(&self) -> bool {
        let mut seen = HashSet::with_capacity(self.len());
        (0..self.len()).any(|number| !seen.insert(self.encoded_set(number)))
    }

    fn encoded_set(&self, number: usize) -> Option<&'a [u8]> {
        let start = widen(*self.starts.get(number)?);
        let end = self.starts.get(number + 1);
        let end = end.map_or(self.section.len(), |end| widen(*end));
        self.section.get(start..end)
    }
}

/// Returns the offset of each attribute set in its section, and checks all sets.
pub(super) fn starts(layout: &Layout, bytes: &[u8]) -> Result<Vec<u32>, Error> {
    let section = layout.attributes(bytes);
    let mut reader = reader(section);
    let mut starts = Vec::with_capacity(widen(layout.attribute_count));
    let mut held = 0;
    for _ in 0..layout.attribute_count {
        let start = section.len() - reader.rest().len();
        starts.push(u32::try_from(start).map_err(|_| reader.wrong("it is too long"))?);
        let (mode, _uid, _gid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if mode > 0o7777 {
            return Err(reader.wrong("a mode of more than 12 bits"));
        }
        let mut last: Option<&[u8]> = None;
        for _ in 0..reader.count()? {
            let (name, value) = pair(&mut reader)?;
            let sound = !name.is_empty() && name.len() <= MAX_XATTR_NAME && !name.contains(&0);
            if !sound || value.len() > MAX_XATTR_VALUE {
                return Err(reader.wrong("an invalid extended attribute"));
            }
            if last.is_some_and(|last| last >= name) {
                return Err(reader.wrong("extended attributes out of order"));
            }
            held += XATTR_OVERHEAD + name.len() + value.len();
            if held > MAX_HELD {
                return Err(reader.wrong("extended attributes that exceed the memory limit"));
            }
            last = Some(name);
        }
    }
    reader.end()?;
    Ok(starts)
}

/// Encodes the attribute set of an entry.
pub(super) fn encode(entry: &Entry, mode: u32, out: &mut Vec<u8>) {
    for number in [mode, entry.uid, entry.gid] {
        varint::put(out, number.into());
    }
    varint::put(out, entry.xattrs.len() as u64);
    for (name, value) in &entry.xattrs {
        for bytes in [name, value] {
            varint::put(out, bytes.len() as u64);
            out.extend(bytes);
        }
    }
}

/// Returns the memory that the extended attributes of an entry take, in bytes.
pub(super) fn xattr_memory(entry: &Entry) -> usize {
    let held = |(name, value): &(Vec<u8>, Vec<u8>)| XATTR_OVERHEAD + name.len() + value.len();
    entry.xattrs.iter().map(held).sum()
}
