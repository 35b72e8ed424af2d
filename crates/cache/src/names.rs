//! Names: what a tag (or a tag list, or a referrers list) stood for when the upstream last said so.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pierhead_oci::{Algorithm, Digest, Hasher, MediaType, Reference, Registry, Repository, Target};
use serde::{Deserialize, Serialize};

use crate::state::blocks;
use crate::store::{Store, blocking};
use crate::{Error, lock, record};

/// What a record is about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Name {
    /// A tag or digest of a repository: its manifest.
    Manifest(Reference),
    /// The complete list of tags of a repository.
    Tags(Registry, Repository),
    /// The complete referrers index of a digest.
    Referrers(Registry, Repository, Digest),
}

/// What the upstream last said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The document's digest; its bytes are a blob of the cache (and may have been evicted).
    pub digest: Digest,
    /// The document's media type.
    pub media_type: MediaType,
    /// The upstream's `ETag`, to revalidate by.
    pub etag: Option<String>,
    /// When the upstream last confirmed it: seconds since 1970; 0 when unknown (then it is stale).
    pub validated: u64,
}

/// All names. Records are files (they cannot be rebuilt from blobs); how recently each was validated is
/// kept in memory and in the catalog, so that a revalidation costs no disk write.
pub struct Names {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    store: Arc<Store>,
    /// Held while a file is written: the order on disk is the order in memory.
    writing: Mutex<()>,
    records: Mutex<HashMap<Key, Slot>>,
}

/// Names take no more than one part in so many of the capacity: 100 000 of them are 400 MB on disk.
const SHARE: u64 = 16;

/// The SHA-256 of the name's text, which is also its file's name: names are long, and only ever looked up whole.
pub(crate) type Key = [u8; 32];

struct Slot {
    digest: Digest,
    media_type: MediaType,
    etag: Option<Box<str>>,
    /// On disk.
    bytes: u64,
    validated: u64,
    /// Whether the catalog has not been told of `validated`.
    dirty: bool,
}

/// The file.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    name: String,
    digest: Digest,
    media_type: String,
    etag: Option<String>,
    validated: u64,
}

/// The text whose hash is the key; written into the file for people.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(reference) => write!(f, "manifest {reference}"),
            Self::Tags(registry, repository) => write!(f, "tags {registry}/{repository}"),
            Self::Referrers(registry, repository, digest) => {
                write!(f, "referrers {registry}/{repository}@{digest}")
            }
        }
    }
}

/// Hashes what is written to it: a lookup makes no string.
struct Hashing(Hasher);

impl fmt::Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

fn key(text: impl fmt::Display) -> Key {
    let mut hashing = Hashing(Hasher::new(Algorithm::Sha256));
    // It never fails.
    let _ = write!(hashing, "{text}");
    let mut key = Key::default();
    key.copy_from_slice(hashing.0.finish().as_bytes());
    key
}

impl Names {
    /// Reads them, and has them counted.
    pub(crate) fn open(store: Arc<Store>) -> io::Result<Self> {
        let folder = store.config.data.join("names");
        let mut records = HashMap::new();
        let mut all = 0;
        record::load(&folder, |len, stored: Stored| {
            all += blocks(len);
            if let Some(media_type) = MediaType::new(&stored.media_type) {
                let slot = Slot {
                    digest: stored.digest,
                    media_type,
                    etag: stored.etag.map(Into::into),
                    bytes: blocks(len),
                    validated: stored.validated,
                    dirty: false,
                };
                records.insert(key(stored.name.as_str()), slot);
            }
        })?;
        records.shrink_to_fit();
        lock(&store.state).names = all;
        let inner = Inner {
            folder,
            store,
            writing: Mutex::new(()),
            records: Mutex::new(records),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The record, fresh or not: what counts as fresh is the caller's matter. No I/O, about a microsecond.
    pub fn get(&self, name: &Name) -> Option<Record> {
        let key = key(name);
        let records = lock(&self.inner.records);
        let slot = records.get(&key)?;
        Some(Record {
            digest: slot.digest,
            media_type: slot.media_type.clone(),
            etag: slot.etag.as_deref().map(str::to_owned),
            validated: slot.validated,
        })
    }

    /// Remembers what the upstream said. Durable when it returns if the digest, type or `ETag` changed;
    /// else it costs no I/O.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NoRoom`]; what was remembered before stays.
    pub async fn put(&self, name: &Name, record: Record) -> Result<(), Error> {
        let key = key(name);
        if let Some(slot) = lock(&self.inner.records).get_mut(&key)
            && slot.digest == record.digest
            && slot.media_type == record.media_type
            && slot.etag.as_deref() == record.etag.as_deref()
        {
            slot.validated = record.validated;
            slot.dirty = true;
            return Ok(());
        }
        let (inner, text) = (self.inner.clone(), name.to_string());
        blocking(move || inner.write(text, key, record)).await
    }

    /// Forgets: the upstream says that there is no such name.
    ///
    /// # Errors
    /// [`Error::Io`]; then it comes back after a restart.
    pub async fn remove(&self, name: &Name) -> Result<(), Error> {
        let key = key(name);
        let Some(slot) = lock(&self.inner.records).remove(&key) else {
            return Ok(());
        };
        let (inner, text) = (self.inner.clone(), name.to_string());
        blocking(move || {
            let _writing = lock(&inner.writing);
            // Remembered anew meanwhile: that has replaced the file.
            if lock(&inner.records).contains_key(&key) {
                lock(&inner.store.state).names -= slot.bytes;
                return Ok(());
            }
            record::delete(&inner.folder, &text)
                .map_err(|error| Error::io("forget a name in", &inner.folder, error))?;
            lock(&inner.store.state).names -= slot.bytes;
            Ok(())
        })
        .await
    }

    /// Up to `limit` images that are known by a tag, in no order; what they consist of may have been evicted.
    /// Reads the file of each name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn images(&self, limit: usize) -> Result<Vec<Reference>, Error> {
        let inner = self.inner.clone();
        blocking(move || {
            let mut images = Vec::new();
            let visit = |stored: Stored| {
                let text = stored.name.strip_prefix("manifest ");
                let reference = text.and_then(|text| text.parse::<Reference>().ok());
                images.extend(reference.filter(|it| matches!(it.target, Target::Tag(_))));
                images.len() < limit
            };
            record::each(&inner.folder, visit)
                .map_err(|error| Error::io("list the names in", &inner.folder, error))?;
            Ok(images)
        })
        .await
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.inner.records).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes over a later validation that the catalog knows of.
    pub(crate) fn restore(&self, key: &Key, validated: u64) {
        if let Some(slot) = lock(&self.inner.records).get_mut(key) {
            slot.validated = slot.validated.max(validated);
        }
    }

    /// All validations, for a new catalog.
    pub(crate) fn take_all(&self) -> Vec<(Key, u64)> {
        let mut records = lock(&self.inner.records);
        let all = records.iter_mut().map(|(key, slot)| {
            slot.dirty = false;
            (*key, slot.validated)
        });
        all.collect()
    }

    /// Validations since the last call, for the catalog.
    pub(crate) fn take_dirty(&self) -> Vec<(Key, u64)> {
        let mut records = lock(&self.inner.records);
        let dirty = records.iter_mut().filter_map(|(key, slot)| {
            std::mem::take(&mut slot.dirty).then_some((*key, slot.validated))
        });
        dirty.collect()
    }
}

impl Inner {
    fn write(&self, name: String, key: Key, record: Record) -> Result<(), Error> {
        let _writing = lock(&self.writing);
        let stored = Stored {
            digest: record.digest,
            media_type: record.media_type.as_str().to_owned(),
            etag: record.etag,
            validated: record.validated,
            name,
        };
        let failed = |error| Error::io("remember a name in", &self.folder, error);
        let text = record::encode(&stored).map_err(failed)?;
        let bytes = blocks(text.len() as u64);
        self.store.reserve(bytes)?;
        let file = self.folder.join(record::file_name(&stored.name));
        if let Err(error) = record::write_file(&file, &text) {
            self.store.release(bytes);
            return Err(failed(error));
        }
        let slot = Slot {
            digest: record.digest,
            media_type: record.media_type,
            etag: stored.etag.map(Into::into),
            bytes,
            validated: record.validated,
            dirty: true,
        };
        let mut records = lock(&self.records);
        let replaced = records.insert(key, slot).map_or(0, |slot| slot.bytes);
        let (len, surplus) = {
            let mut state = lock(&self.store.state);
            state.reserved -= bytes;
            state.names = state.names + bytes - replaced;
            (
                records.len(),
                state.names.saturating_sub(state.capacity / SHARE),
            )
        };
        let max = self.store.config.max_names.max(1);
        if len <= max && surplus == 0 {
            return Ok(());
        }
        // A hundredth more than needed, so that the search is paid once in many.
        let surplus = usize::try_from(surplus.div_ceil(bytes.max(1))).unwrap_or(len);
        let surplus = surplus.max(len.saturating_sub(max)) + max.min(len) / 100;
        let mut ages: Vec<_> = records
            .iter()
            .map(|(key, slot)| (slot.validated, *key))
            .collect();
        let (oldest, _, _) = ages.select_nth_unstable(surplus.min(len - 1));
        let oldest: Vec<_> = oldest
            .iter()
            .filter(|(_, old)| *old != key)
            .filter_map(|(_, old)| Some((*old, records.remove(old)?.bytes)))
            .collect();
        drop(records);
        for (old, bytes) in oldest {
            let name = Digest::from_bytes(Algorithm::Sha256, &old)
                .map(|digest| digest.hex())
                .unwrap_or_default();
            match std::fs::remove_file(self.folder.join(name)) {
                Ok(()) => lock(&self.store.state).names -= bytes,
                Err(error) => tracing::warn!(%error, "cannot delete a dropped name"),
            }
        }
        Ok(())
    }
}
