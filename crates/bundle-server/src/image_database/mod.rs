//! The image database: one row per image, and the locations in packs of each packed file content.
//! In the data folder, the folder of this database has the name `directory`.
//!
//! This is the only module of the crate that uses sled. The database holds only data that pierhead
//! can rebuild from blobs, packs and TOCs. An empty database replaces a damaged database, and also
//! a database of another version.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use pierhead_host::check_database_files;
use pierhead_oci::Digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::pack::FrameIndex;
use crate::pack::RecordLocation;
use pierhead_toc::FileDigest;

/// Version of the keys and values. A database of another version is replaced by an empty database.
const VERSION: &[u8] = b"1";

/// Size of sled's page cache in bytes. Packing looks up locations in random order.
const PAGE_CACHE: u64 = 8 << 20;

/// Number of bytes of one location, which has a pack, an offset and a length.
const LOCATION: usize = 16;

/// The row of an image in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRow {
    /// The repository of the image, as `registry/repository`.
    pub(crate) repository: String,
    /// Number of the image, in the order in which images arrived.
    pub(crate) sequence: u64,
    /// Digests of the config and the layers of the image.
    pub(crate) blobs: Vec<Digest>,
    pub(crate) stage: Stage,
}

/// How far the server has prepared an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// The image waits for indexing, or is being indexed.
    Waiting,
    /// The server can make bundles of the image.
    Ready,
    /// The server cannot make bundles of the image. The text is the reason. This stage is never
    /// written to the database.
    Refused(String),
    /// The server can make bundles of the image. These layers have fast frames (compressed at a low
    /// level), which optimized frames will replace.
    Fast(Vec<Digest>),
}

impl Stage {
    /// Whether the server can make bundles of the image.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Fast(_))
    }
}

/// The open image database, which several threads share. All methods block on the disk.
pub(crate) struct ImageDatabase {
    folder: PathBuf,
    open: RwLock<Arc<Open>>,
    /// Whether `open` has created the database, so that it is empty.
    is_new: bool,
    /// Number of times that a damaged database was replaced since `open`.
    replacements: AtomicU32,
    /// Whether the database was replaced, and the caller does not know this yet.
    is_replaced: AtomicBool,
}

/// Maximum number of replacements of a database that is damaged while it is open. A cause that
/// damages more databases than this number would also damage the next database.
const MAX_REPLACEMENTS: u32 = 8;

struct Open {
    db: sled::Db,
    images: sled::Tree,
    locations: sled::Tree,
}

impl ImageDatabase {
    /// Opens the database in `folder`. Replaces an unusable database by an empty database, and
    /// returns the reason for this.
    ///
    /// # Errors
    /// The files of the database cannot be checked (EMFILE, EACCES), or no database can be created
    /// in `folder`.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Option<String>), Error> {
        adopt_replacement(folder)
            .map_err(|error| failed("open the image database", &error.into()))?;
        let existed = folder.exists();
        let checked = match check_database_files(folder) {
            // The database may be intact, so nothing replaces it.
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                return Err(Error::io(format!("check {}", folder.display()), error));
            }
            checked => checked,
        };
        let opened = guard(|| {
            checked?;
            open(folder)
        });
        match opened {
            Ok((open, is_new)) => {
                // sled starts empty without an error when it cannot read its own file.
                let damage = (existed && is_new).then(|| "sled cannot read it".to_owned());
                Ok((Self::new(folder, open, is_new), damage))
            }
            Err(what) => {
                let replacements = guard(|| replace(folder));
                let (open, is_new) =
                    replacements.map_err(|what| failed("open the image database", &what))?;
                Ok((Self::new(folder, open, is_new), Some(what.to_string())))
            }
        }
    }

    fn new(folder: &Path, open: Open, is_new: bool) -> Self {
        Self {
            folder: folder.to_owned(),
            open: RwLock::new(Arc::new(open)),
            is_new,
            replacements: AtomicU32::new(0),
            is_replaced: AtomicBool::new(false),
        }
    }

    /// Whether the database was replaced since the last call. In this case, the caller has to fill
    /// the database again.
    pub(crate) fn take_replaced(&self) -> bool {
        self.is_replaced.swap(false, Ordering::Relaxed)
    }

    /// Whether the database is empty. In this case, the caller has to read the locations of
    /// contents from the packs again.
    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Calls `visit` with each image, and skips rows that cannot be read.
    pub(crate) fn images(&self, visit: impl FnMut(Digest, ImageRow)) -> Result<(), Error> {
        let visit = RefCell::new(visit);
        self.guarded("read the image database", |open| {
            for entry in &open.images {
                let (key, value) = entry?;
                let digest = std::str::from_utf8(&key)
                    .ok()
                    .and_then(|it| it.parse().ok());
                if let (Some(digest), Some(row)) = (digest, decode(&value)) {
                    (visit.borrow_mut())(digest, row);
                }
            }
            Ok(())
        })
    }

    /// Stores the row of an image. With `None`, removes the row.
    pub(crate) fn put_image(&self, manifest: &Digest, row: Option<&ImageRow>) -> Result<(), Error> {
        let key = manifest.to_string();
        self.guarded("write the image database", |open| {
            match row {
                Some(row) => open.images.insert(key.as_bytes(), encode(row)?)?,
                None => open.images.remove(key.as_bytes())?,
            };
            Ok(())
        })
    }

    /// Removes from the database the contents whose locations `keep` rejects. Returns the number of
    /// removed contents.
    pub(crate) fn retain_locations(
        &self,
        keep: impl Fn(&[RecordLocation]) -> bool,
    ) -> Result<u64, Error> {
        self.guarded("clean up the image database", |open| {
            let mut gone = 0;
            for entry in &open.locations {
                let (key, value) = entry?;
                if !keep(&locations(&value)) {
                    open.locations.remove(key)?;
                    gone += 1;
                }
            }
            Ok(gone)
        })
    }

    /// Makes all changes of the database durable.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.guarded("write the image database", |open| {
            open.db.flush()?;
            Ok(())
        })
    }

    /// Runs `work`. When the database is damaged, replaces it and runs `work` again.
    fn guarded<T>(
        &self,
        doing: &'static str,
        work: impl Fn(&Open) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let open = self.read();
        let what = match guard(|| work(&open)) {
            Err(what) if what.is_damage => what,
            done => return done.map_err(|what| failed(doing, &what)),
        };
        let replacements = self.replace(open, &what);
        replacements
            .and_then(|open| guard(|| work(&open)))
            .map_err(|what| failed(doing, &what))
    }

    fn read(&self) -> Arc<Open> {
        let open = self.open.read();
        open.clone()
    }

    /// Replaces the database `damaged`, unless another thread has already replaced it.
    fn replace(&self, damaged: Arc<Open>, what: &Failure) -> Result<Arc<Open>, Failure> {
        let mut open = self.open.write();
        if !Arc::ptr_eq(&open, &damaged) {
            return Ok(open.clone());
        }
        let number = self.replacements.fetch_add(1, Ordering::Relaxed);
        if number >= MAX_REPLACEMENTS {
            return Err(Failure::other(format!(
                "it was damaged {MAX_REPLACEMENTS} times: {what}"
            )));
        }
        tracing::warn!(%what, "the image database is damaged; pierhead rebuilds it");
        // Other threads may still write to the damaged database by its path. So the new database
        // has another path until the next start of pierhead.
        let (new, _) = guard(|| replace(&replacement_path(&self.folder, number + 1)))?;
        *open = Arc::new(new);
        self.is_replaced.store(true, Ordering::Relaxed);
        let new = open.clone();
        // sled may panic when it closes the files of the damaged database. The next start of the
        // server deletes these files.
        let _ = guard(|| {
            drop(damaged);
            Ok(())
        });
        Ok(new)
    }
}

impl FrameIndex for ImageDatabase {
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error> {
        self.guarded("read the image database", |open| {
            let value = open.locations.get(content.as_bytes())?;
            Ok(value.map(|value| locations(&value)).unwrap_or_default())
        })
    }

    fn put(&self, content: &FileDigest, locations: &[RecordLocation]) -> Result<(), Error> {
        let mut value = Vec::with_capacity(locations.len() * LOCATION);
        for location in locations {
            value.extend_from_slice(&location.pack.to_le_bytes());
            value.extend_from_slice(&location.offset.to_le_bytes());
            value.extend_from_slice(&location.len.to_le_bytes());
        }
        self.guarded("write the image database", |open| {
            open.locations.insert(content.as_bytes(), &value[..])?;
            Ok(())
        })
    }
}

fn locations(value: &[u8]) -> Vec<RecordLocation> {
    let location = |bytes: &[u8]| {
        Some(RecordLocation {
            pack: u32::from_le_bytes(*bytes.first_chunk()?),
            offset: u64::from_le_bytes(*bytes.get(4..)?.first_chunk()?),
            len: u32::from_le_bytes(*bytes.get(12..)?.first_chunk()?),
        })
    };
    value.chunks_exact(LOCATION).filter_map(location).collect()
}

fn encode<T: Serialize>(row: &T) -> Result<Vec<u8>, Failure> {
    postcard::to_stdvec(row).map_err(|error| Failure::other(error.to_string()))
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    postcard::from_bytes(value).ok()
}

/// Interval between two attempts to open a database that another handle still closes.
const CLOSING_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of attempts to open a database that another handle still closes. sled's threads
/// may hold a database for a moment after it was closed.
const MAX_CLOSING_TRIES: u32 = 500;

/// Opens the files of the database. If another handle to these files is being closed, waits for the
/// end of that.
fn open_files(folder: &Path) -> Result<sled::Db, Failure> {
    let mut tries = 0;
    loop {
        match configured(folder) {
            Err(sled::Error::Io(error))
                if tries < MAX_CLOSING_TRIES && error.to_string().contains("acquire lock") =>
            {
                tries += 1;
                std::thread::sleep(CLOSING_INTERVAL);
            }
            opened => return Ok(opened?),
        }
    }
}

fn configured(folder: &Path) -> sled::Result<sled::Db> {
    sled::Config::default()
        .path(folder)
        .cache_capacity(PAGE_CACHE)
        .mode(sled::Mode::LowSpace)
        // The server itself calls `flush`. A thread of sled would wake up an idle host twice per
        // second.
        .flush_every_ms(None)
        .open()
}

/// Opens the database, whose files the caller has checked. The second result says whether the
/// database is empty.
fn open(folder: &Path) -> Result<(Open, bool), Failure> {
    let db = open_files(folder)?;
    let found = db.get("version")?;
    let is_new = found.is_none();
    match found {
        Some(version) if version == VERSION => {}
        Some(_) => return Err(Failure::other("another version")),
        None if db.was_recovered() => return Err(Failure::other("no version")),
        None => {
            db.insert("version", VERSION)?;
            db.flush()?;
        }
    }
    let open = Open {
        images: db.open_tree("images")?,
        locations: db.open_tree("places")?,
        db,
    };
    Ok((open, is_new))
}

/// Returns the path of the database after `number` replacements.
fn replacement_path(folder: &Path, number: u32) -> PathBuf {
    match number {
        0 => folder.to_owned(),
        _ => folder.with_extension(format!("renewed-{number}")),
    }
}

/// Renames the last database of an earlier process to `folder`, and deletes all other databases in
/// the data folder. When a kill interrupts this work, the next start of the server continues it.
#[expect(
    clippy::disallowed_methods,
    reason = "renames a folder, which atomic-file cannot"
)]
fn adopt_replacement(folder: &Path) -> io::Result<()> {
    let mut numbers = (1..=MAX_REPLACEMENTS).rev();
    let Some(last) = numbers.find(|number| replacement_path(folder, *number).exists()) else {
        return Ok(());
    };
    for number in 0..last {
        remove(&replacement_path(folder, number))?;
    }
    fs::rename(replacement_path(folder, last), folder)
}

/// Deletes the database in `folder`, and opens an empty database.
#[expect(
    clippy::disallowed_methods,
    reason = "renames a folder, which atomic-file cannot"
)]
fn replace(folder: &Path) -> Result<(Open, bool), Failure> {
    let old: PathBuf = folder.with_extension("damaged");
    remove(&old)?;
    match fs::rename(folder, &old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => remove(&old)?,
    }
    open(folder)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // There is a file in place of the folder of the database.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(folder),
        other => other,
    }
}

fn failed(doing: &'static str, what: &Failure) -> Error {
    Error::io(doing, io::Error::other(what.to_string()))
}

/// The reason why the database cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Failure {
    what: String,
    /// Whether the files of the database are damaged. After damage, a retry with the same files is
    /// useless.
    is_damage: bool,
}

impl Failure {
    fn other(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_damage: false,
        }
    }
}

impl From<sled::Error> for Failure {
    fn from(error: sled::Error) -> Self {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        Self {
            is_damage: match &error {
                sled::Error::Io(error) => matches!(error.kind(), InvalidData | UnexpectedEof),
                _ => true,
            },
            what: error.to_string(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::other(error.to_string())
    }
}

/// Turns panics of `work` into errors, since sled panics on some types of damage.
fn guard<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref().copied());
        let text = text.unwrap_or("without a message");
        Err(Failure {
            what: format!("sled panicked: {text}"),
            is_damage: true,
        })
    })
}

#[cfg(test)]
mod tests;
