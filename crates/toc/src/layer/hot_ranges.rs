//! Finds the hot ranges of a layer: the ranges of its compressed blob that must be read to get some
//! file contents, such as those that a container start reads. Reads these contents, and records
//! which bytes of the blob are read.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Blob, Error, FileDigest, Source as _};

use super::pace::Pace;
use super::stored::LayerIndex;

/// Number of bytes of a content that one read returns.
const PIECE: usize = 256 << 10;

/// A blob that records which of its ranges are read.
struct RecordingBlob {
    blob: Arc<dyn Blob>,
    read: Mutex<Vec<Range<u64>>>,
}

impl Blob for RecordingBlob {
    fn size(&self) -> u64 {
        self.blob.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.blob.read_at(offset, buf)?;
        let end = offset.saturating_add(buf.len() as u64);
        let mut read = self.read.lock();
        match read.last_mut() {
            Some(last) if (last.start..=last.end).contains(&offset) => last.end = last.end.max(end),
            _ => read.push(offset..end),
        }
        Ok(())
    }
}

impl LayerIndex {
    /// Returns the ranges of the layer's blob that a reader needs for these contents, in order and
    /// disjoint. Contents of other layers are ignored. In a compressed layer, a reader needs the
    /// bytes from the previous checkpoint on: on average 2 MiB of the tar, and for zstd the whole
    /// frame up to the content. This method reads and decodes the ranges.
    ///
    /// # Errors
    /// Errors of the index and of the blob, and [`Error::Stopped`] from `pace`.
    pub fn hot_ranges(
        &self,
        blob: Arc<dyn Blob>,
        contents: &[FileDigest],
        pace: &mut dyn Pace,
    ) -> Result<Vec<Range<u64>>, Error> {
        let mut rows = Vec::with_capacity(contents.len());
        for content in contents {
            rows.extend(
                self.row(content)?
                    .map(|row| (row.offset, row.content, row.size)),
            );
        }
        // Sorts the contents by their position in the tar, so that no byte is decoded twice.
        rows.sort_unstable_by_key(|row| row.0);
        let recorder = Arc::new(RecordingBlob {
            blob,
            read: Mutex::default(),
        });
        let reader = self.reader(recorder.clone());
        let mut buffer = vec![0; PIECE];
        for (_, content, size) in rows {
            let mut offset = 0;
            while offset < size {
                let left = usize::try_from(size - offset).unwrap_or(PIECE);
                let piece = &mut buffer[..left.min(PIECE)];
                let read = reader.read_at(&content, offset, piece);
                read.map_err(|error| Error::io("read a layer", error))?;
                offset += piece.len() as u64;
                pace.pause(piece.len() as u64)?;
            }
        }
        drop(reader);
        let mut read = recorder.read.lock();
        let mut read = std::mem::take(&mut *read);
        read.sort_unstable_by_key(|range| range.start);
        read.dedup_by(|later, range| {
            let is_adjacent = later.start <= range.end;
            if is_adjacent {
                range.end = range.end.max(later.end);
            }
            is_adjacent
        });
        Ok(read)
    }
}
