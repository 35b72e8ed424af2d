//! Stamps: they prove that a file of the store is unchanged, if exported trees share this file by
//! hard link. A shared file has the mtime of an entry in the tree, so this mtime cannot be the
//! file's seal (the mtime by which `content_dir` recognizes all other verified files).
//!
//! A stamp is a hash over the digest of a content and the metadata of its inode. The metadata
//! includes the ctime, which no system call can set. The resolution of the ctime may be one tick of
//! the kernel, so a stamp does not detect a write within the tick of the last change. If a file has
//! neither a seal nor a stamp, the store reads and hashes the file. The loss of a stamp only costs
//! this read, so stamps need neither a sync nor a checksum.

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::Stat;
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use pierhead_toc::FileDigest;

/// Number of bytes of a stamp, which is the start of a SHA-256 hash.
const STAMP: usize = 16;
/// Maximum number of bytes of the stamp file: enough for the stamps of three large images. When the
/// file is full, pierhead empties it.
const MAX_FILE: u64 = 4 << 20;
/// Number of bytes of new stamps in memory at which the store appends them to the stamp file.
const BATCH: usize = 64 << 10;

type Stamp = [u8; STAMP];

/// The stamps of one store. A process does not see the stamps that another process adds later, and
/// so reads and hashes the files of these stamps once more.
#[derive(Debug)]
pub(super) struct StampLog {
    path: PathBuf,
    write: bool,
    stamps: Mutex<Stamps>,
}

#[derive(Debug, Default)]
struct Stamps {
    /// The stamps that the stamp file contains; `None` until the first use.
    known: Option<HashSet<Stamp>>,
    unwritten: Vec<u8>,
}

impl StampLog {
    /// Creates the log of stamps, without opening its file.
    pub(super) fn new(path: PathBuf, write: bool) -> Self {
        Self {
            path,
            write,
            stamps: Mutex::default(),
        }
    }

    /// Whether the content was verified when the inode had this metadata.
    pub(super) fn contains(&self, content: &FileDigest, stat: &Stat) -> bool {
        self.known(&mut self.lock()).contains(&stamp(content, stat))
    }

    /// Records that the inode with this metadata holds the content.
    pub(super) fn insert(&self, content: &FileDigest, stat: &Stat) {
        let mut stamps = self.lock();
        let stamp = stamp(content, stat);
        if !self.known(&mut stamps).insert(stamp) {
            return;
        }
        stamps.unwritten.extend(stamp);
        if stamps.unwritten.len() >= BATCH {
            self.flush(&mut stamps);
        }
    }

    fn known<'a>(&self, stamps: &'a mut Stamps) -> &'a mut HashSet<Stamp> {
        stamps.known.get_or_insert_with(|| {
            let mut bytes = Vec::new();
            let file = File::open(&self.path);
            let _ = file.and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
            bytes.as_chunks::<STAMP>().0.iter().copied().collect()
        })
    }

    fn flush(&self, stamps: &mut Stamps) {
        let fresh = std::mem::take(&mut stamps.unwritten);
        if fresh.is_empty() || !self.write {
            return;
        }
        let append = || {
            let mut options = File::options();
            let mut file = options.append(true).create(true).open(&self.path)?;
            let there = file.metadata()?.len();
            // A killed process may leave a part of a stamp at the end. Stamps after this part would
            // have wrong offsets, so the file is truncated.
            let whole = there % (STAMP as u64) == 0;
            if !whole || there + fresh.len() as u64 > MAX_FILE {
                file.set_len(0)?;
            }
            file.write_all(&fresh)
        };
        // An error, such as a full disk, is ignored: without the stamps, the store only reads and
        // hashes the files once more.
        let _: std::io::Result<()> = append();
    }

    fn lock(&self) -> MutexGuard<'_, Stamps> {
        self.stamps.lock()
    }
}

impl Drop for StampLog {
    fn drop(&mut self) {
        self.flush(&mut self.lock());
    }
}

fn stamp(content: &FileDigest, stat: &Stat) -> Stamp {
    let mut hash = Sha256::new();
    hash.update(content.as_bytes());
    for part in [
        i128::from(stat.st_dev),
        i128::from(stat.st_ino),
        i128::from(stat.st_size),
        i128::from(stat.st_mtime),
        i128::from(stat.st_mtime_nsec),
        i128::from(stat.st_ctime),
        i128::from(stat.st_ctime_nsec),
    ] {
        hash.update(part.to_le_bytes());
    }
    let hash: [u8; 32] = hash.finalize().into();
    *hash.first_chunk().unwrap_or(&[0; STAMP])
}
