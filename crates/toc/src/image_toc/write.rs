//! Encodes a merged file tree in the canonical bytes of a TOC (table of contents).

use std::collections::HashMap;

use crate::varint::{put, put_signed};
use crate::{Error, Time};

use super::format::{MAX_ENTRIES, MAX_PATH_ERROR, MAX_TOC};
use super::layout::{HEAD, Layout};
use super::merge::{Merged, MergedNode};
use super::rows;
use super::rows::{State, flag, kind, time_class};

/// Assigns numbers to identifiers, in the order of first use.
#[derive(Default)]
struct Numbers {
    of: HashMap<u32, u32>,
    order: Vec<u32>,
}

impl Numbers {
    /// Returns the number of an identifier of the merged tree, and whether this number is new.
    fn get(&mut self, id: u32) -> Result<(u32, bool), Error> {
        if let Some(number) = self.of.get(&id) {
            return Ok((*number, false));
        }
        let number = count(self.order.len())?;
        self.of.insert(id, number);
        self.order.push(id);
        Ok((number, true))
    }
}

/// Converts a count to 32 bits.
fn count(len: usize) -> Result<u32, Error> {
    u32::try_from(len).map_err(|_| Error::Image("it is too large".to_owned()))
}

/// Encodes the TOC of a merged tree.
pub(super) fn canonical_bytes(merged: &Merged) -> Result<Vec<u8>, Error> {
    let mut entries = Entries::default();
    merged
        .walk(|path, item, attributes, modified| entries.put(path, item, attributes, modified))?;
    // The contents of the tree have the lowest numbers: they are the visible contents. The loop
    // below adds the contents that only layers have: hidden files, and skeletons (tars without file
    // contents).
    let visible = count(entries.contents.order.len())?;
    let mut layers = Vec::new();
    for layer in &merged.layers {
        layers.extend(layer.diff_id.as_bytes());
        let (skeleton, _) = entries.contents.get(layer.skeleton)?;
        put(&mut layers, skeleton.into());
        put(&mut layers, count(layer.files.len())?.into());
        let mut expected = 0;
        for file in &layer.files {
            let (number, _) = entries.contents.get(*file)?;
            put_signed(&mut layers, i64::from(number) - expected);
            expected = i64::from(number) + 1;
        }
    }
    let mut attributes = Vec::new();
    for id in &entries.attributes.order {
        attributes.extend(merged.attributes(*id));
    }
    let mut sizes = Vec::new();
    let mut digests: Vec<u8> = Vec::new();
    for id in &entries.contents.order {
        let (content, size) = merged.content(*id);
        put(&mut sizes, size);
        digests.extend(content);
    }
    let sections = [&attributes, &entries.names, &entries.nodes, &sizes, &layers];
    let mut lengths = [0; 5];
    for (length, section) in lengths.iter_mut().zip(sections) {
        *length = count(section.len())?;
    }
    let layout = Layout {
        entries: entries.count,
        attribute_count: count(entries.attributes.order.len())?,
        visible,
        contents: count(entries.contents.order.len())?,
        layer_count: count(merged.layers.len())?,
        lengths,
    };
    let len = HEAD + sections.iter().map(|section| section.len()).sum::<usize>() + digests.len();
    if len > MAX_TOC || entries.count > MAX_ENTRIES {
        return Err(Error::Image(
            "it has more entries than the limit".to_owned(),
        ));
    }
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(layout.write());
    for section in sections {
        bytes.extend_from_slice(section);
    }
    bytes.extend(digests);
    Ok(bytes)
}

/// The sections of the TOC that the walk over the entries writes.
#[derive(Default)]
struct Entries {
    names: Vec<u8>,
    nodes: Vec<u8>,
    path: Vec<u8>,
    count: u32,
    contents: Numbers,
    attributes: Numbers,
    state: State,
}

impl Entries {
    fn put(
        &mut self,
        path: &[u8],
        item: &MergedNode<'_>,
        attributes: u32,
        modified: Time,
    ) -> Result<(), Error> {
        if path.len() > rows::MAX_PATH {
            return Err(Error::Image(MAX_PATH_ERROR.to_owned()));
        }
        let keep = self
            .path
            .iter()
            .zip(path)
            .take_while(|(a, b)| a == b)
            .count();
        put(&mut self.names, (self.path.len() - keep) as u64);
        put(&mut self.names, (path.len() - keep) as u64);
        self.names.extend(&path[keep..]);
        self.path.truncate(keep);
        self.path.extend(&path[keep..]);

        let of = match item {
            MergedNode::Directory => kind::DIRECTORY,
            MergedNode::File(_) => kind::FILE,
            MergedNode::Symlink(_) => kind::SYMLINK,
            MergedNode::HardLink(_) => kind::HARD_LINK,
            MergedNode::CharDevice(..) => kind::CHAR,
            MergedNode::BlockDevice(..) => kind::BLOCK,
            MergedNode::Fifo => kind::FIFO,
        };
        let at = self.nodes.len();
        self.nodes.push(of);
        let mut flags = of;
        self.put_attributes(of, attributes, &mut flags)?;
        let seconds = &mut self.state.seconds[time_class(of)];
        if *seconds != modified.seconds {
            flags |= flag::SECONDS;
            put_signed(&mut self.nodes, modified.seconds.wrapping_sub(*seconds));
            *seconds = modified.seconds;
        }
        if modified.nanos != 0 {
            flags |= flag::NANOS;
            put(&mut self.nodes, modified.nanos.into());
        }
        match item {
            MergedNode::File(content) => {
                let (number, new) = self.contents.get(*content)?;
                if !new {
                    flags |= flag::KNOWN_CONTENT;
                    let distance = count(self.contents.order.len())? - number;
                    put(&mut self.nodes, distance.into());
                }
            }
            MergedNode::Symlink(target) => {
                put(&mut self.names, target.len() as u64);
                self.names.extend_from_slice(target);
            }
            MergedNode::HardLink(to) => put(&mut self.nodes, (self.count - to).into()),
            MergedNode::CharDevice(major, minor) | MergedNode::BlockDevice(major, minor) => {
                put(&mut self.nodes, (*major).into());
                put(&mut self.nodes, (*minor).into());
            }
            MergedNode::Directory | MergedNode::Fifo => {}
        }
        self.nodes[at] = flags;
        self.count += 1;
        Ok(())
    }

    fn put_attributes(&mut self, of: u8, id: u32, flags: &mut u8) -> Result<(), Error> {
        let next = count(self.attributes.order.len())?;
        let (number, new) = self.attributes.get(id)?;
        let last = &mut self.state.attributes[usize::from(of)];
        if *last != Some(number) {
            *last = Some(number);
            *flags |= flag::ATTRIBUTES;
            let distance = if new { 0 } else { next - number };
            put(&mut self.nodes, distance.into());
        }
        Ok(())
    }
}
