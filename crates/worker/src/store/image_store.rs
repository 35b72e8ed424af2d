//! The type [`Store`], the image store of a worker: opens or creates the folder of the store, and
//! finds complete images. If another store on this machine has the content of a file, the store
//! links or copies the content from there. The code never writes to other stores.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;
use pierhead_oci::Digest;
use pierhead_toc::{FileDigest, Source, Time};
use rustix::fs::FlockOperation;

use super::content_dir::{ContentDir, is_absence};
use super::folder::{FOLDERS, entries, initialize, is_store, lock_folder};
use super::image::{self, Image};
use crate::export::rootfs::StoreFiles;

/// A store of a worker. All clones share one state, which several threads may use.
#[derive(Clone, Debug)]
pub struct Store(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) path: PathBuf,
    pub(super) contents: ContentDir,
    read_only: Vec<ReadOnlyStore>,
    pub(super) lock: File,
}

/// A second store. The first store reuses contents of the second store, and never writes to the
/// second store.
#[derive(Debug)]
struct ReadOnlyStore {
    path: PathBuf,
    contents: ContentDir,
}

/// A complete image of a store, with the values that a request to the server needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// The digest of the image's manifest.
    pub manifest: Digest,
    /// Whether the store also has the file contents that only the layers contain.
    pub layers: bool,
}

impl Store {
    /// Opens a store, or creates a store in a folder that is missing or empty. `others` are further
    /// stores, from which this store only reads contents to reuse. A folder in `others` that is not
    /// a store is ignored.
    ///
    /// # Errors
    /// `Foreign` if the folder contains other data or a store of another version. After this error,
    /// the folder is unchanged. Errors of the file system.
    pub fn open(path: &Path, others: &[PathBuf]) -> Result<Self, Error> {
        let failed = |error| Error::io(format!("open the store {}", path.display()), error);
        fs::create_dir_all(path).map_err(failed)?;
        if !is_store(path)? {
            let _folder_lock = lock_folder(path);
            initialize(path)?;
        }
        for name in FOLDERS {
            let folder = path.join(name);
            if fs::metadata(&folder).is_ok_and(|found| !found.is_dir()) {
                return Err(Error::Foreign(format!(
                    "{} has to be a folder of the store: delete the file, and run the command again",
                    folder.display()
                )));
            }
        }
        for folder in ["images", "fetches"] {
            fs::create_dir_all(path.join(folder)).map_err(failed)?;
        }
        let lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join("lock"))
            .map_err(failed)?;
        let contents = ContentDir::open(&path.join("contents"), true)?;
        let others = others.iter().filter(|other| *other != path);
        let others = others.filter_map(|other| {
            let contents = ContentDir::open(&other.join("contents"), false).ok()?;
            Some(ReadOnlyStore {
                path: other.clone(),
                contents,
            })
        });
        let store = Self(Arc::new(Inner {
            path: path.to_owned(),
            contents,
            read_only: others.collect(),
            lock,
        }));
        store.recover()?;
        rustix::fs::flock(&store.0.lock, FlockOperation::LockShared)
            .map_err(|error| failed(error.into()))?;
        Ok(store)
    }

    /// Returns the complete images of this store and of the read-only stores, sorted by digest.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn images(&self) -> Result<Vec<StoredImage>, Error> {
        let mut seen = HashSet::new();
        let mut images = Vec::new();
        for folder in self.folders() {
            for path in entries(&folder.join("images"))? {
                let Ok(image) = Image::load(&path) else {
                    continue;
                };
                let manifest = image.digest();
                if seen.insert(manifest) {
                    images.push(StoredImage {
                        manifest,
                        layers: image.layers,
                    });
                }
            }
        }
        images.sort_by_key(|image| image.manifest);
        Ok(images)
    }

    /// Returns a complete image of this store, or else of one of the read-only stores.
    ///
    /// # Errors
    /// `Missing` if no store has the image, or if its record is damaged.
    pub fn image(&self, manifest: &Digest) -> Result<Image, Error> {
        let mut last = Error::Missing(manifest.to_string());
        for folder in self.folders() {
            match Image::load(&folder.join("images").join(manifest.hex())) {
                Ok(image) => return Ok(image),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the image if it is complete: if this store or a read-only store has each of its
    /// contents with a valid seal and the right size. With `layers`, the store must also have the
    /// contents that only the layers contain. The check takes one system call per content.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn complete(&self, manifest: &Digest, layers: bool) -> Result<Option<Image>, Error> {
        let Ok(image) = self.image(manifest) else {
            return Ok(None);
        };
        if layers && !image.layers {
            return Ok(None);
        }
        for (content, size) in image::needed(&image.toc, layers) {
            let found = self.size(&content);
            if found.map_err(|error| Error::io(format!("look at {content}"), error))? != Some(size)
            {
                return Ok(None);
            }
        }
        Ok(Some(image))
    }

    /// Reads a document of at most `limit` bytes, and replaces it by the result of `change`.
    /// `change` gets an empty document if none exists. A lock serializes processes and threads, so
    /// that no update is lost.
    ///
    /// # Errors
    /// Errors of `change`, and errors of the file system. After an error, the document is
    /// unchanged.
    pub fn update_document<E: From<Error>>(
        &self,
        name: &str,
        limit: usize,
        change: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let path = self.0.path.join(name);
        let failed = |error| Error::io(format!("lock {}", path.display()), error);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let lock = options
            .open(self.0.path.join(format!("{name}.lock")))
            .map_err(failed)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
            .map_err(|error| failed(error.into()))?;
        let old = match image::read(&path, limit) {
            Err(Error::Missing(_)) => Vec::new(),
            read => read?,
        };
        let new = change(old)?;
        pierhead_atomic_file::write(&path, &new)
            .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
        Ok(())
    }

    /// Returns the folder of the store.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the folder of the store, and then the folders of the read-only stores.
    pub fn folders(&self) -> impl DoubleEndedIterator<Item = &Path> {
        let others = self.0.read_only.iter().map(|other| &*other.path);
        std::iter::once(&*self.0.path).chain(others)
    }

    /// Whether this store has a content. If only a read-only store has the content, first links or
    /// copies it into this store.
    pub(super) fn obtain(&self, content: &FileDigest, size: u64) -> Result<bool, Error> {
        if self.0.contents.has(content, Some(size)) {
            return Ok(true);
        }
        if size == 0 {
            // A TOC may wrongly state the size 0 for any digest. But only the digest of zero bytes
            // belongs to an empty content.
            let empty = *content == FileDigest::of(b"");
            return match empty {
                true => self.0.contents.put(content, &[]).map(|()| true),
                false => Ok(false),
            };
        }
        for other in &self.0.read_only {
            if self.0.contents.copy_from(&other.contents, content, size)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Offers the files of this store, but not of the read-only stores, for sharing with exported
/// trees. A seal or a stamp shows whether another program wrote to a shared file.
impl StoreFiles for Store {
    fn file(&self, content: &FileDigest) -> io::Result<Option<File>> {
        match self.0.contents.file(content) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_current(&self, content: &FileDigest, file: &File) -> io::Result<bool> {
        self.0.contents.is_current(content, file)
    }

    fn record_link(&self, content: &FileDigest, file: &File, modified: Time) -> io::Result<()> {
        self.0.contents.record_link(content, file, modified)
    }
}

/// Reads the contents of this store and of the read-only stores. Checks the seal and the size of a
/// content with one system call. A corrupt file with a valid seal is found when a patch uses the
/// file as a base, or by [`Store::verify`].
impl Source for Store {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        let others = self.0.read_only.iter().map(|other| &other.contents);
        for contents in std::iter::once(&self.0.contents).chain(others) {
            if let Some(size) = contents.size(content)? {
                return Ok(Some(size));
            }
        }
        Ok(None)
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let first = match self.0.contents.read_at(content, offset, buf) {
            Err(error) if is_absence(&error) => error,
            done => return done,
        };
        for other in &self.0.read_only {
            match other.contents.read_at(content, offset, buf) {
                Err(error) if is_absence(&error) => {}
                done => return done,
            }
        }
        Err(first)
    }
}
