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

#[cfg(test)]
mod tests {
    use super::*;

    /// The chunks of `bytes`, which are fed in pieces of these lengths in turn.
    fn chunks(bytes: &[u8], pieces: &[usize]) -> Vec<Chunk> {
        let (mut all, mut cutter, mut rest) = (Vec::new(), Cutter::new(), bytes);
        let mut offset = 0;
        let mut add = |record: &[u8; RECORD]| {
            let chunk = Chunk::decode(record, offset);
            offset += u64::from(chunk.len);
            all.push(chunk);
            Ok(())
        };
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*piece));
            cutter.feed(now, &mut add).unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        cutter.end(&mut add).unwrap();
        all
    }

    fn random(seed: u64, len: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..len).map(|_| random.u8(..)).collect()
    }

    #[test]
    fn chunks_are_the_content_whatever_the_pieces_are() {
        for (seed, len) in [
            (1, 0),
            (2, 1),
            (3, CHUNK_MIN),
            (4, 3 << 20),
            (5, 2 * CHUNK_MAX),
        ] {
            let bytes = random(seed, len);
            let all = chunks(&bytes, &[usize::MAX]);
            assert_eq!(all, chunks(&bytes, &[1, 700, CHUNK_MAX, 2 * CHUNK_MAX + 1]));
            let mut end = 0;
            for (nth, chunk) in all.iter().enumerate() {
                let is_last = nth + 1 == all.len();
                let size = chunk.len as usize;
                assert!(
                    size <= CHUNK_MAX && (size >= CHUNK_MIN || is_last),
                    "{size}"
                );
                let part = &bytes[end..end + size];
                assert_eq!(
                    (chunk.offset, chunk.content),
                    (end as u64, FileDigest::of(part))
                );
                end += size;
            }
            assert_eq!(end, len);
        }
    }

    #[test]
    fn an_insertion_changes_few_chunks_and_equal_bytes_are_bounded() {
        let old = random(6, 4 << 20);
        let mut new = old.clone();
        new.splice(1_000_000..1_000_000, *b"inserted");
        let contents = |bytes: &[u8]| -> std::collections::HashSet<_> {
            chunks(bytes, &[1 << 20])
                .iter()
                .map(|it| it.content)
                .collect()
        };
        let (before, after) = (contents(&old), contents(&new));
        assert!(after.difference(&before).count() <= 3);
        // Bytes without a boundary are cut at the maximum size.
        let zeros = chunks(&vec![0; 3 * CHUNK_MAX], &[usize::MAX]);
        assert!(zeros.iter().all(|it| it.len as usize <= CHUNK_MAX) && zeros.len() >= 3);
    }

    #[test]
    fn an_error_of_the_receiver_ends_the_cut() {
        let mut cutter = Cutter::new();
        let refuse = &mut |_: &[u8; RECORD]| Err(Error::Stopped);
        cutter.feed(b"few bytes wait for the end", refuse).unwrap();
        assert!(matches!(cutter.end(refuse), Err(Error::Stopped)));
    }
}
