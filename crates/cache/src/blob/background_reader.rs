//! Reads committed blobs for background work. The reads block the caller's thread and do not count
//! as accesses for eviction.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

use crate::blob::open_blob::OpenBlob;
use crate::tier::CHUNK;

/// Reads a committed blob, and verifies every byte against the checksums of the blob. A reader
/// stays usable after the eviction of the blob.
pub struct BackgroundReader {
    open: Arc<OpenBlob>,
    /// Number and bytes of the chunk that was verified last. Short sequential reads thus read each
    /// chunk only once.
    last: Mutex<(u64, Vec<u8>)>,
}

impl BackgroundReader {
    pub(crate) fn new(open: Arc<OpenBlob>) -> Self {
        Self {
            open,
            last: Mutex::new((u64::MAX, Vec::new())),
        }
    }

    /// Returns the size of the content in bytes.
    pub fn size(&self) -> u64 {
        self.open.blob.trailer().size()
    }

    /// Fills `buf` with the content from `offset`. Reads and verifies whole chunks. Blocks.
    ///
    /// # Errors
    /// `UnexpectedEof` when the blob ends earlier. `InvalidData` when the blob is corrupt; the
    /// cache has then removed the blob. Any other error is an error of the disk.
    pub fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let size = self.size();
        let wanted = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        if offset.checked_add(wanted).is_none_or(|end| end > size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let chunk = CHUNK as u64;
        let mut last = self.last.lock();
        while !buf.is_empty() {
            let index = offset / chunk;
            if last.0 != index {
                // A failed read leaves partial data in the buffer, so the buffer is marked as
                // holding no chunk.
                last.0 = u64::MAX;
                let len = (size - index * chunk).min(chunk);
                last.1.resize(usize::try_from(len).unwrap_or(CHUNK), 0);
                self.read_chunk(index, &mut last.1)?;
                last.0 = index;
            }
            let inside = usize::try_from(offset - index * chunk).unwrap_or(CHUNK);
            let part = &last.1[inside..];
            let len = part.len().min(buf.len());
            let (now, rest) = std::mem::take(&mut buf).split_at_mut(len);
            now.copy_from_slice(&part[..len]);
            (buf, offset) = (rest, offset + now.len() as u64);
        }
        Ok(())
    }

    fn read_chunk(&self, index: u64, into: &mut [u8]) -> io::Result<()> {
        let read = self.open.blob.read_at(index * CHUNK as u64, into);
        let damage = match read {
            Ok(()) if self.open.blob.trailer().sums().check(index, into) => return Ok(()),
            Ok(()) => io::Error::new(io::ErrorKind::InvalidData, "a stored blob is damaged"),
            Err(error) if crate::tier::is_damage(&error) => error,
            Err(error) => return Err(error),
        };
        self.open.report_damage(Some(index * CHUNK as u64));
        Err(damage)
    }
}
