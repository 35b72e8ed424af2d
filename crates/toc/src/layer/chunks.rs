//! Cuts large files into content-defined chunks, so that two versions of a file have many chunks in
//! common.

use fastcdc::v2020::FastCDC;

use crate::{Error, FileDigest};

/// Minimum size in bytes of a content that is cut into chunks.
pub const CHUNKED_FROM: u64 = 256 << 10;

/// Minimum size of a chunk in bytes, except for the last chunk of a content.
pub const CHUNK_MIN: usize = 16 << 10;

/// Average size of a chunk in bytes.
pub const CHUNK_AVERAGE: usize = 64 << 10;

/// Maximum size of a chunk in bytes.
pub const CHUNK_MAX: usize = 256 << 10;

/// Number of bytes that a chunk takes in the index: digest and length.
pub(super) const RECORD: usize = 36;

/// A content-defined chunk of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// SHA-256 hash of the chunk's bytes.
    pub content: FileDigest,
    /// Offset of the chunk in its content.
    pub offset: u64,
    /// Length of the chunk in bytes.
    pub len: u32,
}

impl Chunk {
    pub(super) fn decode(record: &[u8; RECORD], offset: u64) -> Self {
        let mut content = [0; 32];
        content.copy_from_slice(&record[..32]);
        let mut len = [0; 4];
        len.copy_from_slice(&record[32..]);
        Self {
            content: FileDigest::from_bytes(content),
            offset,
            len: u32::from_le_bytes(len),
        }
    }
}

/// Cuts contents into chunks. The caller feeds each content in pieces of any length. The buffer
/// takes up to two chunks of maximum size.
pub(super) struct Cutter {
    held: Vec<u8>,
}

impl Cutter {
    pub(super) fn new() -> Self {
        Self { held: Vec::new() }
    }

    /// Takes the next bytes of the content, and passes the record of each complete chunk to `each`.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        each: &mut dyn FnMut(&[u8; RECORD]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(2 * CHUNK_MAX - self.held.len()));
            self.held.extend_from_slice(now);
            bytes = later;
            if self.held.len() == 2 * CHUNK_MAX {
                self.cut(CHUNK_MAX, each)?;
            }
        }
        Ok(())
    }

    /// Ends the content, and passes the record of its last chunks to `each`.
    pub(super) fn end(
        &mut self,
        each: &mut dyn FnMut(&[u8; RECORD]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.cut(1, each)
    }

    /// Cuts chunks while the buffer has at least `least` bytes.
    fn cut(
        &mut self,
        least: usize,
        each: &mut dyn FnMut(&[u8; RECORD]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let cutter = FastCDC::new(&self.held, CHUNK_MIN, CHUNK_AVERAGE, CHUNK_MAX);
        let mut at = 0;
        while self.held.len() - at >= least {
            let (_, end) = cutter.cut(at, self.held.len() - at);
            let chunk = &self.held[at..end];
            let mut record = [0; RECORD];
            record[..32].copy_from_slice(FileDigest::of(chunk).as_bytes());
            let len = u32::try_from(chunk.len()).unwrap_or(0);
            record[32..].copy_from_slice(&len.to_le_bytes());
            each(&record)?;
            at = end;
        }
        self.held.drain(..at);
        Ok(())
    }
}
