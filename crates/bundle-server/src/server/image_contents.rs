//! Single contents: from packs through one cache for all who read, from layers only when no pack has them.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use pierhead_oci::Digest;

use super::open_layers::Layers;
use super::{Inner, RECENT_MEMORY, lock};
use crate::directory::Directory;
use crate::pack::{Contents, Packs};
use pierhead_toc::{FileDigest, Source};

/// Images whose layers are held open: up to a MiB for each layer that was read lately.
const OPEN: usize = 2;

/// What all readers share.
pub(super) struct Files {
    packed: Contents,
    opened: Mutex<Vec<(Digest, Arc<Layers>)>>,
}

impl Files {
    pub(super) fn new(packs: &Arc<Packs>, directory: &Arc<Directory>) -> Self {
        let nothing = Arc::new(Layers::default());
        Self {
            packed: Contents::new(packs.clone(), directory.clone(), nothing, RECENT_MEMORY),
            opened: Mutex::default(),
        }
    }
}

/// The contents of an image. Holds nothing itself, however slowly somebody takes them.
pub(super) struct ImageContents {
    pub(super) inner: Weak<Inner>,
    pub(super) image: Digest,
}

impl ImageContents {
    fn inner(&self) -> io::Result<Arc<Inner>> {
        let closed = || io::Error::other("the library was closed");
        self.inner.upgrade().ok_or_else(closed)
    }

    fn unpacked<T>(
        &self,
        inner: &Inner,
        read: impl FnOnce(&Layers) -> io::Result<T>,
    ) -> io::Result<T> {
        read(&inner.opened(&self.image)).inspect_err(|_| {
            // One of them is damaged, or was not there yet: the next read looks again.
            lock(&inner.files.opened).retain(|(of, _)| *of != self.image);
        })
    }
}

impl Inner {
    /// The layers of an image, opened: those that were used last are still.
    fn opened(&self, image: &Digest) -> Arc<Layers> {
        let mut opened = lock(&self.files.opened);
        let found = opened.iter().position(|(of, _)| of == image);
        let entry = match found {
            Some(at) => opened.remove(at),
            None => (*image, Arc::new(self.layers(&[*image]))),
        };
        let layers = entry.1.clone();
        opened.push(entry);
        if opened.len() > OPEN {
            opened.remove(0);
        }
        layers
    }

    /// Closes them, and tables: evicted blobs and deleted files take room as long as they are open.
    pub(super) fn close_layers(&self) {
        self.tables.close();
        lock(&self.files.opened).clear();
    }
}

impl Source for ImageContents {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        let inner = self.inner()?;
        match inner.files.packed.size(content)? {
            None => self.unpacked(&inner, |layers| layers.size(content)),
            found => Ok(found),
        }
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let inner = self.inner()?;
        match inner.files.packed.read_at(content, offset, buf) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.unpacked(&inner, |layers| layers.read_at(content, offset, buf))
            }
            other => other,
        }
    }
}
