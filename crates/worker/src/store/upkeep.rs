//! What is done to a store as a whole: recovery after a crash of the system, verification, collection.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::contents::Named;
use super::{Image, Store, image};
use pierhead_toc::{Error, FileDigest, Source, durable};

/// What [`Store::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Contents that are what they are called.
    pub good: u64,
    /// Contents that were not, and were removed: the next pull asks for them again.
    pub removed: Vec<FileDigest>,
}

/// What [`Store::collect`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Store {
    /// Reads and hashes every content; what is not what it is called is removed.
    ///
    /// # Errors
    /// The file system's.
    pub fn verify(&self) -> Result<Verified, Error> {
        let mut verified = Verified::default();
        for content in self.contents()? {
            match self.0.contents.verify(&content)? {
                true => verified.good += 1,
                false => verified.removed.push(content),
            }
        }
        verified.removed.sort();
        Ok(verified)
    }

    /// Forgets a complete image; its contents stay until [`Store::collect`].
    ///
    /// # Errors
    /// The file system's.
    pub fn forget(&self, manifest: &pierhead_oci::Digest) -> Result<(), Error> {
        let folder = self.0.path.join("images").join(manifest.hex());
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", folder.display()), error))
            }
            _ => Ok(()),
        }
    }

    /// Removes contents that no complete image has, and fetches that were begun: nobody else may use the store meanwhile.
    ///
    /// # Errors
    /// `Io` of the kind `WouldBlock` when somebody does; the file system's.
    pub fn collect(&self) -> Result<Collected, Error> {
        if Arc::strong_count(&self.0) > 1 {
            let doing = "collect in a store of which a fetch is going on";
            return Err(Error::io(doing, io::ErrorKind::WouldBlock.into()));
        }
        self.alone()?;
        let collected = self.collect_alone();
        let shared = rustix::fs::flock(&self.0.lock, FlockOperation::LockShared);
        shared.map_err(|error| Error::io("share the store", error.into()))?;
        collected
    }

    fn collect_alone(&self) -> Result<Collected, Error> {
        for fetch in entries(&self.0.path.join("fetches"))? {
            let _ = fs::remove_dir_all(fetch);
        }
        let used = self.used()?;
        let mut collected = Collected::default();
        let mut leftovers = Vec::new();
        let mut unused = Vec::new();
        self.0.contents.names(|named| match named {
            Named::FileDigest(content) if used.contains(&content) => {}
            Named::FileDigest(content) => unused.push(content),
            Named::Leftover(path) => leftovers.push(path),
        })?;
        for content in unused {
            let size = self.0.contents.size(&content).ok().flatten();
            collected.bytes += size.unwrap_or(0);
            collected.files += 1;
            self.0.contents.remove(&content);
        }
        for path in leftovers {
            collected.files += 1;
            let _ = fs::remove_file(path);
        }
        Ok(collected)
    }

    /// After a crash of the system: whatever no complete image vouches for is hashed again.
    pub(super) fn recover(&self) -> Result<(), Error> {
        let marker = self.0.path.join("unsynced");
        let written = match image::read(&marker, 256) {
            Ok(written) => written,
            Err(Error::Missing(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if written == boot() {
            return Ok(());
        }
        match self.alone() {
            Ok(()) => {}
            // Whoever has it recovered it when he opened it.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let used = self.used()?;
        for content in self.contents()? {
            if !used.contains(&content) {
                self.0.contents.verify(&content)?;
            }
        }
        self.0.contents.sync()?;
        fs::remove_file(&marker)
            .map_err(|error| Error::io("note that the store was recovered", error))
    }

    /// Notes, before the first content is written, that a crash of the system must not be survived by it unseen.
    pub(super) fn unsynced(&self) -> Result<(), Error> {
        let marker = self.0.path.join("unsynced");
        let _turn = super::turn(&self.0.path);
        if image::read(&marker, 256).is_ok_and(|written| written == boot()) {
            return Ok(());
        }
        durable::write(&marker, |file| file.write_all(&boot()))
    }

    /// All is on the disk; unless somebody else is fetching, the note goes.
    pub(super) fn synced(&self) -> Result<(), Error> {
        let _turn = super::turn(&self.0.path);
        if entries(&self.0.path.join("fetches"))?.is_empty() {
            let _ = fs::remove_file(self.0.path.join("unsynced"));
        }
        Ok(())
    }

    fn alone(&self) -> Result<(), Error> {
        match rustix::fs::flock(&self.0.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => {
                // Asking for it alone gave up our share.
                let _ = rustix::fs::flock(&self.0.lock, FlockOperation::LockShared);
                let doing = format!(
                    "have the store {} alone: it is in use",
                    self.0.path.display()
                );
                Err(Error::io(doing, io::ErrorKind::WouldBlock.into()))
            }
            Err(error) => Err(Error::io("lock the store", error.into())),
        }
    }

    fn contents(&self) -> Result<Vec<FileDigest>, Error> {
        let mut all = Vec::new();
        self.0.contents.names(|named| {
            if let Named::FileDigest(content) = named {
                all.push(content);
            }
        })?;
        Ok(all)
    }

    fn used(&self) -> Result<HashSet<FileDigest>, Error> {
        let mut used = HashSet::new();
        for path in entries(&self.0.path.join("images"))? {
            if let Ok(image) = Image::load(&path) {
                used.extend(image.needed().map(|(content, _)| content));
            }
        }
        Ok(used)
    }
}

/// What lies in a folder, without what is being written.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::io(format!("list {}", folder.display()), error);
    let mut paths = Vec::new();
    let read = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(paths),
        read => read.map_err(failed)?,
    };
    for entry in read {
        let path = entry.map_err(failed)?.path();
        let partial = path
            .extension()
            .is_some_and(|end| durable::PARTIAL.strip_prefix('.') == end.to_str());
        if !partial {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Names this run of the system.
fn boot() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}
