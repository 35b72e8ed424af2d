//! The tag store: which digest the upstream last reported for each tag, tag list and referrers
//! list.

mod tag_index;
#[cfg(test)]
mod tests;
mod writer;

use parking_lot::Mutex;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest, Hasher, MediaType, Reference, Registry, Repository, Target};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use self::tag_index::TagIndex;
use self::writer::{Change, Job};
use crate::blocking::blocking;
use crate::error::Error;
use crate::store::Store;
use crate::store::blocks::blocks;
use crate::store::record;
use crate::store::record::LoadedRecord;

/// Identifies a record of the tag store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TagKey {
    /// The record is for the manifest of a tag or digest in a repository.
    Manifest(Reference),
    /// The record is for the complete list of tags of a repository.
    Tags(Registry, Repository),
    /// The record is for the complete list of referrers of a digest.
    Referrers(Registry, Repository, Digest),
}

/// The last response of the upstream for a tag or list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TagRecord {
    /// Digest of the document. The bytes of the document are a blob of the cache, which may have
    /// been evicted.
    pub digest: Digest,
    /// Media type of the document.
    pub media_type: MediaType,
    /// `ETag` of the upstream's response, for revalidation.
    pub etag: Option<String>,
    /// Values of the `Warning` headers of the upstream's response, for the users of the clients.
    pub warnings: Vec<String>,
    /// Time at which the upstream last confirmed the record, in seconds since 1970. The value 0
    /// means that the time is unknown, so the record counts as stale.
    pub validated: u64,
}

/// All tag records. Each record is a file, because tags cannot be rebuilt from blobs. The
/// validation times are not in these files but in memory and in the catalog, so that a revalidation
/// writes no file.
pub struct TagStore {
    inner: Arc<Inner>,
    /// The queue of the writer thread. The thread ends when this sender is dropped.
    queue: mpsc::Sender<Job>,
}

struct Inner {
    folder: PathBuf,
    store: Arc<Store>,
    index: Mutex<TagIndex>,
    /// The keys whose changes the writer thread is writing. For each key, tells whether the change
    /// removes the record. After a panic of the writer, the files of these keys may differ from the
    /// index.
    in_doubt: Mutex<Vec<(Key, bool)>>,
    #[cfg(test)]
    hook: Mutex<Option<tests::Hook>>,
}

/// Maximum number of changes in the queue of the writer. When the queue is full, callers wait
/// without blocking their thread.
const QUEUE_LEN: usize = 256;

/// Maximum number of unreadable records in one round of retries. The number is small, because a
/// failing disk may take seconds for each record.
const RETRIES_PER_ROUND: usize = 16;

/// The SHA-256 hash of the text of a [`TagKey`], which is also the name of the record's file. The
/// index uses the hash in place of the text, because the text is long and the index only compares
/// keys.
pub(crate) type Key = [u8; 32];

struct Slot {
    /// The registry of the record. The record counts towards the tags of this registry.
    registry: Arc<str>,
    digest: Digest,
    media_type: MediaType,
    etag: Option<Box<str>>,
    warnings: Box<[String]>,
    /// Bytes on disk of the record's file.
    bytes: u64,
    validated: u64,
    /// Whether the catalog lacks the last change of `validated`.
    dirty: bool,
}

impl Slot {
    /// Whether both records are equal apart from their validation times.
    fn is_same_tag(&self, other: &Self) -> bool {
        self.digest == other.digest
            && self.media_type == other.media_type
            && self.etag == other.etag
    }
}

/// The contents of a record's file, as JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct TagFile {
    name: String,
    digest: Digest,
    media_type: String,
    etag: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    validated: u64,
}

/// The text whose hash is the key. The record's file contains this text for people who read the
/// file.
impl fmt::Display for TagKey {
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

/// A writer that computes the hash of the text that is written to it. Thus a lookup allocates no
/// string.
struct Hashing(Hasher);

impl fmt::Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

fn key(text: impl fmt::Display) -> Key {
    let mut hashing = Hashing(Hasher::new(Algorithm::Sha256));
    // The result is ignored, because writing to a hash never fails.
    let _ = write!(hashing, "{text}");
    let mut key = Key::default();
    key.copy_from_slice(hashing.0.finish().as_bytes());
    key
}

/// Returns the registry in the text of a key: the part between the kind and the repository.
fn registry_of(text: &str) -> &str {
    let (_, rest) = text.split_once(' ').unwrap_or_default();
    rest.split_once('/').unwrap_or_default().0
}

/// Returns the key of a record, which is the name of its file.
fn key_of_file(path: &std::path::Path) -> Option<Key> {
    let hex = path.file_name()?.to_str()?;
    let digest = Digest::from_hex(Algorithm::Sha256, hex).ok()?;
    digest.as_bytes().try_into().ok()
}

impl TagFile {
    /// Creates the index entry of the record. `None` when the media type is invalid.
    fn slot(self, len: u64) -> Option<(Key, String, Slot)> {
        let slot = Slot {
            registry: Arc::default(),
            digest: self.digest,
            media_type: MediaType::new(&self.media_type)?,
            etag: self.etag.map(Into::into),
            warnings: self.warnings.into(),
            bytes: blocks(len),
            validated: self.validated,
            dirty: false,
        };
        Some((key(self.name.as_str()), self.name, slot))
    }
}

impl TagStore {
    /// Reads and counts all records. Unreadable files stay in place, and [`Self::retry_unreadable`]
    /// retries them later.
    pub(crate) fn open(store: Arc<Store>) -> Result<Self, Error> {
        let folder = store.config.data.join("names");
        let mut index = TagIndex::default();
        let mut all = 0;
        let loaded = record::load(&folder, |found| match found {
            LoadedRecord::Whole(len, stored) => {
                all += blocks(len);
                if let Some((key, name, slot)) = TagFile::slot(stored, len) {
                    index.insert(key, &name, slot);
                }
            }
            LoadedRecord::Unreadable(file) => {
                all += blocks(file.len);
                tracing::error!(file = %file.path.display(), error = %file.source, "cannot read the record of a tag: keeping its file, retrying later");
                if let Some(key) = key_of_file(&file.path) {
                    index.unreadable.insert(key, blocks(file.len));
                }
            }
        });
        loaded.map_err(|error| Error::io("read the tags in", &folder, error))?;
        index.shrink_to_fit();
        {
            let mut state = store.state.lock();
            state.tag_bytes = all;
            state.unreadable_tags = index.unreadable.len();
        }
        let panics = store.config.background.panics().clone();
        let inner = Arc::new(Inner {
            folder,
            store,
            index: Mutex::new(index),
            in_doubt: Mutex::default(),
            #[cfg(test)]
            hook: Mutex::default(),
        });
        let queue = writer::start(&inner, panics)
            .map_err(|error| Error::io("start the writer of", &inner.folder, error))?;
        Ok(Self { inner, queue })
    }

    /// Sets the configured registries. The maximum number of tags is divided into equal shares: one
    /// share for each configured registry, and one share for all other registries together. Until
    /// the first call, no registry counts as configured.
    pub fn set_configured<'a>(&self, registries: impl IntoIterator<Item = &'a Registry>) {
        let configured = registries.into_iter().map(|it| it.as_str().to_owned());
        self.inner.index.lock().configured = configured.collect();
    }

    /// Returns the record of any age: the caller decides whether the record is fresh. Makes no I/O
    /// and takes about 1 µs.
    pub fn get(&self, name: &TagKey) -> Option<TagRecord> {
        let key = key(name);
        let index = self.inner.index.lock();
        let slot = index.records.get(&key)?;
        Some(TagRecord {
            digest: slot.digest,
            media_type: slot.media_type.clone(),
            etag: slot.etag.as_deref().map(str::to_owned),
            warnings: slot.warnings.to_vec(),
            validated: slot.validated,
        })
    }

    /// Stores the upstream's response. If the digest, media type or `ETag` changed, the
    /// record is durable when the call returns. If nothing but the validation time changed, the
    /// call makes no I/O.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::NoRoom`]. After an error, the previous record stays.
    pub async fn put(&self, name: &TagKey, record: TagRecord) -> Result<(), Error> {
        let key = key(name);
        if let Some(slot) = self.inner.index.lock().records.get_mut(&key)
            && slot.digest == record.digest
            && slot.media_type == record.media_type
            && slot.etag.as_deref() == record.etag.as_deref()
        {
            // The file keeps the earlier warnings, because an upstream may send another warning
            // with each response.
            slot.warnings = record.warnings.into();
            slot.validated = record.validated;
            slot.dirty = true;
            return Ok(());
        }
        self.change(key, Change::Put(name.to_string(), record))
            .await
    }

    /// Removes a record, because the upstream reports that the tag or list does not exist.
    ///
    /// # Errors
    /// [`Error::Io`]. After this error, the record exists again after a restart.
    pub async fn remove(&self, name: &TagKey) -> Result<(), Error> {
        let key = key(name);
        if !self.inner.index.lock().contains(&key) {
            return Ok(());
        }
        self.change(key, Change::Remove).await
    }

    /// Sends a change to the writer thread and waits until the change is durable. If the future is
    /// dropped, the change is still made.
    async fn change(&self, key: Key, change: Change) -> Result<(), Error> {
        let (reply, reply_receiver) = oneshot::channel();
        let job = Job { key, change, reply };
        let sent = self.queue.send(job).await.is_ok();
        match reply_receiver.await {
            Ok(reply) if sent => reply,
            // The writer thread panicked during this change, and has logged the panic.
            _ => {
                let error = std::io::Error::other("the writer of tags failed");
                Err(Error::io("write a tag in", &self.inner.folder, error))
            }
        }
    }

    /// Returns up to `limit` images that have a tag, in arbitrary order. The blobs of an image may
    /// have been evicted. Reads the file of each record.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder of the records cannot be read.
    pub async fn images(&self, limit: usize) -> Result<Vec<Reference>, Error> {
        let inner = self.inner.clone();
        blocking(move || {
            let mut images = Vec::new();
            let visit = |stored: TagFile| {
                let text = stored.name.strip_prefix("manifest ");
                let reference = text.and_then(|text| text.parse::<Reference>().ok());
                images.extend(reference.filter(|it| matches!(it.target, Target::Tag(_))));
                images.len() < limit
            };
            record::each(&inner.folder, visit)
                .map_err(|error| Error::io("list the tags in", &inner.folder, error))?;
            Ok(images)
        })
        .await
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.inner.index.lock().records.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Restores a later validation time from the catalog.
    pub(crate) fn restore(&self, key: &Key, validated: u64) {
        if let Some(slot) = self.inner.index.lock().records.get_mut(key) {
            slot.validated = slot.validated.max(validated);
        }
    }

    /// Returns all validation times, to write them into a new catalog.
    pub(crate) fn take_all(&self) -> Vec<(Key, u64)> {
        let mut index = self.inner.index.lock();
        let all = index.records.iter_mut().map(|(key, slot)| {
            slot.dirty = false;
            (*key, slot.validated)
        });
        all.collect()
    }

    /// Returns the validation times that changed since the last call, for the catalog.
    pub(crate) fn take_dirty(&self) -> Vec<(Key, u64)> {
        let mut index = self.inner.index.lock();
        let dirty = index.records.iter_mut().filter_map(|(key, slot)| {
            std::mem::take(&mut slot.dirty).then_some((*key, slot.validated))
        });
        dirty.collect()
    }

    /// Retries records that were unreadable at the start of pierhead. Blocks.
    pub(crate) fn retry_unreadable(&self) {
        let retried: Vec<Key> = {
            let index = self.inner.index.lock();
            index
                .unreadable
                .keys()
                .take(RETRIES_PER_ROUND)
                .copied()
                .collect()
        };
        for key in retried {
            let file = self.inner.file(&key);
            // A damaged file is not deleted here, because the writer thread may be replacing it.
            // The next start deletes the file.
            let Ok((len, stored)) = record::read::<TagFile>(&file) else {
                continue;
            };
            let Some((stored_key, name, slot)) = stored.slot(len) else {
                continue;
            };
            let mut index = self.inner.index.lock();
            // The writer thread has replaced or removed the record in the meantime.
            let Some(bytes) = index.unreadable.remove(&key).filter(|_| stored_key == key) else {
                continue;
            };
            let after = slot.bytes;
            index.insert(key, &name, slot);
            let mut state = self.inner.store.state.lock();
            state.tag_bytes = state.tag_bytes + after - bytes;
            state.unreadable_tags = index.unreadable.len();
            tracing::info!(file = %file.display(), "a record of a tag can be read again");
        }
    }
}
