//! Stamps of files that were lent to a tree: these have the tree's attributes, and so no seal.
//!
//! A stamp is made of the content and of what the system says of its inode, the time of change among it, which no call
//! sets; it may be as coarse as the kernel's tick, and a write within that of the last change does not show. What has neither seal nor stamp is read and hashed before it is believed: a stamp saves that, and no more, so that
//! they need neither a sync nor a checksum. A damaged one is none.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::Stat;
use sha2::{Digest as _, Sha256};

use pierhead_toc::FileDigest;

/// Collisions do not happen.
const STAMP: usize = 16;
/// Of the file; a fuller one begins anew. Stamps of as many contents as three large images have.
const FULL: u64 = 4 << 20;
/// Written together.
const BATCH: usize = 64 << 10;

type Stamp = [u8; STAMP];

/// The stamps of one store. Those that another process made since they were read are not known: that costs reading.
#[derive(Debug)]
pub(super) struct Lent {
    path: PathBuf,
    write: bool,
    stamps: Mutex<Stamps>,
}

#[derive(Debug, Default)]
struct Stamps {
    /// `None` until they are needed.
    known: Option<HashSet<Stamp>>,
    fresh: Vec<u8>,
}

impl Lent {
    /// Opens nothing yet.
    pub(super) fn new(path: PathBuf, write: bool) -> Self {
        Self {
            path,
            write,
            stamps: Mutex::default(),
        }
    }

    /// Whether the bytes were known when the inode was as it is now.
    pub(super) fn knows(&self, content: &FileDigest, stat: &Stat) -> bool {
        self.known(&mut self.lock()).contains(&stamp(content, stat))
    }

    /// The bytes are the content's.
    pub(super) fn note(&self, content: &FileDigest, stat: &Stat) {
        let mut stamps = self.lock();
        let stamp = stamp(content, stat);
        if !self.known(&mut stamps).insert(stamp) {
            return;
        }
        stamps.fresh.extend(stamp);
        if stamps.fresh.len() >= BATCH {
            self.flush(&mut stamps);
        }
    }

    fn known<'a>(&self, stamps: &'a mut Stamps) -> &'a mut HashSet<Stamp> {
        stamps.known.get_or_insert_with(|| {
            let mut bytes = Vec::new();
            let file = File::open(&self.path);
            let _ = file.and_then(|file| file.take(FULL).read_to_end(&mut bytes));
            bytes.as_chunks::<STAMP>().0.iter().copied().collect()
        })
    }

    fn flush(&self, stamps: &mut Stamps) {
        let fresh = std::mem::take(&mut stamps.fresh);
        if fresh.is_empty() || !self.write {
            return;
        }
        let append = || {
            let mut options = File::options();
            let mut file = options.append(true).create(true).open(&self.path)?;
            let there = file.metadata()?.len();
            // What a process that was killed has left of one would shift all behind it.
            let whole = there % (STAMP as u64) == 0;
            if !whole || there + fresh.len() as u64 > FULL {
                file.set_len(0)?;
            }
            file.write_all(&fresh)
        };
        // A disk that is full costs reading, like a store that may not be written to.
        let _: std::io::Result<()> = append();
    }

    fn lock(&self) -> MutexGuard<'_, Stamps> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lent {
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
