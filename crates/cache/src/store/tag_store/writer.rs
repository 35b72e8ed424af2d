//! The writer thread of the tag store: writes all waiting changes together, then syncs the folder
//! once (group commit).

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use pierhead_host::{BackgroundTask, Panics};
use tokio::sync::{mpsc, oneshot};

use super::{Inner, Key, QUEUE_LEN, TagFile, TagRecord};
use crate::error::Error;
use crate::store::Store;
use crate::store::blocks::blocks;
use crate::store::record;
use crate::tier::Step;

/// Tag records take at most this part (1/n) of the capacity of the cache. For comparison: 100 000
/// records take 400 MB on disk.
const CAPACITY_SHARE: u64 = 16;

/// Maximum number of changes in one group commit. Each change holds one open file until the commit
/// ends.
const MAX_BATCH: usize = 64;

/// Name of the writer thread, which is also its label in the panic counter.
const TASK: BackgroundTask = BackgroundTask::TagWriter;

/// A change in the queue, with a channel through which the caller gets the result.
pub(super) struct Job {
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

pub(super) enum Change {
    /// Stores the record under the key with this text.
    Put(String, TagRecord),
    Remove,
}

/// The last of several changes of one key, with all callers that wait for a change of this key.
struct MergedChange {
    key: Key,
    change: Change,
    replies: Vec<oneshot::Sender<Result<(), Error>>>,
}

impl MergedChange {
    fn reply(self, result: &Result<(), Error>) {
        for reply in self.replies {
            // The result is ignored: sending fails only if the waiting caller was cancelled.
            let _ = reply.send(result.clone());
        }
    }
}

/// A record to write, with the bytes that are reserved for it.
struct NewRecord<'a> {
    name: String,
    record: TagRecord,
    bytes: ReservedBytes<'a>,
}

/// Reserved disk space. Dropping this value releases the space, also after an error or a panic.
struct ReservedBytes<'a> {
    store: &'a Store,
    bytes: u64,
}

impl ReservedBytes<'_> {
    /// Ends the automatic release: the caller now owns the reservation.
    fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for ReservedBytes<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.store.release(self.bytes);
        }
    }
}

/// Starts the writer thread. The thread ends when the returned sender is dropped.
pub(super) fn start(inner: &Arc<Inner>, panics: Panics) -> io::Result<mpsc::Sender<Job>> {
    let (queue, mut jobs) = mpsc::channel(QUEUE_LEN);
    // While the writer thread has no work, it holds no strong reference to the cache, because such
    // a reference would keep the folder of a dropped cache locked.
    let inner = Arc::downgrade(inner);
    std::thread::Builder::new()
        .name(TASK.name().into())
        .spawn(move || {
            let pause = |wait| {
                // The pause after a panic is at most one second, because a caller waits for this
                // change.
                std::thread::sleep(Duration::from_secs(1).min(wait));
                true
            };
            panics.restart(TASK, || run(&inner, &mut jobs), pause);
        })?;
    Ok(queue)
}

fn run(inner: &Weak<Inner>, jobs: &mut mpsc::Receiver<Job>) {
    if let Some(inner) = inner.upgrade() {
        let in_doubt = std::mem::take(&mut *inner.in_doubt.lock());
        in_doubt
            .iter()
            .for_each(|(key, is_removal)| inner.reload(key, *is_removal));
    }
    while let Some(first) = jobs.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
        let Some(inner) = inner.upgrade() else { return };
        inner.write(merge(batch));
    }
}

/// Merges several changes of one key. The last change wins.
fn merge(batch: Vec<Job>) -> Vec<MergedChange> {
    let mut merged: Vec<MergedChange> = Vec::with_capacity(batch.len());
    let mut tiers = HashMap::new();
    for job in batch {
        let position = *tiers.entry(job.key).or_insert(merged.len());
        match merged.get_mut(position) {
            Some(merged) => {
                merged.change = job.change;
                merged.replies.push(job.reply);
            }
            None => merged.push(MergedChange {
                key: job.key,
                change: job.change,
                replies: vec![job.reply],
            }),
        }
    }
    merged
}

impl Inner {
    pub(super) fn file(&self, key: &Key) -> PathBuf {
        use std::fmt::Write as _;
        let mut name = String::with_capacity(2 * key.len());
        for byte in key {
            // The result is ignored, because writing to a `String` never fails.
            let _ = write!(name, "{byte:02x}");
        }
        self.folder.join(name)
    }

    /// Makes the changes durable, then makes them visible in the index, then replies to the
    /// callers.
    fn write(&self, batch: Vec<MergedChange>) {
        let failed = |error| Error::io("write a tag in", &self.folder, error);
        let (mut changes, mut waiting) = (Vec::new(), Vec::new());
        for mut merged in batch {
            let change = std::mem::replace(&mut merged.change, Change::Remove);
            let written = match change {
                Change::Remove => Ok((None, None)),
                Change::Put(name, record) => self
                    .prepare(name, record)
                    .map(|(written, text)| (Some(written), Some(text))),
            };
            match written {
                Ok((written, text)) => {
                    let path = self.file(&merged.key);
                    changes.push(record::RecordChange { path, text });
                    // The fields have this order so that, after a panic, the bytes are released
                    // before the callers get a reply.
                    waiting.push((written, merged));
                }
                Err(error) => merged.reply(&Err(error)),
            }
        }
        let keys = waiting
            .iter()
            .map(|(written, merged)| (merged.key, written.is_none()));
        *self.in_doubt.lock() = keys.collect();
        let done = record::change(&self.folder, &changes, |step| self.step(step));
        let mut replies = Vec::with_capacity(waiting.len());
        let mut newest = HashSet::new();
        for ((written, merged), done) in waiting.into_iter().zip(done) {
            let key = merged.key;
            match written {
                Some(written) if done.is_ok() => {
                    newest.insert(key);
                    self.enter(key, written);
                }
                Some(written) => {
                    drop(written);
                    self.reload(&key, false);
                }
                None => {
                    // The sync of the folder may have failed although the file was deleted.
                    let is_deleted = done.is_ok() || !self.file(&key).exists();
                    self.leave(&key, is_deleted);
                }
            }
            replies.push((merged, done.map_err(failed)));
        }
        self.in_doubt.lock().clear();
        self.enforce_limits(&newest);
        for (merged, done) in replies {
            merged.reply(&done);
        }
    }

    /// Encodes a record and reserves its disk space.
    fn prepare(&self, name: String, record: TagRecord) -> Result<(NewRecord<'_>, Vec<u8>), Error> {
        let stored = TagFile {
            digest: record.digest,
            media_type: record.media_type.as_str().to_owned(),
            etag: record.etag.clone(),
            warnings: record.warnings.clone(),
            validated: record.validated,
            name,
        };
        let text = record::encode(&stored)
            .map_err(|error| Error::io("write a tag in", &self.folder, error))?;
        let bytes = blocks(text.len() as u64);
        self.store.reserve(bytes, 0)?;
        let bytes = ReservedBytes {
            store: &self.store,
            bytes,
        };
        let written = NewRecord {
            name: stored.name,
            record,
            bytes,
        };
        Ok((written, text))
    }

    /// Inserts a durable record into the index, and counts its bytes.
    fn enter(&self, key: Key, written: NewRecord<'_>) {
        let NewRecord {
            name,
            record,
            bytes,
        } = written;
        let bytes = bytes.into_bytes();
        let slot = super::Slot {
            registry: Arc::default(),
            digest: record.digest,
            media_type: record.media_type,
            etag: record.etag.map(Into::into),
            warnings: record.warnings.into(),
            bytes,
            validated: record.validated,
            dirty: true,
        };
        let mut index = self.index.lock();
        let replaced = index.insert(key, &name, slot);
        let mut state = self.store.state.lock();
        state.reserved -= bytes;
        state.tag_bytes = state.tag_bytes + bytes - replaced;
        state.unreadable_tags = index.unreadable.len();
    }

    /// After a failed change, updates the index from the record's file, because the file may
    /// already have the new contents. If the key of the record is new, deletes the file.
    fn reload(&self, key: &Key, is_removal: bool) {
        let file = self.file(key);
        if !self.index.lock().contains(key) {
            let _ = std::fs::remove_file(file);
            return;
        }
        let read = record::read::<TagFile>(&file);
        match read.map(|(len, stored)| stored.slot(len)) {
            Ok(Some((stored_key, name, slot))) if stored_key == *key => {
                let mut index = self.index.lock();
                let is_same = index
                    .records
                    .get(key)
                    .is_some_and(|it| it.is_same_tag(&slot));
                if !is_same {
                    let bytes = slot.bytes;
                    let replaced = index.insert(*key, &name, slot);
                    let mut state = self.store.state.lock();
                    state.tag_bytes = state.tag_bytes + bytes - replaced;
                    state.unreadable_tags = index.unreadable.len();
                }
            }
            Err(error) if is_removal && error.kind() == io::ErrorKind::NotFound => {
                self.leave(key, true);
            }
            // The file is unreadable, so the next start of the cache reads it again.
            _ => {}
        }
    }

    /// Removes a key from the index. If the file could not be deleted, its bytes still count as
    /// used.
    fn leave(&self, key: &Key, is_deleted: bool) {
        let mut index = self.index.lock();
        let bytes = index.remove(key);
        let mut state = self.store.state.lock();
        state.unreadable_tags = index.unreadable.len();
        if is_deleted {
            state.tag_bytes -= bytes;
        }
    }

    /// Deletes the oldest records while the number or the size of all records exceeds its limit.
    fn enforce_limits(&self, newest: &HashSet<Key>) {
        let leaving = {
            let mut index = self.index.lock();
            let len = index.records.len();
            let over = {
                let state = self.store.state.lock();
                state
                    .tag_bytes
                    .saturating_sub(state.capacity / CAPACITY_SHARE)
            };
            let max = self.store.config.max_tags.max(1);
            if len == 0 || (len <= max && over == 0) {
                return;
            }
            // Nearly all records take one block on disk. 1 % more records are deleted than needed,
            // so that this search runs rarely.
            let surplus = usize::try_from(over.div_ceil(blocks(1))).unwrap_or(len);
            let surplus = surplus.max(len.saturating_sub(max)) + max.min(len) / 100;
            index.evict(surplus.min(len - 1), newest)
        };
        for (key, bytes) in leaving {
            match std::fs::remove_file(self.file(&key)) {
                Ok(()) => self.store.state.lock().tag_bytes -= bytes,
                Err(error) => {
                    tracing::warn!(%error, "cannot delete the record of a tag above the limits")
                }
            }
        }
    }

    /// Tests replace this function to inject faults. The writer calls this function before each
    /// change on the disk.
    #[cfg(not(test))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "tests inject faults here"
    )]
    fn step(&self, _: Step<'_>) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn step(&self, step: Step<'_>) -> io::Result<()> {
        let hook = self.hook.lock().clone();
        hook.map_or(Ok(()), |hook| hook(step))
    }
}
