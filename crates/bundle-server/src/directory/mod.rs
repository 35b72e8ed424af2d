//! What is known beyond the files: images and how far they are, and where contents are packed.
//!
//! The only module of this crate that names sled. Nothing in it is the truth: what is missing, damaged or of another
//! version is found again in the blobs, the packs and the files beside it.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use pierhead_oci::Digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::pack::FrameIndex;
use crate::pack::RecordLocation;
use pierhead_toc::{Error, FileDigest};

/// Of keys and values; another one is a reason to start anew.
const VERSION: &[u8] = b"1";

/// sled's page cache: places are looked up while packing, in no order.
const PAGE_CACHE: u64 = 8 << 20;

/// Bytes of one place: pack, offset, length.
const PLACE: usize = 16;

/// What is known of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRow {
    /// `registry/repository`.
    pub(crate) repository: String,
    /// The order in which images came: a count.
    pub(crate) sequence: u64,
    /// Config and layers.
    pub(crate) blobs: Vec<Digest>,
    pub(crate) stage: Stage,
}

/// How far an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    Waiting,
    Ready,
    /// Never written.
    Refused(String),
    /// As `Ready`; these of its layers have frames that better ones will replace.
    Fast(Vec<Digest>),
}

impl Stage {
    /// Whether the image can be bundled.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Fast(_))
    }
}

/// See the head of this module. Shared by threads; blocks.
pub(crate) struct Directory {
    folder: PathBuf,
    open: RwLock<Arc<Open>>,
    /// Whether it was made anew, and knows nothing.
    is_new: bool,
    /// How often it was made anew since.
    renewed: AtomicU32,
    /// Whether that was not told yet.
    is_lost: AtomicBool,
}

/// How often a database that is damaged while it is open is made anew: whatever does it oftener damages the next one, too.
const MAX_RENEWED: u32 = 8;

struct Open {
    db: sled::Db,
    images: sled::Tree,
    places: sled::Tree,
}

impl Directory {
    /// Opens the database in `folder`, replacing one that cannot be used by an empty one.
    ///
    /// # Errors
    /// There can be none at all there.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Option<String>), Error> {
        take_over(folder).map_err(|error| failed("open the directory", &error.into()))?;
        let was = folder.exists();
        match guard(|| open(folder)) {
            Ok((open, is_new)) => {
                // sled begins anew where it cannot read its own file, and says nothing.
                let lost = (was && is_new).then(|| "nothing in it can be read".to_owned());
                Ok((Self::new(folder, open, is_new), lost))
            }
            Err(what) => {
                let renewed = guard(|| renew(folder));
                let (open, is_new) = renewed.map_err(|what| failed("open the directory", &what))?;
                Ok((Self::new(folder, open, is_new), Some(what.to_string())))
            }
        }
    }

    fn new(folder: &Path, open: Open, is_new: bool) -> Self {
        Self {
            folder: folder.to_owned(),
            open: RwLock::new(Arc::new(open)),
            is_new,
            renewed: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Whether it was found damaged while it was open, and replaced by an empty one, which is to be told what it knew. Says so
    /// once.
    pub(crate) fn take_lost(&self) -> bool {
        self.is_lost.swap(false, Ordering::Relaxed)
    }

    /// Whether places are to be found again in the packs.
    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// All images. What cannot be read is left out.
    pub(crate) fn images(&self, visit: impl FnMut(Digest, ImageRow)) -> Result<(), Error> {
        let visit = RefCell::new(visit);
        self.guarded("read the directory", |open| {
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

    /// Notes an image; `None` forgets it.
    pub(crate) fn put_image(&self, manifest: &Digest, row: Option<&ImageRow>) -> Result<(), Error> {
        let key = manifest.to_string();
        self.guarded("write the directory", |open| {
            match row {
                Some(row) => open.images.insert(key.as_bytes(), encode(row)?)?,
                None => open.images.remove(key.as_bytes())?,
            };
            Ok(())
        })
    }

    /// Visits all contents with places; those that `keep` does not want are forgotten.
    pub(crate) fn retain_places(
        &self,
        keep: impl Fn(&[RecordLocation]) -> bool,
    ) -> Result<u64, Error> {
        self.guarded("tidy the directory", |open| {
            let mut gone = 0;
            for entry in &open.places {
                let (key, value) = entry?;
                if !keep(&places(&value)) {
                    open.places.remove(key)?;
                    gone += 1;
                }
            }
            Ok(gone)
        })
    }

    /// Makes all of it durable.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.guarded("write the directory", |open| {
            open.db.flush()?;
            Ok(())
        })
    }

    /// Does it, and once more with a new database where the one that is open turns out to be damaged.
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
        let renewed = self.renew(open, &what);
        renewed
            .and_then(|open| guard(|| work(&open)))
            .map_err(|what| failed(doing, &what))
    }

    fn read(&self) -> Arc<Open> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone()
    }

    /// In place of `damaged`, unless somebody was quicker.
    fn renew(&self, damaged: Arc<Open>, what: &Failure) -> Result<Arc<Open>, Failure> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&open, &damaged) {
            return Ok(open.clone());
        }
        let number = self.renewed.fetch_add(1, Ordering::Relaxed);
        if number >= MAX_RENEWED {
            return Err(Failure::other(format!("damaged again and again: {what}")));
        }
        tracing::warn!(%what, "the directory is damaged; it is made anew");
        // Whoever is at work with the damaged one may still write by its path: the new one lies elsewhere until the next start.
        let (new, _) = guard(|| renew(&beside(&self.folder, number + 1)))?;
        *open = Arc::new(new);
        self.is_lost.store(true, Ordering::Relaxed);
        let new = open.clone();
        // sled may panic once more as it closes its files, which go with the next start.
        let _ = guard(|| {
            drop(damaged);
            Ok(())
        });
        Ok(new)
    }
}

impl FrameIndex for Directory {
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error> {
        self.guarded("read the directory", |open| {
            let value = open.places.get(content.as_bytes())?;
            Ok(value.map(|value| places(&value)).unwrap_or_default())
        })
    }

    fn put(&self, content: &FileDigest, places: &[RecordLocation]) -> Result<(), Error> {
        let mut value = Vec::with_capacity(places.len() * PLACE);
        for place in places {
            value.extend_from_slice(&place.pack.to_le_bytes());
            value.extend_from_slice(&place.offset.to_le_bytes());
            value.extend_from_slice(&place.len.to_le_bytes());
        }
        self.guarded("write the directory", |open| {
            open.places.insert(content.as_bytes(), &value[..])?;
            Ok(())
        })
    }
}

fn places(value: &[u8]) -> Vec<RecordLocation> {
    let place = |bytes: &[u8]| {
        Some(RecordLocation {
            pack: u32::from_le_bytes(*bytes.first_chunk()?),
            offset: u64::from_le_bytes(*bytes.get(4..)?.first_chunk()?),
            len: u32::from_le_bytes(*bytes.get(12..)?.first_chunk()?),
        })
    };
    value.chunks_exact(PLACE).filter_map(place).collect()
}

fn encode<T: Serialize>(row: &T) -> Result<Vec<u8>, Failure> {
    postcard::to_stdvec(row).map_err(|error| Failure::other(error.to_string()))
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    postcard::from_bytes(value).ok()
}

/// sled's own threads may hold a database for a moment after it was closed.
const CLOSING: Duration = Duration::from_millis(20);
const MAX_CLOSING: u32 = 500;

/// Opens the files, and waits for who closes them just now.
fn begin(folder: &Path) -> Result<sled::Db, Failure> {
    let mut tries = 0;
    loop {
        match configured(folder) {
            Err(sled::Error::Io(error))
                if tries < MAX_CLOSING && error.to_string().contains("acquire lock") =>
            {
                tries += 1;
                std::thread::sleep(CLOSING);
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
        // The library says when: a thread of sled's would wake an idle machine twice a second.
        .flush_every_ms(None)
        .open()
}

/// The second is whether it is empty.
fn open(folder: &Path) -> Result<(Open, bool), Failure> {
    let db = begin(folder)?;
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
        places: db.open_tree("places")?,
        db,
    };
    Ok((open, is_new))
}

/// Where the database lies that was made in place of so many others while they were open.
fn beside(folder: &Path, number: u32) -> PathBuf {
    match number {
        0 => folder.to_owned(),
        _ => folder.with_extension(format!("renewed-{number}")),
    }
}

/// Gives the last one that an earlier process made its usual place. Cut short, the next start does the same.
fn take_over(folder: &Path) -> io::Result<()> {
    let mut numbers = (1..=MAX_RENEWED).rev();
    let Some(last) = numbers.find(|number| beside(folder, *number).exists()) else {
        return Ok(());
    };
    for number in 0..last {
        remove(&beside(folder, number))?;
    }
    fs::rename(beside(folder, last), folder)
}

/// Moves what is there aside, deletes it, and starts empty.
fn renew(folder: &Path) -> Result<(Open, bool), Failure> {
    let aside: PathBuf = folder.with_extension("damaged");
    remove(&aside)?;
    match fs::rename(folder, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => remove(&aside)?,
    }
    open(folder)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A file where a folder should be.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(folder),
        other => other,
    }
}

fn failed(doing: &'static str, what: &Failure) -> Error {
    Error::io(doing, io::Error::other(what.to_string()))
}

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Failure {
    what: String,
    /// Whether its files are not what was written into them, which no second try mends.
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

/// sled panics on some damage instead of saying so.
fn guard<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref().copied());
        let text = text.unwrap_or("without a text");
        Err(Failure {
            what: format!("sled panicked: {text}"),
            is_damage: true,
        })
    })
}

#[cfg(test)]
mod tests;
