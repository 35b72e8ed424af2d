//! What is known beyond the files: images and how far they are, and where contents are packed.
//!
//! The only module of this crate that names sled. Nothing in it is the truth: what is missing, damaged or of another
//! version is found again in the blobs, the packs and the files beside it.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pierhead_oci::Digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::pack::Known;
use crate::{Content, Error, Place};

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
    pub(crate) came: u64,
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
    Quick(Vec<Digest>),
}

impl Stage {
    /// Whether the image can be bundled.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Quick(_))
    }
}

/// See the head of this module. Shared by threads; blocks.
pub(crate) struct Directory {
    open: Open,
    /// Whether it was made anew, and knows nothing.
    is_new: bool,
}

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
        let was = folder.exists();
        match guard(|| open(folder)) {
            Ok((open, is_new)) => {
                // sled begins anew where it cannot read its own file, and says nothing.
                let lost = (was && is_new).then(|| "nothing in it can be read".to_owned());
                Ok((Self { open, is_new }, lost))
            }
            Err(what) => {
                let renewed = guard(|| renew(folder));
                let (open, is_new) = renewed.map_err(|what| failed("open the directory", &what))?;
                Ok((Self { open, is_new }, Some(what.to_string())))
            }
        }
    }

    /// Whether places are to be found again in the packs.
    pub(crate) const fn is_new(&self) -> bool {
        self.is_new
    }

    /// All images. What cannot be read is left out.
    pub(crate) fn images(&self, mut visit: impl FnMut(Digest, ImageRow)) -> Result<(), Error> {
        self.guarded("read the directory", |open| {
            for entry in &open.images {
                let (key, value) = entry?;
                let digest = std::str::from_utf8(&key)
                    .ok()
                    .and_then(|it| it.parse().ok());
                if let (Some(digest), Some(row)) = (digest, decode(&value)) {
                    visit(digest, row);
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
    pub(crate) fn retain_places(&self, keep: impl Fn(&[Place]) -> bool) -> Result<u64, Error> {
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

    fn guarded<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Open) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        guard(|| work(&self.open)).map_err(|what| failed(doing, &what))
    }
}

impl Known for Directory {
    fn get(&self, content: &Content) -> Result<Vec<Place>, Error> {
        self.guarded("read the directory", |open| {
            let value = open.places.get(content.as_bytes())?;
            Ok(value.map(|value| places(&value)).unwrap_or_default())
        })
    }

    fn put(&self, content: &Content, places: &[Place]) -> Result<(), Error> {
        let mut value = Vec::with_capacity(places.len() * PLACE);
        for place in places {
            value.extend_from_slice(&place.pack.to_le_bytes());
            value.extend_from_slice(&place.offset.to_le_bytes());
            value.extend_from_slice(&place.len.to_le_bytes());
        }
        self.guarded("write the directory", |open| {
            open.places.insert(content.as_bytes(), value)?;
            Ok(())
        })
    }
}

fn places(value: &[u8]) -> Vec<Place> {
    let place = |bytes: &[u8]| {
        Some(Place {
            pack: u32::from_le_bytes(*bytes.first_chunk()?),
            offset: u64::from_le_bytes(*bytes.get(4..)?.first_chunk()?),
            len: u32::from_le_bytes(*bytes.get(12..)?.first_chunk()?),
        })
    };
    value.chunks_exact(PLACE).filter_map(place).collect()
}

fn encode<T: Serialize>(row: &T) -> Result<Vec<u8>, Failure> {
    postcard::to_stdvec(row).map_err(|error| Failure(error.to_string()))
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    postcard::from_bytes(value).ok()
}

/// The second is whether it is empty.
fn open(folder: &Path) -> Result<(Open, bool), Failure> {
    let db = sled::Config::default()
        .path(folder)
        .cache_capacity(PAGE_CACHE)
        .mode(sled::Mode::LowSpace)
        // The library says when: a thread of sled's would wake an idle machine twice a second.
        .flush_every_ms(None)
        .open()?;
    let found = db.get("version")?;
    let is_new = found.is_none();
    match found {
        Some(version) if version == VERSION => {}
        Some(_) => return Err(Failure("another version".into())),
        None if db.was_recovered() => return Err(Failure("no version".into())),
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

/// sled panics on some damage instead of saying so.
fn guard<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref().copied());
        let text = text.unwrap_or("without a text");
        Err(Failure(format!("sled panicked: {text}")))
    })
}

#[cfg(test)]
mod tests;
