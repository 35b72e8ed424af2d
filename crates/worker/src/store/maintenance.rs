//! Maintenance of a worker's whole store: recovery after a crash of the system, verification of all
//! contents, and garbage collection.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::content_dir::ContentEntry;
use super::folder::{entries, lock_folder};
use super::image::{self, Image};
use super::image_store::Store;
use crate::Error;
use pierhead_toc::{FileDigest, Source};

/// The result of [`Store::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of contents whose bytes match their digest.
    pub good: u64,
    /// Contents that did not match their digest, and so were removed. The next pull fetches these
    /// contents again.
    pub removed: Vec<FileDigest>,
}

/// The result of [`Store::collect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Number of files that were removed.
    pub files: u64,
    /// Number of bytes of the removed files.
    pub bytes: u64,
}

impl Store {
    /// Reads and hashes every content. Removes the contents that do not match their digest.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn verify(&self) -> Result<VerifyReport, Error> {
        let mut verified = VerifyReport::default();
        for content in self.contents()? {
            match self.0.contents.verify(&content)? {
                true => verified.good += 1,
                false => verified.removed.push(content),
            }
        }
        verified.removed.sort();
        Ok(verified)
    }

    /// Removes the record of an image. The contents of the image stay in the store until
    /// [`Store::collect`] runs.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn forget(&self, manifest: &pierhead_oci::Digest) -> Result<(), Error> {
        let folder = self.0.path.join("images").join(manifest.hex());
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", folder.display()), error))
            }
            _ => Ok(()),
        }
    }

    /// Removes contents that no complete image uses, and unfinished fetches. While this function
    /// runs, no other process may use the store.
    ///
    /// # Errors
    /// `Io` of the kind `WouldBlock` if another process or thread has the store open. Errors of the
    /// file system.
    pub fn collect(&self) -> Result<CollectReport, Error> {
        if Arc::strong_count(&self.0) > 1 {
            let doing = "collect garbage: a fetch of this process uses the store";
            return Err(Error::io(doing, io::ErrorKind::WouldBlock.into()));
        }
        self.lock_exclusive()?;
        let collected = self.collect_alone();
        let shared = rustix::fs::flock(&self.0.lock, FlockOperation::LockShared);
        shared.map_err(|error| Error::io("share the store", error.into()))?;
        collected
    }

    fn collect_alone(&self) -> Result<CollectReport, Error> {
        for fetch in entries(&self.0.path.join("fetches"))? {
            let _ = fs::remove_dir_all(fetch);
        }
        let used = self.used()?;
        let mut collected = CollectReport::default();
        let mut temporary = Vec::new();
        let mut unused = Vec::new();
        self.0.contents.for_each(|named| match named {
            ContentEntry::Content(content) if used.contains(&content) => {}
            ContentEntry::Content(content) => unused.push(content),
            ContentEntry::Temporary(path) => temporary.push(path),
        })?;
        for content in unused {
            let size = self.0.contents.size(&content).ok().flatten();
            collected.bytes += size.unwrap_or(0);
            collected.files += 1;
            self.0.contents.remove(&content);
        }
        for path in temporary {
            collected.files += 1;
            let _ = fs::remove_file(path);
        }
        Ok(collected)
    }

    /// After a crash of the system, again hashes every content that belongs to no complete image.
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
        match self.lock_exclusive() {
            Ok(()) => {}
            // Another process holds the lock. That process recovered the store when it opened the
            // store.
            Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
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

    /// Writes the marker file `unsynced`. The caller calls this function before it writes the first
    /// content. After a crash, the marker makes [`Store::recover`] hash the contents.
    pub(super) fn mark_unsynced(&self) -> Result<(), Error> {
        let marker = self.0.path.join("unsynced");
        let _folder_lock = lock_folder(&self.0.path);
        if image::read(&marker, 256).is_ok_and(|written| written == boot()) {
            return Ok(());
        }
        pierhead_atomic_file::write(&marker, &boot())
            .map_err(|error| Error::io(format!("write {}", marker.display()), error))
    }

    /// Removes the marker file `unsynced` after a sync, unless another fetch is in progress.
    pub(super) fn clear_unsynced(&self) -> Result<(), Error> {
        let _folder_lock = lock_folder(&self.0.path);
        if entries(&self.0.path.join("fetches"))?.is_empty() {
            let _ = fs::remove_file(self.0.path.join("unsynced"));
        }
        Ok(())
    }

    fn lock_exclusive(&self) -> Result<(), Error> {
        match rustix::fs::flock(&self.0.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => {
                // The failed attempt to get the exclusive lock has released the shared lock, so
                // take the shared lock again.
                let _ = rustix::fs::flock(&self.0.lock, FlockOperation::LockShared);
                let doing = format!(
                    "lock the store {}: another process uses it; wait until it has ended",
                    self.0.path.display()
                );
                Err(Error::io(doing, io::ErrorKind::WouldBlock.into()))
            }
            Err(error) => Err(Error::io("lock the store", error.into())),
        }
    }

    fn contents(&self) -> Result<Vec<FileDigest>, Error> {
        let mut all = Vec::new();
        self.0.contents.for_each(|named| {
            if let ContentEntry::Content(content) = named {
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

/// Returns the boot ID of the kernel, which changes with each start of the system.
fn boot() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}
