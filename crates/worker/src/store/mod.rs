//! The worker's store: a file a content, records of complete images, and of fetches that were begun.
//!
//! ```text
//! DIR/version      the layout
//! DIR/lock         held shared by who uses the store, alone by who takes away from it
//! DIR/unsynced     the boot in which contents were written that no sync has followed yet
//! DIR/contents/ab/ab…   sealed files, see `contents`
//! DIR/lent         stamps of those that were lent to trees, see `lent`
//! DIR/NAME, DIR/NAME.lock   a document of the store's user, and its write lock
//! DIR/images/HEX/  manifest, config, table, image.json of a complete image
//! DIR/fetches/HEX/ a fetch that was begun, see `fetch`
//! ```
//!
//! A seal says that the bytes were verified when they were written. It holds for as long as the system runs; after a
//! crash of the system, whatever no complete image vouches for is read and hashed again before it is believed.

mod apply;
mod contents;
mod fetch;
mod image;
mod lent;
mod parts;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pierhead_oci::Digest;
use rustix::fs::FlockOperation;

pub use apply::{Apply, Counts, Outcome, Whole};
pub use fetch::{Begin, wanted};
pub use image::Image;
pub use parts::Receive;
pub use upkeep::{Collected, Verified};

use crate::export::rootfs::Files;
use contents::{Contents, is_absence};
use pierhead_toc::{Error, FileDigest, Source, Time, durable};

/// Not only a number: the data folder of a proxy has a file of that name, too.
const VERSION: &[u8] = b"store 1\n";

/// See the head of this module. Cheap to clone; usable from several threads.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    contents: Contents,
    others: Vec<Other>,
    lock: File,
}

/// A store that is only read.
#[derive(Debug)]
struct Other {
    path: PathBuf,
    contents: Contents,
}

/// A complete image, as the worker says it to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of its manifest.
    pub manifest: Digest,
    /// Whether the extras are there too.
    pub layers: bool,
}

impl Store {
    /// Opens a store, or makes one in a folder that is missing or empty. `others` are stores whose contents may be
    /// reused; nothing is written into them, and those that are none are left out.
    ///
    /// # Errors
    /// `Foreign` when the folder is somebody else's or of another version, in which nothing was written; the file system's.
    pub fn open(path: &Path, others: &[PathBuf]) -> Result<Self, Error> {
        let failed = |error| Error::io(format!("open the store {}", path.display()), error);
        fs::create_dir_all(path).map_err(failed)?;
        if !claimed(path)? {
            let _turn = turn(path);
            claim(path)?;
        }
        for name in FOLDERS {
            let folder = path.join(name);
            if fs::metadata(&folder).is_ok_and(|found| !found.is_dir()) {
                return Err(Error::Foreign(format!(
                    "{} is no folder, as the store needs it: delete it, and run the command again",
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
        let contents = Contents::open(&path.join("contents"), true)?;
        let others = others.iter().filter(|other| *other != path);
        let others = others.filter_map(|other| {
            let contents = Contents::open(&other.join("contents"), false).ok()?;
            Some(Other {
                path: other.clone(),
                contents,
            })
        });
        let store = Self(Arc::new(Inner {
            path: path.to_owned(),
            contents,
            others: others.collect(),
            lock,
        }));
        store.recover()?;
        rustix::fs::flock(&store.0.lock, FlockOperation::LockShared)
            .map_err(|error| failed(error.into()))?;
        Ok(store)
    }

    /// Complete images, here and in the other stores, in the order of their digests.
    ///
    /// # Errors
    /// The file system's.
    pub fn images(&self) -> Result<Vec<Held>, Error> {
        let mut seen = HashSet::new();
        let mut held = Vec::new();
        for folder in self.folders() {
            for path in upkeep::entries(&folder.join("images"))? {
                let Ok(image) = Image::load(&path) else {
                    continue;
                };
                let manifest = image.digest();
                if seen.insert(manifest) {
                    held.push(Held {
                        manifest,
                        layers: image.layers,
                    });
                }
            }
        }
        held.sort_by_key(|held| held.manifest);
        Ok(held)
    }

    /// A complete image; one of the other stores where there is none here.
    ///
    /// # Errors
    /// `Missing` when there is none, or its record is damaged.
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

    /// A complete image of which every content is here, or in another store, sealed and of its size; `layers`: those that
    /// only its layers need, too. Costs a system call a content.
    ///
    /// # Errors
    /// The file system's.
    pub fn complete(&self, manifest: &Digest, layers: bool) -> Result<Option<Image>, Error> {
        let Ok(image) = self.image(manifest) else {
            return Ok(None);
        };
        if layers && !image.layers {
            return Ok(None);
        }
        for (content, size) in image::needed(&image.table, layers) {
            let found = self.size(&content);
            if found.map_err(|error| Error::io(format!("look at {content}"), error))? != Some(size)
            {
                return Ok(None);
            }
        }
        Ok(Some(image))
    }

    /// Reads a document of at most `limit` bytes (empty when missing), and replaces it by the result of `change`. A lock
    /// serializes processes and threads, so that no update is lost.
    ///
    /// # Errors
    /// Those of `change`; the file system's, after which the document is as it was.
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
        Ok(durable::write(&path, |file| file.write_all(&new))?)
    }

    /// The folder of the store.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The folders of the store and of the others that are only read, in this order.
    pub fn folders(&self) -> impl DoubleEndedIterator<Item = &Path> {
        let others = self.0.others.iter().map(|other| &*other.path);
        std::iter::once(&*self.0.path).chain(others)
    }

    /// Whether a content is here, or could be taken from another store; then it is.
    fn obtain(&self, content: &FileDigest, size: u64) -> Result<bool, Error> {
        if self.0.contents.has(content, Some(size)) {
            return Ok(true);
        }
        if size == 0 {
            // A table may say so of any content: what is here under that name stays.
            let empty = *content == FileDigest::of(b"");
            return match empty {
                true => self.0.contents.put(content, &[]).map(|()| true),
                false => Ok(false),
            };
        }
        for other in &self.0.others {
            if self.0.contents.take(&other.contents, content, size)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Its own files, the others' being only read. What is written to one that shares its inode with a tree is found out.
impl Files for Store {
    fn file(&self, content: &FileDigest) -> io::Result<Option<File>> {
        match self.0.contents.file(content) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_still(&self, content: &FileDigest, file: &File) -> io::Result<bool> {
        self.0.contents.is_still(content, file)
    }

    fn lent(&self, content: &FileDigest, file: &File, modified: Time) -> io::Result<()> {
        self.0.contents.lent(content, file, modified)
    }
}

/// Contents of this store and of the others. Checks seals and sizes, one system call each; bytes that rotted under a
/// whole seal are found where they are used as a base, and by [`Store::verify`].
impl Source for Store {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        let others = self.0.others.iter().map(|other| &other.contents);
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
        for other in &self.0.others {
            match other.contents.read_at(content, offset, buf) {
                Err(error) if is_absence(&error) => {}
                done => return done,
            }
        }
        Err(first)
    }
}

/// What a folder says to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A store that this version reads and writes.
    Store,
    /// A store of another version.
    Later,
    /// Something that marks its folders in the same way: the data of a proxy.
    Foreign,
    /// Nothing.
    None,
}

/// What a folder is, by its mark.
///
/// # Errors
/// The file system's.
pub fn kind(path: &Path) -> Result<Kind, Error> {
    match image::read(&path.join("version"), 64) {
        Ok(found) if found == VERSION => Ok(Kind::Store),
        // A power cut can leave a new file without its bytes.
        Ok(found) if found.is_empty() => Ok(Kind::None),
        Ok(found) if found.starts_with(b"store ") => Ok(Kind::Later),
        Ok(_) => Ok(Kind::Foreign),
        Err(Error::Missing(_)) => Ok(Kind::None),
        Err(error) => Err(error),
    }
}

/// Whether a folder is a store of this version, and not yet something else.
fn claimed(path: &Path) -> Result<bool, Error> {
    let shown = path.display();
    match kind(path)? {
        Kind::Store => Ok(true),
        Kind::None => Ok(false),
        Kind::Later => Err(Error::Foreign(format!(
            "the store {shown} was written by a later pierhead: use that one, or name another folder"
        ))),
        Kind::Foreign => Err(Error::Foreign(format!(
            "{shown} is no store of `pierhead pull` but looks like the data folder of `pierhead serve`: name another folder"
        ))),
    }
}

/// What a folder may hold that becomes a store.
const FRESH: [&str; 4] = ["lost+found", "lock", "version", "version.partial"];
/// The folders that every store has.
const FOLDERS: [&str; 3] = ["images", "fetches", "contents"];
/// What a store may hold besides.
const ADDED: [&str; 4] = ["lent", "unsynced", "pulled.json", "pulled.json.partial"];

/// Makes an empty folder a store, unless it is one. A store without its version file gets a new one. Only in one's [`turn`].
fn claim(path: &Path) -> Result<(), Error> {
    if claimed(path)? {
        return Ok(());
    }
    let entries = fs::read_dir(path);
    let mut entries =
        entries.map_err(|error| Error::io(format!("open the store {}", path.display()), error))?;
    // Only a store has all three: its version file was lost.
    let is_store = FOLDERS.iter().all(|name| path.join(name).is_dir());
    let ours = |name: &std::ffi::OsStr| {
        let name = name.to_str().unwrap_or_default();
        FRESH.contains(&name) || is_store && (FOLDERS.contains(&name) || ADDED.contains(&name))
    };
    let stranger = entries.find_map(|entry| {
        let name = entry.ok().map(|entry| entry.file_name());
        name.filter(|name| !ours(name))
    });
    if let Some(stranger) = stranger {
        return Err(Error::Foreign(format!(
            "{} is no store of `pierhead pull`: it holds {}; name a new or empty folder",
            path.display(),
            stranger.to_string_lossy()
        )));
    }
    durable::write(&path.join("version"), |file| file.write_all(VERSION))
}

/// A short turn at a folder's own files, one process after the other, until it is dropped. The folder itself is locked,
/// so that nothing is written for it; without such locks (NFS has none on folders) two that meet may disturb each other.
fn turn(path: &Path) -> Option<File> {
    let folder = File::open(path).ok()?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&folder, FlockOperation::LockExclusive)).ok()?;
    Some(folder)
}
