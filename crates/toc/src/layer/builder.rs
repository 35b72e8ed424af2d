//! Writes a layer index during the walk over the tar. Only the rows of file contents (64 bytes
//! each) take memory that grows with the layer.

use std::path::{Path, PathBuf};

use pierhead_oci::{Algorithm, Hasher};

use crate::{Entry, Error, FileDigest};

use super::blocks::{Stream, Writer};
use super::chunks::RECORD;
use super::decoder::Coding;
use super::record;
use super::skeleton::Encoder;
use super::stored::{ContentRow, EXTENT, LayerIndex, Summary, prefix, raw};
use super::stream::{self, Checkpoint, FoundCheckpoint};

/// The properties of the whole layer, which the walk determines.
pub(super) struct Outcome {
    pub(super) coding: Coding,
    pub(super) blob_size: u64,
    pub(super) size: u64,
    pub(super) diff_id: [u8; 32],
    pub(super) max_window: u64,
}

pub(super) struct Builder {
    file: Writer,
    out: PathBuf,
    /// The path of the previous entry in the same block.
    before: Vec<u8>,
    record: Vec<u8>,
    rows: Vec<ContentRow>,
    chunks: u32,
    extents: u32,
    windows: u32,
    checkpoints: u64,
    entries: u64,
    files: u64,
    skeleton: Encoder,
    skeleton_hash: Hasher,
    skeleton_size: u64,
    /// Bytes of the skeleton (the tar without file contents) that are not written yet.
    operations: Vec<u8>,
}

impl Builder {
    pub(super) fn create(out: &Path) -> Result<Self, Error> {
        let file = Writer::create(out)?;
        let mut operations = Vec::new();
        let skeleton = Encoder::begin(&mut operations);
        Ok(Self {
            file,
            out: out.to_owned(),
            before: Vec::new(),
            record: Vec::new(),
            rows: Vec::new(),
            chunks: 0,
            extents: 0,
            windows: 0,
            checkpoints: 0,
            entries: 0,
            files: 0,
            skeleton,
            skeleton_hash: Hasher::new(Algorithm::Sha256),
            skeleton_size: 0,
            operations,
        })
    }

    pub(super) fn entry(&mut self, entry: &Entry) -> Result<(), Error> {
        self.entries += 1;
        self.record.clear();
        record::encode(entry, &self.before, &mut self.record)?;
        // If the block has no room, a new block starts. In a new block, the record shares no prefix
        // with the previous record.
        self.file.make_room(Stream::Entries, self.record.len())?;
        if self.file.begins_block(Stream::Entries) {
            self.record.clear();
            record::encode(entry, &[], &mut self.record)?;
        }
        self.before.clone_from(&entry.path);
        let key = self.entries;
        self.file.put(Stream::Entries, key, &self.record)
    }

    /// Adds a file of the tar that is not an entry of the tree.
    pub(super) fn file_without_entry(
        &mut self,
        content: FileDigest,
        size: u64,
    ) -> Result<(), Error> {
        self.record.clear();
        record::encode_unseen(content, size, &mut self.record)?;
        self.file.make_room(Stream::Entries, self.record.len())?;
        if self.file.begins_block(Stream::Entries) {
            self.before.clear();
        }
        let key = self.entries;
        self.file.put(Stream::Entries, key, &self.record)
    }

    /// Returns the numbers of chunks and extents so far. The caller asks for these numbers before a
    /// content, so that it knows which chunks and extents belong to the content.
    pub(super) fn marks(&self) -> (u32, u32) {
        (self.chunks, self.extents)
    }

    pub(super) fn chunk(&mut self, record: &[u8; RECORD]) -> Result<(), Error> {
        self.file
            .put(Stream::Chunks, u64::from(self.chunks), record)?;
        self.chunks = next(self.chunks)?;
        Ok(())
    }

    pub(super) fn extent(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        let mut record = [0; EXTENT];
        record[..8].copy_from_slice(&offset.to_le_bytes());
        record[8..].copy_from_slice(&len.to_le_bytes());
        self.file
            .put(Stream::Extents, u64::from(self.extents), &record)?;
        self.extents = next(self.extents)?;
        Ok(())
    }

    /// Adds a content that was read completely. `marks` are the numbers of chunks and extents
    /// before this content.
    pub(super) fn content(
        &mut self,
        content: FileDigest,
        offset: u64,
        size: u64,
        marks: (u32, u32),
    ) {
        self.files += u64::from(size > 0);
        self.rows.push(ContentRow {
            content,
            offset,
            size,
            chunks: (marks.0, self.chunks - marks.0),
            extents: (marks.1, self.extents - marks.1),
        });
    }

    /// Appends operations to the skeleton.
    pub(super) fn skeleton(
        &mut self,
        operation: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> Result<(), Error> {
        operation(&mut self.skeleton, &mut self.operations);
        if self.operations.len() >= stream::INPUT {
            self.settle()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.skeleton_hash.update(&self.operations);
        for part in self.operations.chunks(super::blocks::BLOCK) {
            self.file.put(Stream::Skeleton, self.skeleton_size, part)?;
            self.skeleton_size += part.len() as u64;
        }
        self.operations.clear();
        Ok(())
    }

    /// Adds a checkpoint (a position at which decoding can start).
    pub(super) fn checkpoint(&mut self, found: FoundCheckpoint) -> Result<(), Error> {
        let mut checkpoint = Checkpoint {
            at: found.at,
            blob_at: found.blob_at,
            window: None,
        };
        if let Some((bits, byte, window)) = found.window {
            checkpoint.window = Some(stream::BlockStart {
                block: self.windows,
                bits,
                byte,
            });
            let key = u64::from(self.windows);
            self.file.put(Stream::Windows, key, &window)?;
            self.file.flush(Stream::Windows)?;
            self.windows = next(self.windows)?;
        }
        let record = postcard::to_stdvec(&checkpoint).map_err(super::blocks::bug)?;
        self.file
            .put(Stream::Checkpoints, self.checkpoints, &record)?;
        self.checkpoints += 1;
        Ok(())
    }

    /// Writes the remaining data, and opens the finished layer index.
    pub(super) fn finish(mut self, outcome: Outcome) -> Result<LayerIndex, Error> {
        self.skeleton(Encoder::end)?;
        self.settle()?;
        // If several rows are of equal contents, only the first of these rows is kept.
        self.rows
            .sort_unstable_by_key(|row| (row.content, row.offset));
        self.rows.dedup_by_key(|row| row.content);
        for row in &self.rows {
            self.file
                .put(Stream::Contents, prefix(&row.content), &row.encode())?;
        }
        let skeleton = raw(&self.skeleton_hash.finish()).unwrap_or_default();
        let summary = Summary {
            coding: outcome.coding,
            blob_size: outcome.blob_size,
            size: outcome.size,
            diff_id: outcome.diff_id,
            skeleton,
            skeleton_size: self.skeleton_size,
            entries: self.entries,
            files: self.files,
            contents: self.rows.len() as u64,
            max_window: outcome.max_window,
        };
        self.file.finish(&summary)?;
        LayerIndex::open(&self.out)
    }
}

fn next(number: u32) -> Result<u32, Error> {
    number
        .checked_add(1)
        .ok_or_else(|| Error::Image("the layer has more than 2^32 parts".to_owned()))
}
