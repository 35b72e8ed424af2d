//! The packing job: contents of a layer, in the order of its tar, into frames.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};

use pierhead_oci::{Algorithm, Hasher};

use crate::pack::RecordLocation;
use pierhead_bundle::{MAX_FRAME, RECORD_HEAD};
use pierhead_toc::{Error, FileDigest, Source};

use super::frame::RANGE;
use super::kind::Kind;
use super::{ContentRange, Encoder, FrameIndex, MAX_MEMBERS, Packs, Writer};

/// What the buffers of open groups may hold together; the fullest is closed when they hold more.
const BUFFERS: usize = 12 << 20;

/// How contents are packed. `docs/formats/disk.md` has what each of these costs and gives.
#[derive(Clone, Copy, Debug)]
pub struct PackSettings {
    /// Level of zstd, 1 to 22.
    pub level: i32,
    /// Contents of no more bytes are grouped.
    pub small: u64,
    /// Bytes at which a group is closed: at most [`MAX_FRAME`].
    pub group: u64,
    /// Into packs that are given up once [`super::optimize()`] has made better frames.
    pub fast: bool,
    /// Bytes of records that may be appended; what needs more is refused.
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

/// One content that a layer has.
#[derive(Clone, Copy, Debug)]
pub struct PackItem {
    content: FileDigest,
    size: u64,
    /// `None` for what is never grouped.
    kind: Option<Kind>,
}

impl PackItem {
    /// A file's content; `path` tells what may be compressed with it, no more.
    pub fn file(content: FileDigest, size: u64, path: &[u8]) -> Self {
        let kind = Some(Kind::of_path(path));
        Self {
            content,
            size,
            kind,
        }
    }

    /// What is wanted by few, such as a skeleton: it never shares a frame.
    pub const fn apart(content: FileDigest, size: u64) -> Self {
        Self {
            content,
            size,
            kind: None,
        }
    }
}

/// What came of packing a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackResult {
    /// The frames that together hold all that was asked for and nothing else, each once.
    pub frames: Vec<RecordLocation>,
    /// Contents that lay in frames already.
    pub kept: u64,
    /// Bytes that were compressed.
    pub raw: u64,
    /// Bytes of records that were appended.
    pub packed: u64,
}

/// Packs all contents of a layer that are not packed yet, reading each once, in the order given, which should be that
/// of the tar. A frame of another layer is used where all it holds is in this layer too, so that each
/// of the frames can be sent to whoever wants this layer. Stopped or killed, it goes on where it was.
///
/// Memory: 12 MiB of groups, 4 MiB of input, as much of output, 100 bytes an item and the zstd context.
///
/// # Errors
/// [`Error::Digest`] when the source gives other bytes than it should; those of the packs, of `known`, of `pause`
/// (which is told the bytes that were read or compressed) and of the source.
pub fn pack(
    items: &[PackItem],
    source: &dyn Source,
    packs: &Packs,
    known: &dyn FrameIndex,
    settings: &PackSettings,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<PackResult, Error> {
    let mut job = Job {
        source,
        packs,
        known,
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
    known: &'a dyn FrameIndex,
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

/// Small contents on their way into one frame.
#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
    members: Vec<ContentRange>,
}

impl Job<'_> {
    /// Finds what is packed already.
    fn reuse(&mut self, items: &[PackItem]) -> Result<(), Error> {
        let all = || -> HashMap<FileDigest, u64> {
            items.iter().map(|item| (item.content, item.size)).collect()
        };
        // Of most layers nothing is packed yet.
        let wanted = LazyCell::new(all);
        let mut seen: HashSet<RecordLocation> = HashSet::new();
        for item in items {
            if item.size == 0 || self.done.contains(&item.content) {
                continue;
            }
            let places = self.known.get(&item.content)?;
            if places.is_empty() || places.iter().any(|place| seen.contains(place)) {
                continue;
            }
            seen.extend(&places);
            let Some(members) = self.usable(item, &places, &wanted)? else {
                continue;
            };
            self.out.frames.extend(places);
            for content in members {
                self.out.kept += u64::from(self.done.insert(content));
            }
        }
        Ok(())
    }

    /// The contents that `places` hold if they hold `item`, whole, and nothing that is not wanted or done already.
    fn usable(
        &self,
        item: &PackItem,
        places: &[RecordLocation],
        wanted: &HashMap<FileDigest, u64>,
    ) -> Result<Option<Vec<FileDigest>>, Error> {
        let mut contents = Vec::new();
        let mut so_far = 0;
        for place in places {
            let frame = match self.packs.frame(place) {
                Ok(frame) => frame,
                Err(Error::Missing(_) | Error::Malformed { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            for part in frame.members {
                if part.content == item.content && part.offset == so_far {
                    so_far += part.len;
                } else if part.offset != 0
                    || wanted.get(&part.content) != Some(&part.len)
                    || self.done.contains(&part.content)
                {
                    return Ok(None);
                }
                contents.push(part.content);
            }
        }
        Ok((so_far == item.size).then_some(contents))
    }

    /// Puts a small content into the group of its kind.
    fn gather(&mut self, item: &PackItem, kind: Kind) -> Result<(), Error> {
        let len = usize::try_from(item.size).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        self.read(item, 0, &mut bytes)?;
        same(&item.content, FileDigest::of(&bytes))?;
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
        let held: usize = self.groups.iter().map(|group| group.bytes.len()).sum();
        if held > BUFFERS {
            let fullest = (0..Kind::COUNT).max_by_key(|at| self.groups[*at].bytes.len());
            self.close(fullest.unwrap_or(0))?;
        }
        Ok(())
    }

    /// Packs what a group holds by now.
    fn close(&mut self, at: usize) -> Result<(), Error> {
        // Its memory is given back: few kinds are busy at a time.
        let Group { bytes, members } = std::mem::take(&mut self.groups[at]);
        if members.is_empty() {
            return Ok(());
        }
        let place = self.append(&members, &bytes)?;
        for part in &members {
            self.known.put(&part.content, &[place])?;
        }
        Ok(())
    }

    /// Packs a content on its own, range by range.
    fn ranges(&mut self, item: &PackItem) -> Result<(), Error> {
        let mut places = Vec::new();
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut bytes = Vec::new();
        let mut offset = 0;
        while offset < item.size {
            let len = usize::try_from(item.size - offset)
                .unwrap_or(usize::MAX)
                .min(RANGE);
            bytes.resize(len, 0);
            self.read(item, offset, &mut bytes)?;
            hasher.update(&bytes);
            let part = ContentRange {
                content: item.content,
                offset,
                len: len as u64,
            };
            places.push(self.append(&[part], &bytes)?);
            offset += len as u64;
        }
        let found = FileDigest::try_from(&hasher.finish())
            .map_err(|digest| Error::Image(format!("{digest} is no SHA-256")))?;
        same(&item.content, found)?;
        self.known.put(&item.content, &places)
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
                "it takes more than bundle.size gives to packs".into(),
            ));
        }
        let place = self.writer.append(members, coding, payload)?;
        self.out.raw += bytes.len() as u64;
        self.out.packed += u64::from(place.len);
        self.out.frames.push(place);
        (self.pause)(bytes.len() as u64)?;
        Ok(place)
    }
}

fn same(expected: &FileDigest, found: FileDigest) -> Result<(), Error> {
    if *expected == found {
        return Ok(());
    }
    Err(Error::Digest {
        what: "a content of a layer".into(),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}
