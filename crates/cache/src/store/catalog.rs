//! The catalog: order of access and media types of blobs, and when tags were confirmed.
//!
//! The only module that names sled. Nothing here is the truth: whatever is missing, damaged or of
//! another version is left out, and the caller reads it from the files.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pierhead_eviction::Access;
use pierhead_oci::{Algorithm, Digest, MediaType};

use crate::store::state::Slot;
use crate::store::tag_store::Key;

/// Of keys and values; another one is a reason to start anew.
const VERSION: &[u8] = b"1";

/// sled's page cache. All is read once and then only written, so it earns nothing.
const PAGE_CACHE: u64 = 1 << 20;

/// Entries written in one atomic batch: bounds the memory of a flush.
const MAX_BATCH: usize = 1000;

pub(crate) struct Catalog {
    folder: PathBuf,
    /// `None` when the database is out of order and cannot be made anew either (a full disk).
    open: Option<Open>,
}

struct Open {
    db: sled::Db,
    blobs: sled::Tree,
    names: sled::Tree,
}

impl Catalog {
    /// Opens the database of a data folder, replacing one that cannot be used by an empty one.
    pub(crate) fn open(data: &Path) -> Self {
        let mut catalog = Self {
            folder: data.join("catalog"),
            open: None,
        };
        catalog.open = match guard(|| open(&catalog.folder)) {
            Ok(open) => Some(open),
            Err(what) => {
                tracing::warn!(%what, "the catalog cannot be used; it is rebuilt from the files");
                catalog.renew()
            }
        };
        catalog
    }

    /// Moves what is there aside, deletes it, and starts empty.
    fn renew(&self) -> Option<Open> {
        let aside = self.folder.with_extension("damaged");
        let fresh = guard(|| {
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

    /// Everything that is known of blobs. What cannot be read is left out.
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

    /// When names were confirmed.
    pub(crate) fn names(&self, mut visit: impl FnMut(&Key, u64)) {
        self.each(
            |open| &open.names,
            |key, value| {
                if let (Ok(key), Ok(value)) = (Key::try_from(key), value.try_into()) {
                    visit(&key, u64::from_le_bytes(value));
                }
            },
        );
    }

    fn each(&self, tree: impl Fn(&Open) -> &sled::Tree, mut visit: impl FnMut(&[u8], &[u8])) {
        let Some(open) = &self.open else { return };
        let read = guard(|| {
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

    /// Writes changes durably: blobs (`None`: gone) and validated names. `false` when the database had
    /// to be replaced by an empty one: then everything is to be written again.
    pub(crate) fn write(&mut self, blobs: &[(Digest, Option<Slot>)], names: &[(Key, u64)]) -> bool {
        let Some(open) = &self.open else { return true };
        let written = guard(|| {
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
            for part in names.chunks(MAX_BATCH) {
                let mut batch = sled::Batch::default();
                for (key, validated) in part {
                    batch.insert(key, &validated.to_le_bytes());
                }
                open.names.apply_batch(batch)?;
            }
            open.db.flush()?;
            Ok(())
        });
        let Err(what) = written else { return true };
        tracing::warn!(%what, "the catalog cannot be written; it is made anew");
        self.open = None;
        self.open = self.renew();
        self.open.is_none()
    }
}

fn open(folder: &Path) -> Result<Open, Failure> {
    let db = sled::Config::default()
        .path(folder)
        .cache_capacity(PAGE_CACHE)
        .mode(sled::Mode::LowSpace)
        // We say when; its own thread would wake an idle machine twice a second.
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
    Ok(Open {
        blobs: db.open_tree("blobs")?,
        names: db.open_tree("names")?,
        db,
    })
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A file where a folder should be.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(folder),
        other => other,
    }
}

/// Why the database cannot be used, for the log.
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

/// The algorithm as one byte, then the hash.
fn key(digest: &Digest) -> Vec<u8> {
    let mut key = vec![match digest.algorithm() {
        Algorithm::Sha256 => 1,
        Algorithm::Sha512 => 2,
    }];
    key.extend_from_slice(digest.as_bytes());
    key
}

/// Size, tick (8 bytes each), access time (4 bytes), all little-endian, then the media type; behind a zero byte,
/// which no media type has, cost (4 bytes) and share count (2 bytes).
fn encode(slot: &Slot) -> Vec<u8> {
    let mut value = Vec::with_capacity(27);
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
    // Entries of before costs were known end with the media type.
    let (media, rank) = match rest.iter().position(|byte| *byte == 0) {
        Some(end) => (&rest[..end], Some(rank(&rest[end + 1..])?)),
        None => (rest, None),
    };
    let (cost, shared) = rank.unwrap_or((Access::<Digest>::prior(size), 1));
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
        dirty: false,
    };
    Some((Digest::from_bytes(algorithm, hash)?, slot))
}

/// Cost and share count; `None` when they are not what is ever written.
fn rank(bytes: &[u8]) -> Option<(f32, u16)> {
    let (cost, shared) = bytes.split_first_chunk()?;
    let (cost, shared) = (f32::from_le_bytes(*cost), shared.try_into().ok()?);
    (cost.is_finite() && cost >= 0.0).then_some((cost, u16::from_le_bytes(shared)))
}

#[cfg(test)]
mod tests {
    use super::guard;

    #[test]
    fn a_panic_is_a_failure_like_others() {
        let failed = guard::<()>(|| panic!("at page {}", 7));
        assert_eq!(failed.unwrap_err().to_string(), "sled panicked: at page 7");
        let failed = guard::<()>(|| panic!("at once"));
        assert_eq!(failed.unwrap_err().to_string(), "sled panicked: at once");
    }
}
