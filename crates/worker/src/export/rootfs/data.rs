//! Writes the content of an exported file: shares the disk blocks of the store's file, or copies
//! the bytes and leaves holes in the file for blocks of zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs as sys;

use pierhead_toc::{FileDigest, Time};

use super::ContentSource;

/// Number of bytes that one read or one write transfers.
const PIECE: usize = 256 << 10;

/// Size in bytes of the smallest hole in a file.
const BLOCK: usize = 4096;

const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Writes the contents of one file after another, through one buffer.
pub(super) struct Writer<'a> {
    contents: ContentSource<'a>,
    buffer: Vec<u8>,
    /// Whether the writer tries reflinks. After the first failure, it does not try again.
    cloning: bool,
}

impl<'a> Writer<'a> {
    pub(super) const fn new(contents: ContentSource<'a>) -> Self {
        Self {
            contents,
            buffer: Vec::new(),
            cloning: true,
        }
    }

    /// Calls [`StoreFiles::record_link`](super::StoreFiles::record_link) of the store.
    pub(super) fn record_link(
        &self,
        content: &FileDigest,
        file: &File,
        modified: Time,
    ) -> io::Result<()> {
        let files = self.contents.files;
        files.map_or(Ok(()), |files| files.record_link(content, file, modified))
    }

    /// Writes a file content into an empty file. Returns whether the file shares its blocks with a
    /// store.
    pub(super) fn write(&mut self, to: &File, content: &FileDigest, size: u64) -> io::Result<bool> {
        if size == 0 {
            return Ok(false);
        }
        if let Some(files) = self.contents.files
            && let Some(from) = files.file(content)?
        {
            if from.metadata()?.len() != size {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.cloning {
                match sys::ioctl_ficlone(to, &from) {
                    Ok(()) => return Ok(true),
                    Err(_) => self.cloning = false,
                }
            }
            let read = |at, piece: &mut [u8]| from.read_exact_at(piece, at);
            return self.copy(to, size, read).map(|()| false);
        }
        let source = self.contents.source;
        let read = |at, piece: &mut [u8]| source.read_at(content, at, piece);
        self.copy(to, size, read).map(|()| false)
    }

    fn copy(
        &mut self,
        to: &File,
        size: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.buffer.resize(PIECE, 0);
        let mut at = 0;
        let mut holes = false;
        while at < size {
            let len = usize::try_from(size - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = &mut self.buffer[..len];
            read(at, piece)?;
            holes |= write_nonzero_blocks(to, at, piece)?;
            at += len as u64;
        }
        if holes {
            to.set_len(size)?;
        }
        Ok(())
    }
}

/// Writes the blocks that are not zero, and writes adjacent blocks with one call. Returns whether
/// the file now has holes.
fn write_nonzero_blocks(to: &File, at: u64, piece: &[u8]) -> io::Result<bool> {
    let mut start = 0;
    let mut holes = false;
    for (nth, block) in piece.chunks(BLOCK).enumerate() {
        // A last block that is shorter and has only zeros becomes a hole, too.
        if block[0] == 0 && *block == ZEROS[..block.len()] {
            let end = nth * BLOCK;
            if start < end {
                to.write_all_at(&piece[start..end], at + start as u64)?;
            }
            start = end + block.len();
            holes = true;
        }
    }
    if start < piece.len() {
        to.write_all_at(&piece[start..], at + start as u64)?;
    }
    Ok(holes)
}
