//! Packs the contents of a layer into frames (groups of contents that are compressed together), in
//! the order of its tar.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};

use pierhead_oci::{Algorithm, Hasher};

use crate::Error;
use crate::pack::RecordLocation;
use pierhead_bundle::{MAX_FRAME, RECORD_HEAD};
use pierhead_toc::{FileDigest, Source};

use super::frame::RANGE_SIZE;
use super::kind::Kind;
use super::{ContentRange, Encoder, FrameIndex, MAX_MEMBERS, Packs, Writer};

/// Maximum number of bytes of all groups of small contents together. When the groups exceed this
/// size, the largest group is written as a frame.
const MAX_BUFFERED: usize = 12 << 20;

/// Settings of packing. `docs/formats/disk.md` has measurements for each setting.
#[derive(Clone, Copy, Debug)]
pub struct PackSettings {
    /// The zstd level of packed frames, from 1 to 22.
    pub level: i32,
    /// Maximum size of a content in bytes up to which a content shares a frame with other contents.
    pub small: u64,
    /// Maximum number of bytes of a group, at most [`MAX_FRAME`].
    pub group: u64,
    /// Whether to write fast packs, which are deleted after [`super::optimize()`] has made
    /// optimized frames.
    pub fast: bool,
    /// Maximum number of bytes of records that one call may append. If a layer needs more, packing
    /// fails.
    pub most: u64,
}

impl Default for PackSettings {
    fn default() -> Self {
        Self {
            level: 18,
            small: 1 << 20,
            group: MAX_FRAME,
            fast: false,
            most: u64::MAX,
        }
    }
}

/// One content of a layer, to be packed.
#[derive(Clone, Copy, Debug)]
pub struct PackItem {
    content: FileDigest,
    size: u64,
    /// The kind of files with which this content may share a frame. With `None`, the content shares
    /// a frame with no other content.
    kind: Option<Kind>,
}

impl PackItem {
    /// Creates the item for the content of a file. `path` only determines with which files the
    /// content shares a frame.
    pub fn file(content: FileDigest, size: u64, path: &[u8]) -> Self {
        let kind = Some(Kind::of_path(path));
        Self {
            content,
            size,
            kind,
        }
    }

    /// Creates the item for a content that few clients need, such as a skeleton (a tar without its
    /// files). Such a content never shares a frame.
    pub const fn in_own_frame(content: FileDigest, size: u64) -> Self {
        Self {
            content,
            size,
            kind: None,
        }
    }
}

/// The result of packing a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackResult {
    /// The locations of the frames that together contain all requested contents, and no other
    /// contents.
    pub frames: Vec<RecordLocation>,
    /// Number of contents that were already packed.
    pub reused: u64,
    /// Number of uncompressed bytes that this call compressed.
    pub raw: u64,
    /// Number of bytes of the records that this call appended.
    pub packed: u64,
}

/// Packs all contents of a layer that are not packed yet. Reads each content once, in the given
/// order, which should be the order of the tar. A frame that was packed for another layer is used
/// only when this layer has all members of the frame, so that every frame can be sent to a client
/// of this layer. After a shutdown or a kill, the next call continues the work.
///
/// The work takes 12 MiB of memory for groups, 4 MiB for input, 4 MiB for output, 100 bytes per
/// item, and the memory of the zstd context.
///
/// # Errors
/// [`Error::Digest`] when a content of the source has another digest; errors of the packs, of
/// `frame_index`, of the source and of `pause`, which gets the number of bytes that were read or
/// compressed.
pub fn pack(
    items: &[PackItem],
    source: &dyn Source,
    packs: &Packs,
    frame_index: &dyn FrameIndex,
    settings: &PackSettings,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<PackResult, Error> {
    let mut job = Job {
        source,
        packs,
        frame_index,
        pause,
        group: settings.group.clamp(1, MAX_FRAME),
        most: settings.most,
        small: settings.small.min(settings.group).min(MAX_FRAME),
        encoder: Encoder::new(settings.level)?,
        writer: if settings.fast {
            packs.fast_writer()
        } else {
            packs.writer()
        },
        groups: Default::default(),
        done: HashSet::with_capacity(items.len()),
        out: PackResult::default(),
    };
    job.reuse(items)?;
    for item in items {
        if item.size > 0 && job.done.insert(item.content) {
            match item.kind {
                Some(kind) if item.size <= job.small => job.gather(item, kind)?,
                _ => job.ranges(item)?,
            }
        }
    }
    for at in 0..Kind::COUNT {
        job.close(at)?;
    }
    job.writer.sync()?;
    Ok(job.out)
}

struct Job<'a> {
    source: &'a dyn Source,
    packs: &'a Packs,
    frame_index: &'a dyn FrameIndex,
    pause: &'a mut dyn FnMut(u64) -> Result<(), Error>,
    group: u64,
    small: u64,
    most: u64,
    encoder: Encoder,
    writer: Writer<'a>,
    groups: [Group; Kind::COUNT],
    done: HashSet<FileDigest>,
    out: PackResult,
}

/// A group of small contents that will become one frame.
#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
    members: Vec<ContentRange>,
}

impl Job<'_> {
    /// Finds the contents of the layer that are already packed.
    fn reuse(&mut self, items: &[PackItem]) -> Result<(), Error> {
        let all = || -> HashMap<FileDigest, u64> {
            items.iter().map(|item| (item.content, item.size)).collect()
        };
        // This set is computed on first use, since most layers have no content that is already
        // packed.
        let wanted = LazyCell::new(all);
        let mut seen: HashSet<RecordLocation> = HashSet::new();
        for item in items {
            if item.size == 0 || self.done.contains(&item.content) {
                continue;
            }
            let locations = self.frame_index.get(&item.content)?;
            if locations.is_empty() || locations.iter().any(|location| seen.contains(location)) {
                continue;
            }
            seen.extend(&locations);
            let Some(members) = self.usable(item, &locations, &wanted)? else {
                continue;
            };
            self.out.frames.extend(locations);
            for content in members {
                self.out.reused += u64::from(self.done.insert(content));
            }
        }
        Ok(())
    }

    /// Returns the contents of the frames at `locations`, if these frames can be used: they must
    /// contain all of `item`, and their other contents must all be requested and not done yet.
    fn usable(
        &self,
        item: &PackItem,
        locations: &[RecordLocation],
        wanted: &HashMap<FileDigest, u64>,
    ) -> Result<Option<Vec<FileDigest>>, Error> {
        let mut contents = Vec::new();
        let mut end = 0;
        for location in locations {
            let frame = match self.packs.frame(location) {
                Ok(frame) => frame,
                Err(Error::Missing(_) | Error::Malformed { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            for part in frame.members {
                if part.content == item.content && part.offset == end {
                    end += part.len;
                } else if part.offset != 0
                    || wanted.get(&part.content) != Some(&part.len)
                    || self.done.contains(&part.content)
                {
                    return Ok(None);
                }
                contents.push(part.content);
            }
        }
        Ok((end == item.size).then_some(contents))
    }

    /// Adds a small content to the group of its kind.
    fn gather(&mut self, item: &PackItem, kind: Kind) -> Result<(), Error> {
        let len = usize::try_from(item.size).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        self.read(item, 0, &mut bytes)?;
        check_digest(&item.content, FileDigest::of(&bytes))?;
        let at = kind.of_bytes(&bytes) as usize;
        let group = &self.groups[at];
        let is_full = group.bytes.len() as u64 + item.size > self.group;
        if is_full || group.members.len() == MAX_MEMBERS {
            self.close(at)?;
        }
        let group = &mut self.groups[at];
        group.bytes.extend_from_slice(&bytes);
        group.members.push(ContentRange {
            content: item.content,
            offset: 0,
            len: item.size,
        });
        let buffered: usize = self.groups.iter().map(|group| group.bytes.len()).sum();
        if buffered > MAX_BUFFERED {
            let fullest = (0..Kind::COUNT).max_by_key(|at| self.groups[*at].bytes.len());
            self.close(fullest.unwrap_or(0))?;
        }
        Ok(())
    }

    /// Writes a group as one frame.
    fn close(&mut self, at: usize) -> Result<(), Error> {
        // Takes the buffer out of the group, which frees its memory. This is cheap, since a layer
        // has few kinds of files at a time.
        let Group { bytes, members } = std::mem::take(&mut self.groups[at]);
        if members.is_empty() {
            return Ok(());
        }
        let location = self.append(&members, &bytes)?;
        for part in &members {
            self.frame_index.put(&part.content, &[location])?;
        }
        Ok(())
    }

    /// Packs one large content in separate frames, one for each range.
    fn ranges(&mut self, item: &PackItem) -> Result<(), Error> {
        let mut locations = Vec::new();
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut bytes = Vec::new();
        let mut offset = 0;
        while offset < item.size {
            let len = usize::try_from(item.size - offset)
                .unwrap_or(usize::MAX)
                .min(RANGE_SIZE);
            bytes.resize(len, 0);
            self.read(item, offset, &mut bytes)?;
            hasher.update(&bytes);
            let part = ContentRange {
                content: item.content,
                offset,
                len: len as u64,
            };
            locations.push(self.append(&[part], &bytes)?);
            offset += len as u64;
        }
        let found = FileDigest::try_from(&hasher.finish())
            .map_err(|digest| Error::Image(format!("{digest} is no SHA-256")))?;
        check_digest(&item.content, found)?;
        self.frame_index.put(&item.content, &locations)
    }

    fn read(&mut self, item: &PackItem, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut at = offset;
        for piece in bytes.chunks_mut(1 << 20) {
            self.source
                .read_at(&item.content, at, piece)
                .map_err(|error| Error::io(format!("read {}", item.content), error))?;
            at += piece.len() as u64;
            (self.pause)(piece.len() as u64)?;
        }
        Ok(())
    }

    fn append(&mut self, members: &[ContentRange], bytes: &[u8]) -> Result<RecordLocation, Error> {
        let (coding, payload) = self.encoder.encode(bytes)?;
        let len = (RECORD_HEAD + payload.len()) as u64;
        if self.out.packed + len > self.most {
            return Err(Error::Image(
                "it needs more disk space than bundle.size gives to packs".into(),
            ));
        }
        let location = self.writer.append(members, coding, payload)?;
        self.out.raw += bytes.len() as u64;
        self.out.packed += u64::from(location.len);
        self.out.frames.push(location);
        (self.pause)(bytes.len() as u64)?;
        Ok(location)
    }
}

fn check_digest(expected: &FileDigest, found: FileDigest) -> Result<(), Error> {
    if *expected == found {
        return Ok(());
    }
    Err(Error::Digest {
        what: "a content of a layer".into(),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}
