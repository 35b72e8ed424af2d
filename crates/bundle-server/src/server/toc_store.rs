//! Image tables: whole in memory while in use, block by block for single lookups.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use pierhead_oci::Digest;

use super::paths::remove;
use super::{Inner, lock};
use pierhead_toc::image_toc::{BlockCache, TocFile};
use pierhead_toc::{Error, FileDigest, ImageToc};

/// Size of the block cache that single lookups share, in bytes.
const BLOCK_CACHE: usize = 4 << 20;
/// Maximum number of table files that stay open for single lookups.
const OPEN: usize = 8;
/// Maximum number of remembered images whose table the disk could not read.
const MAX_UNREADABLE: usize = 1000;

pub(super) struct TocStore {
    blocks: BlockCache,
    open: Mutex<Vec<(Digest, Arc<TocFile>)>>,
    /// TocStore in use. Concurrent users share one read.
    loaded: Mutex<HashMap<Digest, Weak<ImageToc>>>,
    /// Images whose table the disk could not read. Each is logged and rebuilt once per process.
    unreadable: Mutex<HashSet<Digest>>,
}

impl Default for TocStore {
    fn default() -> Self {
        Self {
            blocks: BlockCache::new(BLOCK_CACHE),
            open: Mutex::default(),
            loaded: Mutex::default(),
            unreadable: Mutex::default(),
        }
    }
}

impl TocStore {
    /// Closes the files. A deleted file takes disk space as long as it is open.
    pub(super) fn close(&self) {
        lock(&self.open).clear();
        lock(&self.loaded).retain(|_, table| table.strong_count() > 0);
    }

    fn forget(&self, image: &Digest) {
        lock(&self.open).retain(|(of, _)| of != image);
    }

    fn loaded(&self, image: &Digest) -> Option<Arc<ImageToc>> {
        lock(&self.loaded).get(image)?.upgrade()
    }

    fn load(&self, image: &Digest, table: ImageToc) -> Arc<ImageToc> {
        let table = Arc::new(table);
        let mut loaded = lock(&self.loaded);
        loaded.retain(|_, table| table.strong_count() > 0);
        loaded.insert(*image, Arc::downgrade(&table));
        table
    }

    /// Bytes of the tables in memory.
    fn bytes(&self) -> u64 {
        let loaded = lock(&self.loaded);
        let tables = loaded.values().filter_map(Weak::upgrade);
        tables.map(|table| table.bytes().len() as u64).sum()
    }

    /// Logs a table that the disk cannot read; `false` when it was logged before.
    pub(super) fn report_unreadable(&self, image: &Digest, error: &Error) -> bool {
        let mut unreadable = lock(&self.unreadable);
        if unreadable.len() >= MAX_UNREADABLE {
            unreadable.clear();
        }
        let is_first = unreadable.insert(*image);
        if is_first {
            tracing::error!(%image, %error, "cannot read the table of an image; rebuilding it once");
        }
        is_first
    }
}

impl Inner {
    /// The table of a ready image. When the table is damaged or lost, the image is queued for a new one.
    pub(super) fn made_table(&self, manifest: &Digest) -> Result<Arc<ImageToc>, Error> {
        if let Some(table) = self.tables.loaded(manifest) {
            return Ok(table);
        }
        let opened = ImageToc::open(&self.paths.table(manifest));
        let table = opened.or_else(|error| self.recover_toc(manifest, error))?;
        Ok(self.tables.load(manifest, table))
    }

    /// The table of a base image; `None` when there is none, or when [`super::Config::tables`] is used up.
    ///
    /// # Errors
    /// `Io` when descriptors or memory are used up: a plan without the base image would be stored.
    pub(super) fn base_table(&self, manifest: &Digest) -> Result<Option<Arc<ImageToc>>, Error> {
        let room = || {
            let len = std::fs::metadata(self.paths.table(manifest)).ok()?.len();
            (self.tables.bytes().saturating_add(len) <= self.config.toc_memory).then_some(())
        };
        if let Some(table) = self.tables.loaded(manifest) {
            return Ok(Some(table));
        }
        if room().is_none() {
            return Ok(None);
        }
        match self.made_table(manifest) {
            Err(error) if error.is_exhausted() => Err(error),
            read => Ok(read.ok()),
        }
    }

    /// The size of one content of a ready image. Reads only a few blocks of its table.
    pub(super) fn size_in(
        &self,
        manifest: &Digest,
        content: &FileDigest,
    ) -> Result<Option<u64>, Error> {
        let looked = self.table_file(manifest).and_then(|it| it.find(content));
        let found = looked.or_else(|error| self.recover_toc(manifest, error))?;
        Ok(found.map(|(_, size)| size))
    }

    fn table_file(&self, manifest: &Digest) -> Result<Arc<TocFile>, Error> {
        let mut open = lock(&self.tables.open);
        let found = open.iter().position(|(of, _)| of == manifest);
        let entry = match found {
            Some(at) => open.remove(at),
            None => {
                drop(open);
                let file = TocFile::open(&self.paths.table(manifest), &self.tables.blocks)?;
                open = lock(&self.tables.open);
                (*manifest, Arc::new(file))
            }
        };
        let file = entry.1.clone();
        open.push(entry);
        if open.len() > OPEN {
            open.remove(0);
        }
        Ok(file)
    }

    /// Queues a rebuild of an image's table. Deletes the old file only when it is proven to be damaged. A second failure
    /// of the same image stays an error, and so does a lack of descriptors or memory.
    fn recover_toc<T>(&self, manifest: &Digest, error: Error) -> Result<T, Error> {
        self.tables.forget(manifest);
        if error.is_exhausted() {
            return Err(error);
        }
        if error.is_damage() {
            tracing::warn!(%error, %manifest, "rebuilding the table of an image");
            remove(&self.paths.table(manifest));
        } else if matches!(error, Error::Io { .. }) {
            if !self.tables.report_unreadable(manifest, &error) {
                return Err(error);
            }
        } else if !matches!(error, Error::Missing(_)) {
            return Err(error);
        }
        self.again(manifest)?;
        Err(Error::Missing(format!("the table of {manifest}")))
    }
}
