//! A [`Source`] of all file contents that the bundle server has. The source reads a content from
//! packs (files of compressed file contents), or else from layers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::Error;
use crate::pack::RecordLocation;
use pierhead_toc::{FileDigest, Source};

use super::{FrameIndex, PackedFrame, Packs, decode};

/// A [`Source`] that reads contents from packs, and contents that no pack has from a second source
/// (layers). Several threads may share one `Contents`.
pub struct Contents {
    packs: Arc<Packs>,
    frame_index: Arc<dyn FrameIndex>,
    layers: Arc<dyn Source + Send + Sync>,
    recent: Mutex<RecentContents>,
    range_lists: Mutex<VecDeque<(FileDigest, Arc<Ranges>)>>,
}

/// Maximum number of contents whose list of ranges stays in memory. A list has at most some ten
/// thousand ranges, since a range is up to 4 MiB long.
const MAX_RANGE_LISTS: usize = 4;

/// The ranges of a content, in order. Each item has the first byte of the range, and the location
/// of the frame that contains the range.
type Ranges = Vec<(u64, RecordLocation)>;

/// A cache of decoded frames, the last used first. The cache helps because clients often read the
/// contents of one frame one after the other.
struct RecentContents {
    frames: VecDeque<(RecordLocation, Arc<Decoded>)>,
    bytes: usize,
    most: usize,
}

struct Decoded {
    frame: PackedFrame,
    bytes: Vec<u8>,
}

impl Contents {
    /// Creates the source. `memory` is the size in bytes of the cache of decoded frames, of which
    /// each has up to 4 MiB.
    pub fn new(
        packs: Arc<Packs>,
        frame_index: Arc<dyn FrameIndex>,
        layers: Arc<dyn Source + Send + Sync>,
        memory: usize,
    ) -> Self {
        let recent = RecentContents {
            frames: VecDeque::new(),
            bytes: 0,
            most: memory,
        };
        Self {
            packs,
            frame_index,
            layers,
            recent: Mutex::new(recent),
            range_lists: Mutex::default(),
        }
    }

    /// Decodes a frame, or takes it from the cache. If the frame is damaged, removes it from its
    /// pack.
    fn decoded(&self, location: &RecordLocation) -> Result<Arc<Decoded>, Error> {
        if let Some(found) = self.lock_recent().get(location) {
            return Ok(found);
        }
        let frame = self.packs.frame(location)?;
        let mut payload = Vec::new();
        let head = self.packs.read(location, &mut payload)?;
        let len = frame.members.iter().map(|part| part.len).sum();
        let mut bytes = Vec::new();
        decode(head.coding, &payload, len, &mut bytes)?;
        let decoded = Arc::new(Decoded { frame, bytes });
        self.lock_recent().put(*location, decoded.clone());
        Ok(decoded)
    }

    fn lock_recent(&self) -> MutexGuard<'_, RecentContents> {
        self.recent.lock()
    }

    /// Returns the size of a packed content, or `None` if no pack has the content.
    fn packed_size(&self, content: &FileDigest) -> Result<Option<u64>, Error> {
        let mut size = 0;
        for location in self.frame_index.get(content)? {
            for part in self.packs.frame(&location)?.members {
                if part.content == *content {
                    size = size.max(part.offset + part.len);
                }
            }
        }
        Ok((size > 0).then_some(size))
    }

    /// Fills `buf` with bytes from packed frames. Returns the number of bytes that the frames
    /// contained.
    fn read_packed(
        &self,
        content: &FileDigest,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Error> {
        let ranges = self.ranges(content)?;
        match self.read_ranges(&ranges, content, offset, buf) {
            Err(Error::Missing(_) | Error::Malformed { .. }) => {
                // A frame was moved or deleted. So drop the list of ranges, which has the frame's
                // old location.
                self.range_lists().retain(|(of, _)| of != content);
                self.read_ranges(&*self.ranges(content)?, content, offset, buf)
            }
            read => read,
        }
    }

    fn read_ranges(
        &self,
        ranges: &Ranges,
        content: &FileDigest,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Error> {
        let mut filled = 0;
        let first = ranges.partition_point(|(begin, _)| *begin <= offset);
        for (_, location) in &ranges[first.saturating_sub(1)..] {
            if filled == buf.len() {
                break;
            }
            let decoded = self.decoded(location)?;
            let mut begin = 0;
            let before = filled;
            for part in &decoded.frame.members {
                let at = offset.saturating_add(filled as u64);
                let len = usize::try_from(part.len).unwrap_or(usize::MAX);
                if part.content == *content && (part.offset..part.offset + part.len).contains(&at) {
                    let skip = usize::try_from(at - part.offset).unwrap_or(usize::MAX);
                    let piece = decoded.bytes.get(begin + skip..begin + len);
                    let piece = piece.unwrap_or_default();
                    let piece = &piece[..piece.len().min(buf.len() - filled)];
                    buf[filled..filled + piece.len()].copy_from_slice(piece);
                    filled += piece.len();
                }
                begin += len;
            }
            if filled == before {
                break;
            }
        }
        Ok(filled)
    }

    /// Returns the ranges of a content. Does not read the frame of a content that is in a single
    /// frame.
    fn ranges(&self, content: &FileDigest) -> Result<Arc<Ranges>, Error> {
        {
            let mut range_lists = self.range_lists();
            if let Some(at) = range_lists.iter().position(|(of, _)| of == content)
                && let Some(found) = range_lists.remove(at)
            {
                let ranges = found.1.clone();
                range_lists.push_front(found);
                return Ok(ranges);
            }
        }
        let locations = self.frame_index.get(content)?;
        if let [location] = locations[..] {
            return Ok(Arc::new(vec![(0, location)]));
        }
        let mut ranges = Ranges::with_capacity(locations.len());
        for location in locations {
            let frame = self.packs.frame(&location)?;
            let parts = frame.members.iter().filter(|part| part.content == *content);
            ranges.extend(parts.map(|part| (part.offset, location)));
        }
        ranges.sort_by_key(|(begin, _)| *begin);
        let ranges = Arc::new(ranges);
        let mut range_lists = self.range_lists();
        range_lists.push_front((*content, ranges.clone()));
        range_lists.truncate(MAX_RANGE_LISTS);
        Ok(ranges)
    }

    fn range_lists(&self) -> MutexGuard<'_, VecDeque<(FileDigest, Arc<Ranges>)>> {
        self.range_lists.lock()
    }
}

impl Source for Contents {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        match self.packed_size(content).or_else(none_if_lost)? {
            None => self.layers.size(content),
            found => Ok(found),
        }
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let filled = self
            .read_packed(content, offset, buf)
            .or_else(|error| none_if_lost::<usize>(error).map(|_| 0))?;
        if filled == buf.len() && filled > 0 {
            return Ok(());
        }
        let at = offset.saturating_add(filled as u64);
        match self.layers.read_at(content, at, &mut buf[filled..]) {
            // No layer has the content. If the packs have the content, then the requested range
            // exceeds the content, or one of its frames is lost.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let end = offset.saturating_add(buf.len() as u64);
                match self.packed_size(content).or_else(none_if_lost)? {
                    Some(size) if end > size => Err(io::ErrorKind::UnexpectedEof.into()),
                    Some(_) if buf.is_empty() => Ok(()),
                    _ => Err(error),
                }
            }
            other => other,
        }
    }
}

impl RecentContents {
    fn get(&mut self, location: &RecordLocation) -> Option<Arc<Decoded>> {
        let at = self.frames.iter().position(|(of, _)| of == location)?;
        let found = self.frames.remove(at)?;
        let decoded = found.1.clone();
        self.frames.push_front(found);
        Some(decoded)
    }

    fn put(&mut self, location: RecordLocation, decoded: Arc<Decoded>) {
        if decoded.bytes.len() > self.most || self.frames.iter().any(|(of, _)| *of == location) {
            return;
        }
        self.bytes += decoded.bytes.len();
        self.frames.push_front((location, decoded));
        while self.bytes > self.most {
            let Some((_, last)) = self.frames.pop_back() else {
                break;
            };
            self.bytes -= last.bytes.len();
        }
    }
}

/// Turns errors about lost frames into `None`, so that the caller reads the layers.
fn none_if_lost<T>(error: Error) -> io::Result<Option<T>> {
    match error {
        Error::Missing(_) | Error::Malformed { .. } => Ok(None),
        Error::Io { source, .. } => Err(source),
        other => Err(io::Error::other(other)),
    }
}
