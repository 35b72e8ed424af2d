//! Writes one file content that the worker requested alone, and whose bytes arrive in order. The
//! complete and verified content is moved into the store.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::image_store::Store;
use crate::Error;
use pierhead_toc::FileDigest;

/// Writes a content to a temporary file. Dropping the writer before [`Self::commit`] deletes the
/// file.
#[derive(Debug)]
pub struct ContentWriter {
    store: Store,
    content: FileDigest,
    size: u64,
    path: PathBuf,
    file: File,
    hash: Sha256,
    written: u64,
    is_committed: bool,
}

impl ContentWriter {
    pub(super) fn new(
        store: &Store,
        folder: &Path,
        content: FileDigest,
        size: u64,
    ) -> Result<Self, Error> {
        let path = folder.join(format!("{}.file", content.hex()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let file = file.map_err(|error| Error::io(format!("open {}", path.display()), error))?;
        Ok(Self {
            store: store.clone(),
            content,
            size,
            path,
            file,
            hash: Sha256::new(),
            written: 0,
            is_committed: false,
        })
    }

    /// Appends bytes to the content.
    ///
    /// # Errors
    /// `Malformed` if the content is longer than the TOC states. Errors of the file system.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.written = self
            .written
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if self.written > self.size {
            return Err(Error::malformed(
                "content",
                "it is longer than the TOC states",
            ));
        }
        self.hash.update(bytes);
        let written = self.file.write_all(bytes);
        written.map_err(|error| Error::io(format!("write {}", self.path.display()), error))
    }

    /// Verifies the digest of the content, and moves the content into the store.
    ///
    /// # Errors
    /// `Digest` if the bytes do not match the digest. Errors of the file system.
    pub fn commit(mut self) -> Result<(), Error> {
        let found = FileDigest::from_bytes(self.hash.clone().finalize().into());
        if found != self.content || self.written != self.size {
            return Err(Error::Digest {
                what: "a content".into(),
                expected: self.content.to_string(),
                found: found.to_string(),
            });
        }
        self.store
            .0
            .contents
            .adopt(&self.content, &self.file, &self.path)?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for ContentWriter {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = fs::remove_file(&self.path);
        }
    }
}
