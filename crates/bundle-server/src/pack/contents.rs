//! All contents that the server has: from packs where they are packed, else from their layers.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::pack::RecordLocation;
use pierhead_toc::{Error, FileDigest, Source};

use super::{FrameIndex, PackedFrame, Packs, decode};

/// A [`Source`] over packs, with another one (layers) for what is not in them. Shared by threads.
pub struct Contents {
    packs: Arc<Packs>,
    known: Arc<dyn FrameIndex>,
    layers: Arc<dyn Source + Send + Sync>,
    recent: Mutex<Recent>,
    laid: Mutex<VecDeque<(FileDigest, Arc<Ranges>)>>,
}

/// Contents of several frames whose ranges are held: each has some ten thousand at most.
const LAID: usize = 4;

/// Where the ranges of a content begin, and their frames, in order.
type Ranges = Vec<(u64, RecordLocation)>;

/// Frames as they decode, the last used first: neighbours in a frame are often asked for one after the other.
struct Recent {
    frames: VecDeque<(RecordLocation, Arc<Decoded>)>,
    bytes: usize,
    most: usize,
}

struct Decoded {
    frame: PackedFrame,
    bytes: Vec<u8>,
}

impl Contents {
    /// Keeps up to `memory` bytes of decoded frames (one frame is up to 4 MiB).
    pub fn new(
        packs: Arc<Packs>,
        known: Arc<dyn FrameIndex>,
        layers: Arc<dyn Source + Send + Sync>,
        memory: usize,
    ) -> Self {
        let recent = Recent {
            frames: VecDeque::new(),
            bytes: 0,
            most: memory,
        };
        Self {
            packs,
            known,
            layers,
            recent: Mutex::new(recent),
            laid: Mutex::default(),
        }
    }

    /// What a frame decodes to; checked, dropped from its pack when it is damaged.
    fn decoded(&self, place: &RecordLocation) -> Result<Arc<Decoded>, Error> {
        if let Some(found) = self.recent().get(place) {
            return Ok(found);
        }
        let frame = self.packs.frame(place)?;
        let mut payload = Vec::new();
        let head = self.packs.read(place, &mut payload)?;
        let len = frame.members.iter().map(|part| part.len).sum();
        let mut bytes = Vec::new();
        decode(head.coding, &payload, len, &mut bytes)?;
        let decoded = Arc::new(Decoded { frame, bytes });
        self.recent().put(*place, decoded.clone());
        Ok(decoded)
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of a content that is packed whole.
    fn packed_size(&self, content: &FileDigest) -> Result<Option<u64>, Error> {
        let mut size = 0;
        for place in self.known.get(content)? {
            for part in self.packs.frame(&place)?.members {
                if part.content == *content {
                    size = size.max(part.offset + part.len);
                }
            }
        }
        Ok((size > 0).then_some(size))
    }

    /// Fills `buf` as far as frames have it; returns how much of it, from its start.
    fn read_packed(
        &self,
        content: &FileDigest,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Error> {
        let ranges = self.ranges(content)?;
        match self.read_ranges(&ranges, content, offset, buf) {
            Err(Error::Missing(_) | Error::Malformed { .. }) => {
                // A frame has another place by now, or none.
                self.laid().retain(|(of, _)| of != content);
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
        for (_, place) in &ranges[first.saturating_sub(1)..] {
            if filled == buf.len() {
                break;
            }
            let decoded = self.decoded(place)?;
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

    /// Where the ranges of a content are. One that is in a single frame is not looked for in it.
    fn ranges(&self, content: &FileDigest) -> Result<Arc<Ranges>, Error> {
        {
            let mut laid = self.laid();
            if let Some(at) = laid.iter().position(|(of, _)| of == content)
                && let Some(found) = laid.remove(at)
            {
                let ranges = found.1.clone();
                laid.push_front(found);
                return Ok(ranges);
            }
        }
        let places = self.known.get(content)?;
        if let [place] = places[..] {
            return Ok(Arc::new(vec![(0, place)]));
        }
        let mut ranges = Ranges::with_capacity(places.len());
        for place in places {
            let frame = self.packs.frame(&place)?;
            let parts = frame.members.iter().filter(|part| part.content == *content);
            ranges.extend(parts.map(|part| (part.offset, place)));
        }
        ranges.sort_by_key(|(begin, _)| *begin);
        let ranges = Arc::new(ranges);
        let mut laid = self.laid();
        laid.push_front((*content, ranges.clone()));
        laid.truncate(LAID);
        Ok(ranges)
    }

    fn laid(&self) -> std::sync::MutexGuard<'_, VecDeque<(FileDigest, Arc<Ranges>)>> {
        self.laid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Contents {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        match self.packed_size(content).or_else(absent)? {
            None => self.layers.size(content),
            found => Ok(found),
        }
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let filled = self
            .read_packed(content, offset, buf)
            .or_else(|error| absent::<usize>(error).map(|_| 0))?;
        if filled == buf.len() && filled > 0 {
            return Ok(());
        }
        let at = offset.saturating_add(filled as u64);
        match self.layers.read_at(content, at, &mut buf[filled..]) {
            // It may be in packs alone: then it was asked for beyond its end, or part of it is lost.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let end = offset.saturating_add(buf.len() as u64);
                match self.packed_size(content).or_else(absent)? {
                    Some(size) if end > size => Err(io::ErrorKind::UnexpectedEof.into()),
                    Some(_) if buf.is_empty() => Ok(()),
                    _ => Err(error),
                }
            }
            other => other,
        }
    }
}

impl Recent {
    fn get(&mut self, place: &RecordLocation) -> Option<Arc<Decoded>> {
        let at = self.frames.iter().position(|(of, _)| of == place)?;
        let found = self.frames.remove(at)?;
        let decoded = found.1.clone();
        self.frames.push_front(found);
        Some(decoded)
    }

    fn put(&mut self, place: RecordLocation, decoded: Arc<Decoded>) {
        if decoded.bytes.len() > self.most || self.frames.iter().any(|(of, _)| *of == place) {
            return;
        }
        self.bytes += decoded.bytes.len();
        self.frames.push_front((place, decoded));
        while self.bytes > self.most {
            let Some((_, last)) = self.frames.pop_back() else {
                break;
            };
            self.bytes -= last.bytes.len();
        }
    }
}

/// What packs no longer have is looked for in the layers.
fn absent<T>(error: Error) -> io::Result<Option<T>> {
    match error {
        Error::Missing(_) | Error::Malformed { .. } => Ok(None),
        Error::Io { source, .. } => Err(source),
        other => Err(io::Error::other(other)),
    }
}
