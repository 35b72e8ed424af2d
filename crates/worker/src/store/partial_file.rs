//! `PartialFile`: the file of a content that arrives in several ranges of a bundle, in any order.
//! When the file is complete and verified, it is moved into the store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::image_store::Store;
use crate::Error;
use pierhead_toc::FileDigest;

/// Number of bytes that one read transfers while a file is hashed.
const READ_SIZE: usize = 256 << 10;

/// A file content whose ranges arrive in any order.
#[derive(Debug)]
pub(super) struct PartialFile {
    content: FileDigest,
    size: u64,
    path: PathBuf,
    file: File,
    /// The ranges that were written: the end of each range by its start. Adjacent ranges are
    /// merged.
    covered: BTreeMap<u64, u64>,
    hash: Sha256,
    hashed: u64,
}

impl PartialFile {
    /// Opens or creates the partial file of a content. The caller then calls [`Self::cover`] for
    /// each range that an earlier process wrote.
    pub(super) fn open(folder: &Path, content: FileDigest, size: u64) -> Result<Self, Error> {
        let path = folder.join(content.hex());
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = file.map_err(|error| Error::io(format!("open {}", path.display()), error))?;
        Ok(Self {
            content,
            size,
            path,
            file,
            covered: BTreeMap::new(),
            hash: Sha256::new(),
            hashed: 0,
        })
    }

    /// Marks a range of the file as written.
    pub(super) fn cover(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset.saturating_add(len));
        if let Some((before, reach)) = self
            .covered
            .range(..=start)
            .next_back()
            .map(|(a, b)| (*a, *b))
            && reach >= start
        {
            (start, end) = (before, end.max(reach));
        }
        while let Some((after, reach)) = self
            .covered
            .range(start..=end)
            .next()
            .map(|(a, b)| (*a, *b))
        {
            self.covered.remove(&after);
            end = end.max(reach);
        }
        self.covered.insert(start, end);
    }

    /// Writes a range of the file, and hashes the file up to its first gap.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.failed(error))?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.cover(offset, len);
        if offset == self.hashed {
            self.hash.update(bytes);
            self.hashed += len;
        }
        self.catch_up().map_err(|error| self.failed(error))
    }

    /// Whether every byte of the content has been written.
    pub(super) fn is_complete(&self) -> bool {
        self.covered.get(&0).is_some_and(|end| *end >= self.size)
    }

    /// Verifies the digest of the file, and moves the file into the store. If the digest does not
    /// match, deletes the file and returns `false`.
    pub(super) fn commit(mut self, store: &Store) -> Result<bool, Error> {
        self.catch_up().map_err(|error| self.failed(error))?;
        let found = FileDigest::from_bytes(self.hash.clone().finalize().into());
        let len = self
            .file
            .metadata()
            .map_err(|error| self.failed(error))?
            .len();
        if found != self.content || len != self.size {
            let _ = fs::remove_file(&self.path);
            return Ok(false);
        }
        store
            .0
            .contents
            .adopt(&self.content, &self.file, &self.path)?;
        Ok(true)
    }

    fn catch_up(&mut self) -> io::Result<()> {
        let reach = self.covered.get(&0).copied().unwrap_or(0).min(self.size);
        if self.hashed >= reach {
            return Ok(());
        }
        let mut buffer = vec![0; READ_SIZE];
        while self.hashed < reach {
            let left = usize::try_from(reach - self.hashed).unwrap_or(READ_SIZE);
            let piece = &mut buffer[..left.min(READ_SIZE)];
            let len = self.file.read_at(piece, self.hashed)?;
            if len == 0 {
                // The file is shorter than the log of the fetch states, so the digest will not
                // match.
                self.hashed = reach;
            }
            self.hash.update(&piece[..len]);
            self.hashed += u64::try_from(len).unwrap_or(0);
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io(format!("write {}", self.path.display()), error)
    }
}
