//! Reads a finished layer index. A block is read and verified when it is used, so the whole index
//! is never in memory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest};
use serde::{Deserialize, Serialize};

use crate::{Blob, Entry, Error, FileDigest, Kind};

use super::blocks::{IndexReader, Stream};
use super::chunks::{self, Chunk};
use super::decoder::Coding;
use super::reader::LayerReader;
use super::record::{self, Item};
use super::stream::Checkpoint;

/// The properties of the whole layer in its index.
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
    /// Maximum window of a zstd frame that readers allow, in bytes.
    pub(super) max_window: u64,
}

/// One row of the index: the position of a content in the uncompressed tar. Rows are sorted by
/// digest.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentRow {
    pub(super) content: FileDigest,
    /// Offset of the content's stored bytes in the tar.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The number of the content's first extent, and how many extents the content has. A file that
    /// is not sparse has no extents.
    pub(super) extents: (u32, u32),
    /// The number of the content's first chunk, and how many chunks the content has.
    pub(super) chunks: (u32, u32),
}

/// Number of bytes of a [`ContentRow`] in the index.
pub(super) const ROW: usize = 64;

/// Number of bytes of an extent in the index: offset in the file, and length.
pub(super) const EXTENT: usize = 16;

impl ContentRow {
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

/// Returns the first eight bytes of a digest. These bytes are the key by which the block with the
/// content's row is found.
pub(super) fn prefix(content: &FileDigest) -> u64 {
    content.as_bytes()[..8]
        .iter()
        .fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Reads a little-endian number of up to 8 bytes.
pub(super) fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// The index of one layer. All clones share one open file. An index takes 32 bytes of memory per 64
/// KiB of its file.
#[derive(Clone, Debug)]
pub struct LayerIndex {
    pub(super) file: Arc<IndexReader>,
    pub(super) summary: Arc<Summary>,
}

impl LayerIndex {
    /// Opens a file that [`super::index`] wrote.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the file's directory of blocks is damaged, and [`Error::Io`] for
    /// errors of the disk. A damaged block is detected only when it is read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, summary) = IndexReader::open(path)?;
        Ok(Self {
            file: Arc::new(file),
            summary: Arc::new(summary),
        })
    }

    /// Returns the SHA-256 hash of the uncompressed tar, which indexing verified.
    pub fn diff_id(&self) -> Digest {
        FileDigest::from_bytes(self.summary.diff_id).into()
    }

    /// Returns the size of the uncompressed tar in bytes.
    pub fn size(&self) -> u64 {
        self.summary.size
    }

    /// Returns the size of the layer's blob in bytes.
    pub fn blob_size(&self) -> u64 {
        self.summary.blob_size
    }

    /// Returns the number of [`LayerIndex::entries`].
    pub fn entry_count(&self) -> u64 {
        self.summary.entries
    }

    /// Returns the number of [`LayerIndex::files`].
    pub fn file_count(&self) -> u64 {
        self.summary.files
    }

    /// Returns the number of distinct file contents.
    pub fn content_count(&self) -> u64 {
        self.summary.contents
    }

    /// Returns digest and size of the skeleton (the tar without file contents).
    /// [`LayerIndex::reader`] reads the skeleton like a file content.
    pub fn skeleton(&self) -> (FileDigest, u64) {
        (
            FileDigest::from_bytes(self.summary.skeleton),
            self.summary.skeleton_size,
        )
    }

    /// Returns all entries in the order of the tar, including duplicates. If a path occurs several
    /// times, its last entry counts. The iterator holds one block at a time.
    pub fn entries(&self) -> Entries {
        Entries(self.items())
    }

    /// Returns digest and size of each regular file that is not empty, in the order of the tar,
    /// including duplicates and hidden files. [`super::rebuild`] needs this list, which also has
    /// files that are not entries of the tree.
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

    /// Returns the chunks of a content, in order. Each chunk takes 44 bytes of memory. The list is
    /// empty for a content that the layer lacks, or that has less than [`chunks::CHUNKED_FROM`]
    /// bytes.
    ///
    /// # Errors
    /// Errors of the index file.
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

    /// Returns a reader of contents from the blob that was indexed. The reader takes less than 2
    /// MiB of memory, plus the checkpoints (24 bytes per 4 MiB), plus the windows of a zstd layer.
    pub fn reader(&self, blob: Arc<dyn Blob>) -> LayerReader {
        LayerReader::new(self.clone(), blob)
    }

    /// Whether the layer has a content. Reads at most two blocks.
    ///
    /// # Errors
    /// Errors of the index file.
    pub fn holds(&self, content: &FileDigest) -> Result<bool, Error> {
        self.row(content).map(|row| row.is_some())
    }

    /// Returns the row of a content in the index. Reads at most two blocks.
    pub(super) fn row(&self, content: &FileDigest) -> Result<Option<ContentRow>, Error> {
        let key = prefix(content);
        // Rows with the same prefix may start in the previous block.
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
                return Ok(Some(ContentRow::decode(&rows[found])));
            }
            number += 1;
        }
        Ok(None)
    }

    /// Calls `each` with `count` records of a stream with fixed-size records, from the record
    /// number `first` on.
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

    /// Returns all checkpoints of the layer, in order.
    pub(super) fn checkpoints(&self) -> Result<Vec<Checkpoint>, Error> {
        let mut all = Vec::new();
        for number in 0..self.file.blocks(Stream::Checkpoints) {
            let block = self
                .file
                .read(Stream::Checkpoints, number)?
                .unwrap_or_default();
            let mut rest = &block[..];
            while !rest.is_empty() {
                let (checkpoint, after) =
                    postcard::take_from_bytes(rest).map_err(super::blocks::bug)?;
                rest = after;
                all.push(checkpoint);
            }
        }
        Ok(all)
    }
}

struct Items {
    file: Arc<IndexReader>,
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

/// The iterator that [`LayerIndex::entries`] returns. The iterator ends after its first error.
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

/// The iterator that [`LayerIndex::files`] returns. The iterator ends after its first error.
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

/// Converts an error for the trait [`Source`](crate::Source).
pub(super) fn as_io(error: Error) -> io::Error {
    match error {
        Error::Io { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// Returns the raw hash of a SHA-256 digest.
pub(super) fn raw(digest: &Digest) -> Option<[u8; 32]> {
    (digest.algorithm() == Algorithm::Sha256)
        .then(|| digest.as_bytes().try_into().ok())
        .flatten()
}
