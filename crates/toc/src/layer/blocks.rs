//! The file format of a layer index: checksummed blocks of several streams, which are written once
//! from front to back.
//!
//! Each block has whole records of one stream, compressed with zstd when that is smaller. After the
//! blocks come a directory of all blocks and a foot of [`FOOT`] bytes. Readers and writers hold
//! only one block at a time in memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pierhead_atomic_file::{AtomicFile, Options, open_regular};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The magic of the format, whose last two digits are the version of the format.
const MAGIC: &[u8; 8] = b"phlayr01";

/// Size of a block before compression, in bytes.
pub(super) const BLOCK: usize = 64 << 10;

/// Maximum uncompressed size of a block in bytes. A block contains whole records, and the longest
/// records are extended headers.
const MAX_BLOCK: usize = 4 << 20;

/// Length of the foot: offset (8) and length (8) of the directory, its CRC-32C (4), zero (4), magic
/// (8); little endian.
const FOOT: usize = 32;

/// Maximum size of a directory in bytes: 2^20 blocks.
const MAX_DIRECTORY: u64 = 32 << 20;

const FORMAT_NAME: &str = "layer index";

/// The stream (the type of records) to which a block belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stream {
    /// The entries of the tar (paths and attributes), in the order of the tar.
    Entries,
    /// The skeleton: the tar without file contents, with which a reader rebuilds the tar.
    Skeleton,
    /// One row per distinct file content, sorted by digest: its position in the tar, and its chunks
    /// and extents.
    Contents,
    /// The content-defined chunks of large contents.
    Chunks,
    /// The extents of sparse files: offset and length of each range that has data.
    Extents,
    /// The decompressor windows (the bytes before a checkpoint, to which compressed data refers).
    Windows,
    /// The checkpoints: positions at which decoding of the compressed layer can start.
    Checkpoints,
}

const STREAM_COUNT: usize = 7;

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Row {
    stream: Stream,
    stored: u32,
    raw: u32,
    sum: u32,
    key: u64,
}

pub(super) struct Writer {
    buffer: BufWriter<File>,
    /// The temporary file of the index. Dropping the writer before `finish` deletes this file.
    file: AtomicFile<'static>,
    out: PathBuf,
    open: [(u64, Vec<u8>); STREAM_COUNT],
    directory: Vec<Row>,
    at: u64,
    zstd: zstd::bulk::Compressor<'static>,
}

impl Writer {
    pub(super) fn create(out: &Path) -> Result<Self, Error> {
        let doing = || format!("create {}", out.display());
        let failed = |e| Error::io(doing(), e);
        let file = Options::new().create(out).map_err(failed)?;
        let buffer = file.file().try_clone().map_err(failed)?;
        let zstd = zstd::bulk::Compressor::new(3).map_err(|e| Error::io("start zstd", e))?;
        let mut this = Self {
            buffer: BufWriter::with_capacity(256 << 10, buffer),
            file,
            out: out.to_owned(),
            open: Default::default(),
            directory: Vec::new(),
            at: 0,
            zstd,
        };
        this.write(MAGIC)?;
        Ok(this)
    }

    /// Appends a record, or several records that must be in one block. `key` orders the blocks of a
    /// stream. The key of a block is the key of its first record.
    pub(super) fn put(&mut self, stream: Stream, key: u64, record: &[u8]) -> Result<(), Error> {
        let (_, open) = &self.open[stream as usize];
        if !open.is_empty() && open.len() + record.len() > BLOCK {
            self.flush(stream)?;
        }
        let (first, open) = &mut self.open[stream as usize];
        if open.is_empty() {
            *first = key;
        }
        open.extend_from_slice(record);
        Ok(())
    }

    /// Whether the next record starts a new block.
    pub(super) fn begins_block(&self, stream: Stream) -> bool {
        self.open[stream as usize].1.is_empty()
    }

    /// Ends the block of a stream when a record of `len` bytes does not fit into the block.
    pub(super) fn make_room(&mut self, stream: Stream, len: usize) -> Result<(), Error> {
        let open = &self.open[stream as usize].1;
        if !open.is_empty() && open.len() + len > BLOCK {
            self.flush(stream)?;
        }
        Ok(())
    }

    /// Ends the current block of a stream.
    pub(super) fn flush(&mut self, stream: Stream) -> Result<(), Error> {
        let (key, raw) = std::mem::take(&mut self.open[stream as usize]);
        if raw.is_empty() {
            return Ok(());
        }
        let packed = self
            .zstd
            .compress(&raw)
            .map_err(|e| Error::io("compress a block", e))?;
        let bytes = if packed.len() < raw.len() {
            &packed
        } else {
            &raw
        };
        self.directory.push(Row {
            stream,
            stored: narrow(bytes.len())?,
            raw: narrow(raw.len())?,
            sum: crc32c::crc32c(bytes),
            key,
        });
        self.write(bytes)?;
        // Reuses the buffer, since the indexing of a layer fills the buffer thousands of times.
        let mut raw = raw;
        raw.clear();
        self.open[stream as usize].1 = raw;
        Ok(())
    }

    /// Writes the directory of the blocks, and gives the file its final name.
    pub(super) fn finish<S: Serialize>(mut self, summary: &S) -> Result<(), Error> {
        for stream in ALL {
            self.flush(stream)?;
        }
        let at = self.at;
        let directory = postcard::to_stdvec(&(summary, &self.directory)).map_err(bug)?;
        self.write(&directory)?;
        let mut foot = Vec::with_capacity(FOOT);
        foot.extend_from_slice(&at.to_le_bytes());
        foot.extend_from_slice(&(directory.len() as u64).to_le_bytes());
        foot.extend_from_slice(&crc32c::crc32c(&directory).to_le_bytes());
        foot.extend_from_slice(&[0; 4]);
        foot.extend_from_slice(MAGIC);
        self.write(&foot)?;
        let shown = self.out.display().to_string();
        let io = |e| Error::io(format!("write {shown}"), e);
        self.buffer.flush().map_err(io)?;
        self.file.commit().map(drop).map_err(io)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.buffer
            .write_all(bytes)
            .map_err(|e| Error::io(format!("write {}", self.out.display()), e))?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

const ALL: [Stream; STREAM_COUNT] = [
    Stream::Entries,
    Stream::Skeleton,
    Stream::Contents,
    Stream::Chunks,
    Stream::Extents,
    Stream::Windows,
    Stream::Checkpoints,
];

pub(super) fn bug(error: postcard::Error) -> Error {
    Error::malformed(FORMAT_NAME, error.to_string())
}

fn narrow(len: usize) -> Result<u32, Error> {
    u32::try_from(len).map_err(|_| Error::malformed(FORMAT_NAME, "a block of 4 GiB"))
}

/// The row of one block in the directory of the file.
#[derive(Clone, Copy, Debug)]
struct Block {
    at: u64,
    stored: u32,
    raw: u32,
    sum: u32,
    key: u64,
}

/// An open layer index. The directory of its blocks is in memory, and takes 32 bytes per block.
#[derive(Debug)]
pub(super) struct IndexReader {
    file: File,
    path: PathBuf,
    streams: [Vec<Block>; STREAM_COUNT],
}

impl IndexReader {
    /// Opens a layer index, and verifies the directory of its blocks. A block itself is verified
    /// when it is read.
    pub(super) fn open<S: for<'a> Deserialize<'a>>(path: &Path) -> Result<(Self, S), Error> {
        let io = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => Error::malformed(FORMAT_NAME, error.to_string()),
            _ => Error::io(format!("open {}", path.display()), error),
        };
        let file = open_regular(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let body = len
            .checked_sub(FOOT as u64)
            .ok_or_else(|| Error::malformed(FORMAT_NAME, "too short"))?;
        let mut foot = [0; FOOT];
        file.read_exact_at(&mut foot, body).map_err(io)?;
        let word = |at: usize| {
            foot[at..at + 8]
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b))
        };
        let (at, size) = (word(0), word(8));
        if &foot[24..] != MAGIC || size > MAX_DIRECTORY || at.checked_add(size) != Some(body) {
            return Err(Error::malformed(FORMAT_NAME, "its foot is damaged"));
        }
        let size = usize::try_from(size)
            .map_err(|_| Error::malformed(FORMAT_NAME, "directory too long"))?;
        let mut directory = vec![0; size];
        file.read_exact_at(&mut directory, at).map_err(io)?;
        if u64::from(crc32c::crc32c(&directory)) != word(16) {
            return Err(Error::malformed(FORMAT_NAME, "directory damaged"));
        }
        let (summary, rows): (S, Vec<Row>) = postcard::from_bytes(&directory).map_err(bug)?;
        let mut streams: [Vec<Block>; STREAM_COUNT] = Default::default();
        let mut next = MAGIC.len() as u64;
        for row in rows {
            let blocks = &mut streams[row.stream as usize];
            let ordered = blocks.last().is_none_or(|last| last.key <= row.key);
            if row.raw as usize > MAX_BLOCK || row.stored > row.raw || !ordered {
                return Err(Error::malformed(FORMAT_NAME, "a block out of bounds"));
            }
            blocks.push(Block {
                at: next,
                stored: row.stored,
                raw: row.raw,
                sum: row.sum,
                key: row.key,
            });
            next += u64::from(row.stored);
        }
        if next != at {
            return Err(Error::malformed(FORMAT_NAME, "blocks do not fill the file"));
        }
        let path = path.to_owned();
        Ok((
            Self {
                file,
                path,
                streams,
            },
            summary,
        ))
    }

    /// Returns the number of blocks of a stream.
    pub(super) fn blocks(&self, stream: Stream) -> usize {
        self.streams[stream as usize].len()
    }

    /// Returns the last block of a stream whose key is below `key`, or with `or_equal` at most
    /// `key`. If there is no such block, returns block 0.
    pub(super) fn find(&self, stream: Stream, key: u64, or_equal: bool) -> usize {
        let blocks = &self.streams[stream as usize];
        let after = blocks.partition_point(|b| b.key < key || (or_equal && b.key == key));
        after.saturating_sub(1)
    }

    /// Returns the key of a block, which is the key of the first record in the block.
    pub(super) fn key(&self, stream: Stream, number: usize) -> Option<u64> {
        self.streams[stream as usize].get(number).map(|b| b.key)
    }

    /// Reads and verifies a block. Returns `None` after the last block.
    pub(super) fn read(&self, stream: Stream, number: usize) -> Result<Option<Vec<u8>>, Error> {
        let Some(block) = self.streams[stream as usize].get(number) else {
            return Ok(None);
        };
        let mut stored = vec![0; block.stored as usize];
        self.file
            .read_exact_at(&mut stored, block.at)
            .map_err(|e| Error::io(format!("read {}", self.path.display()), e))?;
        if crc32c::crc32c(&stored) != block.sum {
            return Err(Error::malformed(FORMAT_NAME, "a block is damaged"));
        }
        if block.stored == block.raw {
            return Ok(Some(stored));
        }
        let raw = zstd::bulk::decompress(&stored, block.raw as usize)
            .map_err(|e| Error::malformed(FORMAT_NAME, e.to_string()))?;
        if raw.len() != block.raw as usize {
            return Err(Error::malformed(FORMAT_NAME, "a block of a wrong length"));
        }
        Ok(Some(raw))
    }
}
