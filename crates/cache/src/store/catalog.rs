//! The catalog: a database with the order of accesses, the media types of blobs, and the times at
//! which tags were validated.
//!
//! This is the only module that uses the crate `sled`. The whole catalog can be rebuilt. Entries
//! that are damaged or have another version are ignored. In place of such entries, the caller reads
//! the files of the blobs.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pierhead_eviction::Access;
use pierhead_host::check_database_files;
use pierhead_oci::{Algorithm, Digest, MediaType};

use crate::origin::OriginSet;
use crate::store::state::Slot;
use crate::store::tag_store::Key;

/// Version of the encoding of keys and values. A catalog of another version is replaced by an empty
/// catalog.
const VERSION: &[u8] = b"1";

/// Size of sled's page cache in bytes. A larger page cache would gain nothing, because the catalog
/// is read once and after that only written.
const PAGE_CACHE: u64 = 1 << 20;

/// Maximum number of entries in one atomic batch. The maximum limits the memory of a flush.
const MAX_BATCH: usize = 1000;

pub(crate) struct Catalog {
    folder: PathBuf,
    /// The open database. `None` when the database is unusable and cannot be created again, for
    /// example on a full disk.
    open: Option<Database>,
}

struct Database {
    db: sled::Db,
    blobs: sled::Tree,
    tags: sled::Tree,
}

impl Catalog {
    /// Opens the database of a data folder. Replaces an unusable database by an empty database. If
    /// the files of the database cannot be checked (EMFILE, EACCES), the catalog has no database
    /// until the next start.
    pub(crate) fn open(data: &Path) -> Self {
        let mut catalog = Self {
            folder: data.join("catalog"),
            open: None,
        };
        let checked = match check_database_files(&catalog.folder) {
            // The database may be intact, so nothing replaces it.
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "the catalog cannot be read; this start reads all trailers");
                return catalog;
            }
            checked => checked,
        };
        let opened = catch_panic(|| {
            checked?;
            open(&catalog.folder)
        });
        catalog.open = match opened {
            Ok(open) => Some(open),
            Err(what) => {
                tracing::warn!(%what, "the catalog is unusable; it is rebuilt from the files");
                catalog.renew()
            }
        };
        catalog
    }

    /// Renames the unusable database, deletes it, and creates an empty database.
    #[expect(
        clippy::disallowed_methods,
        reason = "moves a folder aside that is deleted next"
    )]
    fn renew(&self) -> Option<Database> {
        let aside = self.folder.with_extension("damaged");
        let fresh = catch_panic(|| {
            remove(&aside)?;
            match fs::rename(&self.folder, &aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => remove(&aside)?,
            }
            open(&self.folder)
        });
        fresh
            .inspect_err(
                |what| tracing::warn!(%what, "no catalog: a restart will read all trailers"),
            )
            .ok()
    }

    /// Calls `visit` for all blobs of the catalog. Ignores unreadable entries.
    pub(crate) fn blobs(&self, mut visit: impl FnMut(Digest, Slot)) {
        self.each(
            |open| &open.blobs,
            |key, value| {
                if let Some((digest, slot)) = decode(key, value) {
                    visit(digest, slot);
                }
            },
        );
    }

    /// Calls `visit` for the validation times of all tags.
    pub(crate) fn tags(&self, mut visit: impl FnMut(&Key, u64)) {
        self.each(
            |open| &open.tags,
            |key, value| {
                if let (Ok(key), Ok(value)) = (Key::try_from(key), value.try_into()) {
                    visit(&key, u64::from_le_bytes(value));
                }
            },
        );
    }

    fn each(&self, tree: impl Fn(&Database) -> &sled::Tree, mut visit: impl FnMut(&[u8], &[u8])) {
        let Some(open) = &self.open else { return };
        let read = catch_panic(|| {
            for entry in tree(open) {
                let (key, value) = entry?;
                visit(&key, &value);
            }
            Ok(())
        });
        if let Err(what) = read {
            tracing::warn!(%what, "the catalog is damaged; the rest is read from the files");
        }
    }

    /// Writes changes of blobs (`None` for a removed blob) and validation times of tags durably.
    /// Returns `false` when an empty database replaced the old database. In that case, the caller
    /// must write all entries again.
    pub(crate) fn write(&mut self, blobs: &[(Digest, Option<Slot>)], tags: &[(Key, u64)]) -> bool {
        let Some(open) = &self.open else { return true };
        let written = catch_panic(|| {
            for part in blobs.chunks(MAX_BATCH) {
                let mut batch = sled::Batch::default();
                for (digest, slot) in part {
                    match slot {
                        Some(slot) => batch.insert(key(digest), encode(slot)),
                        None => batch.remove(key(digest)),
                    }
                }
                open.blobs.apply_batch(batch)?;
            }
            for part in tags.chunks(MAX_BATCH) {
                let mut batch = sled::Batch::default();
                for (key, validated) in part {
                    batch.insert(key, &validated.to_le_bytes());
                }
                open.tags.apply_batch(batch)?;
            }
            open.db.flush()?;
            Ok(())
        });
        let Err(what) = written else { return true };
        tracing::warn!(%what, "the catalog cannot be written; it is recreated");
        self.open = None;
        self.open = self.renew();
        self.open.is_none()
    }
}

/// Opens the database, whose files the caller has checked.
fn open(folder: &Path) -> Result<Database, Failure> {
    let db = sled::Config::default()
        .path(folder)
        .cache_capacity(PAGE_CACHE)
        .mode(sled::Mode::LowSpace)
        // The maintenance thread flushes the database. The flush thread of sled is off, because it
        // would wake up an idle machine twice a second.
        .flush_every_ms(None)
        .open()?;
    match db.get("version")? {
        Some(version) if version == VERSION => {}
        Some(_) => return Err(Failure("another version".into())),
        None if db.was_recovered() => return Err(Failure("no version".into())),
        None => {
            db.insert("version", VERSION)?;
            db.flush()?;
        }
    }
    Ok(Database {
        blobs: db.open_tree("blobs")?,
        tags: db.open_tree("names")?,
        db,
    })
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A file stands where the database folder should be.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(folder),
        other => other,
    }
}

/// The reason why the database cannot be used, for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failure(String);

impl From<sled::Error> for Failure {
    fn from(error: sled::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Runs `work` and turns a panic into an error: sled panics if a file is damaged in some ways.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref().copied());
        Err(Failure(format!(
            "sled panicked: {}",
            text.unwrap_or("without a text")
        )))
    })
}

/// Returns the key of a blob: the algorithm as one byte, then the hash.
fn key(digest: &Digest) -> Vec<u8> {
    let mut key = vec![match digest.algorithm() {
        Algorithm::Sha256 => 1,
        Algorithm::Sha512 => 2,
    }];
    key.extend_from_slice(digest.as_bytes());
    key
}

/// Encodes the entry of a blob: size and tick (8 bytes each) and access time (4 bytes), all
/// little-endian, then the media type and a zero byte, then cost (4 bytes), number of images (2
/// bytes) and origins (32 bytes each).
fn encode(slot: &Slot) -> Vec<u8> {
    let mut value = Vec::with_capacity(59);
    value.extend_from_slice(&slot.size.to_le_bytes());
    value.extend_from_slice(&slot.tick.to_le_bytes());
    value.extend_from_slice(&slot.accessed.to_le_bytes());
    value.extend_from_slice(
        slot.media_type
            .as_ref()
            .map_or("", |media| media.as_str())
            .as_bytes(),
    );
    value.push(0);
    value.extend_from_slice(&slot.cost.to_le_bytes());
    value.extend_from_slice(&slot.shared.to_le_bytes());
    slot.origins.encode(&mut value);
    value
}

fn decode(key: &[u8], value: &[u8]) -> Option<(Digest, Slot)> {
    let (algorithm, hash) = key.split_first()?;
    let algorithm = match algorithm {
        1 => Algorithm::Sha256,
        2 => Algorithm::Sha512,
        _ => return None,
    };
    let (size, rest) = value.split_first_chunk()?;
    let (tick, rest) = rest.split_first_chunk()?;
    let (accessed, rest) = rest.split_first_chunk()?;
    let size = u64::from_le_bytes(*size);
    // Entries of earlier builds end with the media type, or with the number of images.
    let (media, ranked) = match rest.iter().position(|byte| *byte == 0) {
        Some(end) => (&rest[..end], Some(decode_rank(&rest[end + 1..])?)),
        None => (rest, None),
    };
    let (cost, shared, origins) =
        ranked.unwrap_or_else(|| (Access::<Digest>::prior(size), 1, OriginSet::default()));
    let media_type = match media {
        [] => None,
        text => Some(MediaType::new(std::str::from_utf8(text).ok()?)?),
    };
    let slot = Slot {
        size,
        tick: u64::from_le_bytes(*tick),
        accessed: u32::from_le_bytes(*accessed),
        media_type,
        cost,
        shared,
        origins,
        dirty: false,
    };
    Some((Digest::from_bytes(algorithm, hash)?, slot))
}

/// Decodes cost, number of images and origins. `None` when the bytes are invalid.
fn decode_rank(bytes: &[u8]) -> Option<(f32, u16, OriginSet)> {
    let (cost, bytes) = bytes.split_first_chunk()?;
    let (shared, origins) = bytes.split_first_chunk()?;
    let cost = f32::from_le_bytes(*cost);
    let origins = OriginSet::decode(origins)?;
    (cost.is_finite() && cost >= 0.0).then_some((cost, u16::from_le_bytes(*shared), origins))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    #[test]
    fn entries_survive_a_round_trip_and_older_entries_are_read() {
        let digest = Digest::of(Algorithm::Sha512, b"any");
        let registry = |name: &str| Origin::of(&name.parse().unwrap());
        let mut origins = OriginSet::from(registry("one.example"));
        origins.add(registry("two.example"));
        let slot = Slot {
            size: 7,
            tick: 8,
            media_type: MediaType::new(MediaType::OCI_MANIFEST),
            accessed: 9,
            cost: 0.5,
            shared: 3,
            origins: origins.clone(),
            dirty: false,
        };
        let (key, value) = (key(&digest), encode(&slot));
        let (found, read) = decode(&key, &value).unwrap();
        assert_eq!((found, &read.origins), (digest, &origins));
        assert_eq!(encode(&read), value);
        // Earlier builds wrote no origins, and before that neither cost nor number of images.
        let (_, read) = decode(&key, &value[..value.len() - 64]).unwrap();
        assert_eq!((read.cost, read.shared), (0.5, 3));
        assert!(read.origins.is_empty());
        let (_, read) = decode(&key, &value[..value.len() - 64 - 7]).unwrap();
        assert_eq!((read.media_type, read.shared), (slot.media_type, 1));
        assert!(read.origins.is_empty());
        // Damaged values are ignored.
        for cut in [1, 31, 33, 65] {
            assert!(decode(&key, &value[..value.len() - cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn a_pipe_or_a_huge_file_in_the_catalog_is_replaced_without_a_wait() {
        let data = tempfile::tempdir().unwrap();
        drop(Catalog::open(data.path()));
        let conf = data.path().join("catalog/conf");
        let make_pipe = || {
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, &conf, mode).unwrap();
        };
        let make_huge = || {
            let file = std::fs::File::create(&conf).unwrap();
            file.set_len(16 << 30).unwrap();
        };
        for make in [&make_pipe as &dyn Fn(), &make_huge] {
            std::fs::remove_file(&conf).unwrap();
            make();
            let (sender, receiver) = std::sync::mpsc::channel();
            let folder = data.path().to_owned();
            std::thread::spawn(move || sender.send(Catalog::open(&folder).open.is_some()));
            let limit = std::time::Duration::from_secs(10);
            assert_eq!(receiver.recv_timeout(limit), Ok(true));
            assert!(conf.metadata().unwrap().len() < 1 << 20);
        }
    }

    #[test]
    fn a_catalog_that_cannot_be_checked_is_not_replaced() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("catalog");
        // A link to itself fails with ELOOP. This stands for EMFILE or EACCES.
        std::os::unix::fs::symlink(&folder, &folder).unwrap();
        assert!(Catalog::open(data.path()).open.is_none() && folder.is_symlink());
        std::fs::remove_file(&folder).unwrap();
        assert!(Catalog::open(data.path()).open.is_some());
    }

    #[test]
    fn a_panic_of_sled_becomes_an_error() {
        let failed = catch_panic::<()>(|| panic!("at page {}", 7));
        assert_eq!(failed.unwrap_err().to_string(), "sled panicked: at page 7");
        let failed = catch_panic::<()>(|| panic!("at once"));
        assert_eq!(failed.unwrap_err().to_string(), "sled panicked: at once");
    }
}
