//! Reads the TOCs (tables of contents) of images: the whole TOC into memory for planning, or single
//! blocks of it for the lookup of one content.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pierhead_oci::Digest;

use super::paths::Paths;
use crate::Error;
use pierhead_toc::image_toc::{BlockCache, TocFile};
use pierhead_toc::{FileDigest, ImageToc};

/// Size in bytes of the cache of blocks that lookups of single contents share.
const BLOCK_CACHE: usize = 4 << 20;
/// Maximum number of TOC files that stay open for lookups of single contents.
const MAX_OPEN: usize = 8;
/// Maximum number of images that the server remembers because the disk could not read their TOC.
const MAX_UNREADABLE: usize = 1000;

/// Reads TOCs from their files, and shares each TOC among its users.
pub(super) struct TocStore {
    paths: Paths,
    /// Maximum memory of the TOCs in use, in bytes.
    memory: u64,
    blocks: BlockCache,
    open: Mutex<Vec<(Digest, Arc<TocFile>)>>,
    /// The TOCs that are in use. Concurrent users of one TOC share it.
    loaded: Mutex<HashMap<Digest, Weak<ImageToc>>>,
    /// Images whose TOC the disk could not read. For each of these images, the server logs the
    /// error and rebuilds the TOC only once per process.
    unreadable: Mutex<HashSet<Digest>>,
}

impl TocStore {
    pub(super) fn new(paths: Paths, memory: u64) -> Self {
        Self {
            paths,
            memory,
            blocks: BlockCache::new(BLOCK_CACHE),
            open: Mutex::default(),
            loaded: Mutex::default(),
            unreadable: Mutex::default(),
        }
    }

    /// Returns the whole TOC of an image.
    pub(super) fn load(&self, image: &Digest) -> Result<Arc<ImageToc>, Error> {
        if let Some(toc) = self.loaded(image) {
            return Ok(toc);
        }
        let toc = Arc::new(ImageToc::open(&self.paths.toc(image))?);
        let mut loaded = self.loaded.lock();
        loaded.retain(|_, toc| toc.strong_count() > 0);
        loaded.insert(*image, Arc::downgrade(&toc));
        Ok(toc)
    }

    /// Returns the TOC of an image, if this TOC is already in memory.
    pub(super) fn loaded(&self, image: &Digest) -> Option<Arc<ImageToc>> {
        self.loaded.lock().get(image)?.upgrade()
    }

    /// Whether the TOC of a base image fits into the memory that the loaded TOCs leave.
    pub(super) fn has_room(&self, image: &Digest) -> bool {
        let used: u64 = {
            let loaded = self.loaded.lock();
            let tocs = loaded.values().filter_map(Weak::upgrade);
            tocs.map(|toc| toc.bytes().len() as u64).sum()
        };
        let len = std::fs::metadata(self.paths.toc(image)).map(|it| it.len());
        len.is_ok_and(|len| used.saturating_add(len) <= self.memory)
    }

    /// Returns the size of one file content of an image. Reads only a few blocks of the image's
    /// TOC.
    pub(super) fn size_of(
        &self,
        image: &Digest,
        content: &FileDigest,
    ) -> Result<Option<u64>, Error> {
        let found = self.file(image)?.find(content)?;
        Ok(found.map(|(_, size)| size))
    }

    fn file(&self, image: &Digest) -> Result<Arc<TocFile>, Error> {
        let opened = {
            let mut open = self.open.lock();
            let found = open.iter().position(|(of, _)| of == image);
            found.map(|at| open.remove(at))
        };
        let entry = match opened {
            Some(entry) => entry,
            None => {
                let file = TocFile::open(&self.paths.toc(image), &self.blocks)?;
                (*image, Arc::new(file))
            }
        };
        let file = entry.1.clone();
        let mut open = self.open.lock();
        open.push(entry);
        if open.len() > MAX_OPEN {
            open.remove(0);
        }
        Ok(file)
    }

    /// Closes the TOC file of one image.
    pub(super) fn close(&self, image: &Digest) {
        self.open.lock().retain(|(of, _)| of != image);
    }

    /// Closes all TOC files, since a deleted file takes disk space as long as it is open.
    pub(super) fn close_all(&self) {
        self.open.lock().clear();
        self.loaded.lock().retain(|_, toc| toc.strong_count() > 0);
    }

    /// Logs a TOC that the disk cannot read. Returns `false` when the server has already logged
    /// this TOC.
    pub(super) fn report_unreadable(&self, image: &Digest, error: &Error) -> bool {
        let is_first = {
            let mut unreadable = self.unreadable.lock();
            if unreadable.len() >= MAX_UNREADABLE {
                unreadable.clear();
            }
            unreadable.insert(*image)
        };
        if is_first {
            tracing::error!(%image, %error, "cannot read the TOC of an image; pierhead rebuilds it once");
        }
        is_first
    }
}
