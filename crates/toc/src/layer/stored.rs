//! A finished layer index: opened, checked as it is read, never loaded whole.

use std::io;
use std::path::Path;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest};
use serde::{Deserialize, Serialize};

use crate::{Blob, Entry, Error, FileDigest, Kind};

use super::blocks::{Reader, Stream};
use super::chunks::{self, Chunk};
use super::decoder::Coding;
use super::reader::LayerReader;
use super::record::{self, Item};
use super::stream::Point;

/// What an index says of its layer as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) coding: Coding,
    pub(super) blob_size: u64,
    pub(super) size: u64,
    pub(super) diff_id: [u8; 32],
    pub(super) skeleton: [u8; 32],
    pub(super) skeleton_size: u64,
    pub(super) entries: u64,
    pub(super) files: u64,
    pub(super) contents: u64,
    /// What reading may use for the window of a zstd frame.
    pub(super) max_window: u64,
}

/// Where a content lies in the uncompressed tar: one row of the index, in the order of digests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) content: FileDigest,
    /// First byte in the tar of what is stored of it.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Number of its first extent and how many: none unless it is sparse.
    pub(super) extents: (u32, u32),
    /// The same for its chunks.
    pub(super) chunks: (u32, u32),
}

/// Bytes of a [`Row`].
pub(super) const ROW: usize = 64;

/// Bytes of an extent: where its data begins in the file, and how long it is.
pub(super) const EXTENT: usize = 16;

impl Row {
    pub(super) fn encode(&self) -> [u8; ROW] {
        let mut out = [0; ROW];
        out[..32].copy_from_slice(self.content.as_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.size.to_le_bytes());
        let words = [self.extents.0, self.extents.1, self.chunks.0, self.chunks.1];
        for (into, word) in out[48..].chunks_exact_mut(4).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; ROW]) -> Self {
        let mut content = [0; 32];
        content.copy_from_slice(&bytes[..32]);
        let word = |at: usize| {
            let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_le_bytes(bytes)
        };
        Self {
            content: FileDigest::from_bytes(content),
            offset: little(&bytes[32..40]),
            size: little(&bytes[40..48]),
            extents: (word(48), word(52)),
            chunks: (word(56), word(60)),
        }
    }
}

/// The first eight bytes of a digest: what the rows' blocks are found by.
pub(super) fn prefix(content: &FileDigest) -> u64 {
    content.as_bytes()[..8]
        .iter()
        .fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A little-endian number of up to 8 bytes.
pub(super) fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// The index of one layer. Cheap to clone; `Send` and `Sync`. Holds 32 bytes for each 64 KiB of the file.
#[derive(Clone, Debug)]
pub struct LayerIndex {
    pub(super) file: Arc<Reader>,
    pub(super) summary: Arc<Summary>,
}

impl LayerIndex {
    /// Opens what [`super::index`] wrote.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is damaged, [`Error::Io`]. Damage further in shows when it is read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, summary) = Reader::open(path)?;
        Ok(Self {
            file: Arc::new(file),
            summary: Arc::new(summary),
        })
    }

    /// SHA-256 of the uncompressed tar, as checked.
    pub fn diff_id(&self) -> Digest {
        FileDigest::from_bytes(self.summary.diff_id).into()
    }

    /// Bytes of the uncompressed tar.
    pub fn size(&self) -> u64 {
        self.summary.size
    }

    /// Bytes of the blob.
    pub fn blob_size(&self) -> u64 {
        self.summary.blob_size
    }

    /// How many [`LayerIndex::entries`] there are.
    pub fn entry_count(&self) -> u64 {
        self.summary.entries
    }

    /// How many [`LayerIndex::files`] there are.
    pub fn file_count(&self) -> u64 {
        self.summary.files
    }

    /// How many different contents the files have.
    pub fn content_count(&self) -> u64 {
        self.summary.contents
    }

    /// The skeleton, a content like any other, and its size. [`LayerIndex::reader`] reads it.
    pub fn skeleton(&self) -> (FileDigest, u64) {
        (
            FileDigest::from_bytes(self.summary.skeleton),
            self.summary.skeleton_size,
        )
    }

    /// All entries in the order of the tar, duplicates included: the last one of a path counts.
    /// Holds one block at a time.
    pub fn entries(&self) -> Entries {
        Entries(self.items())
    }

    /// Digest and size of each regular file that is not empty, in the order of the tar, duplicates and hidden ones
    /// included: what [`super::rebuild`] wants. More than the entries tell, for a file may be no entry.
    pub fn files(&self) -> Files {
        Files(self.items())
    }

    fn items(&self) -> Items {
        Items {
            file: self.file.clone(),
            block: Vec::new(),
            at: 0,
            next: 0,
            path: Vec::new(),
            failed: false,
        }
    }

    /// The chunks of a content, one after the other from its first byte to its last; none when it is shorter than
    /// [`chunks::CHUNKED_FROM`] or not of this layer. 44 bytes each.
    ///
    /// # Errors
    /// Those of the index file.
    pub fn chunks(&self, content: &FileDigest) -> Result<Vec<Chunk>, Error> {
        let Some(row) = self.row(content)? else {
            return Ok(Vec::new());
        };
        let mut offset = 0;
        let mut all = Vec::new();
        self.records::<{ chunks::RECORD }>(Stream::Chunks, row.chunks, |record| {
            let chunk = Chunk::decode(record, offset);
            offset += u64::from(chunk.len);
            all.push(chunk);
        })?;
        Ok(all)
    }

    /// Reads contents out of the layer's blob, which must be the one that was indexed. Bounded memory: below 2 MiB
    /// beside the checkpoints (24 bytes for each 4 MiB) and, if the layer is zstd, its windows.
    pub fn reader(&self, blob: Arc<dyn Blob>) -> LayerReader {
        LayerReader::new(self.clone(), blob)
    }

    /// Whether it has a content. Reads one block, two at worst.
    ///
    /// # Errors
    /// Those of the index file.
    pub fn holds(&self, content: &FileDigest) -> Result<bool, Error> {
        self.row(content).map(|row| row.is_some())
    }

    /// Where a content lies. Reads one block, two at worst.
    pub(super) fn row(&self, content: &FileDigest) -> Result<Option<Row>, Error> {
        let key = prefix(content);
        // Rows with the same prefix may begin at the end of the block before.
        let mut number = self.file.find(Stream::Contents, key, false);
        while self
            .file
            .key(Stream::Contents, number)
            .is_some_and(|first| first <= key)
        {
            let block = self
                .file
                .read(Stream::Contents, number)?
                .unwrap_or_default();
            let (rows, _) = block.as_chunks::<ROW>();
            if let Ok(found) = rows.binary_search_by(|row| row[..32].cmp(&content.as_bytes()[..])) {
                return Ok(Some(Row::decode(&rows[found])));
            }
            number += 1;
        }
        Ok(None)
    }

    /// Calls `each` with the records of a stream of fixed-size ones, from the first number on.
    pub(super) fn records<const N: usize>(
        &self,
        stream: Stream,
        (first, count): (u32, u32),
        mut each: impl FnMut(&[u8; N]),
    ) -> Result<(), Error> {
        let (mut at, end) = (u64::from(first), u64::from(first) + u64::from(count));
        let mut number = self.file.find(stream, at, true);
        while at < end {
            let missing = || Error::malformed("layer index", "a record is missing");
            let begins = self.file.key(stream, number).ok_or_else(missing)?;
            let block = self.file.read(stream, number)?.ok_or_else(missing)?;
            let (records, _) = block.as_chunks::<N>();
            let skip = at.checked_sub(begins).ok_or_else(missing)?;
            let skip = usize::try_from(skip).map_err(|_| missing())?;
            for record in records.get(skip..).ok_or_else(missing)? {
                if at == end {
                    break;
                }
                each(record);
                at += 1;
            }
            number += 1;
        }
        Ok(())
    }

    /// All checkpoints in order.
    pub(super) fn points(&self) -> Result<Vec<Point>, Error> {
        let mut all = Vec::new();
        for number in 0..self.file.blocks(Stream::Points) {
            let block = self.file.read(Stream::Points, number)?.unwrap_or_default();
            let mut rest = &block[..];
            while !rest.is_empty() {
                let (point, after) = postcard::take_from_bytes(rest).map_err(super::blocks::bug)?;
                rest = after;
                all.push(point);
            }
        }
        Ok(all)
    }
}

struct Items {
    file: Arc<Reader>,
    block: Vec<u8>,
    at: usize,
    next: usize,
    path: Vec<u8>,
    failed: bool,
}

impl Iterator for Items {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.advance().transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}

impl Items {
    fn advance(&mut self) -> Result<Option<Item>, Error> {
        if self.at == self.block.len() {
            let Some(block) = self.file.read(Stream::Entries, self.next)? else {
                return Ok(None);
            };
            self.next += 1;
            self.at = 0;
            self.block = block;
            self.path.clear();
        }
        let mut rest = &self.block[self.at..];
        let item = record::decode(&mut rest, &mut self.path)?;
        self.at = self.block.len() - rest.len();
        Ok(Some(item))
    }
}

/// See [`LayerIndex::entries`]. Ends after its first error.
pub struct Entries(Items);

impl Iterator for Entries {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.by_ref().find_map(|item| match item {
            Ok(Item::Entry(entry)) => Some(Ok(entry)),
            Ok(Item::Unseen(..)) => None,
            Err(error) => Some(Err(error)),
        })
    }
}

/// See [`LayerIndex::files`]. Ends after its first error.
pub struct Files(Items);

impl Iterator for Files {
    type Item = Result<(FileDigest, u64), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.by_ref().find_map(|item| {
            let (content, size) = match item {
                Ok(Item::Entry(Entry {
                    kind: Kind::File { content, size },
                    ..
                })) => (content, size),
                Ok(Item::Unseen(content, size)) => (content, size),
                Ok(Item::Entry(_)) => return None,
                Err(error) => return Some(Err(error)),
            };
            (size > 0).then_some(Ok((content, size)))
        })
    }
}

/// As the trait of sources wants errors.
pub(super) fn as_io(error: Error) -> io::Error {
    match error {
        Error::Io { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// The raw hash of a SHA-256.
pub(super) fn raw(digest: &Digest) -> Option<[u8; 32]> {
    (digest.algorithm() == Algorithm::Sha256)
        .then(|| digest.as_bytes().try_into().ok())
        .flatten()
}
