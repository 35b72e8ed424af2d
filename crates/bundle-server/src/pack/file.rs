//! One pack: its two files, what is in them, and which records were checked lately.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pack::RecordLocation;
use pierhead_bundle::{RECORD_HEAD, RecordHead};
use pierhead_toc::Error;

use super::index::{self, Record};
use super::{ContentRange, PackedFrame};

/// Bytes of the file system that a file of `len` bytes takes: whole blocks.
pub(super) const fn on_disk(len: u64) -> u64 {
    len.div_ceil(4096) * 4096
}

pub(super) fn pack_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{number:08x}.pack"))
}

pub(super) fn index_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{number:08x}.index"))
}

/// A pack that can be read for as long as this is held, whether it was evicted or not.
///
/// Until the last one is dropped the bytes of an evicted pack count against the budget.
pub struct PackFile {
    number: u32,
    pub(super) data: File,
    pub(super) index: File,
    records: Mutex<Vec<VerifiedRecord>>,
    /// Bytes on disk of both files, and those of all packs of the folder.
    bytes: AtomicU64,
    total: Arc<AtomicU64>,
}

/// One record, and whether its checksum was compared lately.
struct VerifiedRecord {
    record: Record,
    is_verified: bool,
}

impl PackFile {
    /// With `bytes` that already are in `total`.
    pub(super) fn new(
        number: u32,
        (data, index): (File, File),
        records: Vec<Record>,
        bytes: u64,
        total: Arc<AtomicU64>,
    ) -> Self {
        let known = |record| VerifiedRecord {
            record,
            is_verified: false,
        };
        Self {
            number,
            data,
            index,
            records: Mutex::new(records.into_iter().map(known).collect()),
            bytes: AtomicU64::new(bytes),
            total,
        }
    }

    /// Which pack it is.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The records, to be sent as they lie there: from [`RecordLocation::offset`] on. Only what was checked
    /// ([`super::Packs::check`]) may leave so.
    pub const fn file(&self) -> &File {
        &self.data
    }

    /// Changes what both files take on disk. Only the one writer of this pack calls it.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.total.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.records().len()
    }

    pub(super) fn push(&self, record: Record) {
        // The bytes were at hand a moment ago; but whether the disk took them is seen when they are read.
        self.records().push(VerifiedRecord {
            record,
            is_verified: false,
        });
    }

    /// What lies at `place`, and whether it was checked; `None` when nothing does (any more).
    pub(super) fn find(&self, place: &RecordLocation) -> Option<(Record, bool)> {
        let records = self.records();
        let at = position(&records, place)?;
        Some((records[at].record, records[at].is_verified))
    }

    /// Records in the order in which they lie there.
    pub(super) fn places(&self) -> Vec<RecordLocation> {
        let records = self.records();
        let place = |known: &VerifiedRecord| RecordLocation {
            pack: self.number,
            offset: u64::from(known.record.offset),
            len: known.record.len,
        };
        records.iter().map(place).collect()
    }

    /// Believes no check any more.
    pub(super) fn forget_verified(&self) {
        for known in self.records().iter_mut() {
            known.is_verified = false;
        }
    }

    /// Reads a record and compares its checksum. `payload` is cleared first, and holds it only after success.
    pub(super) fn read(
        &self,
        place: &RecordLocation,
        payload: &mut Vec<u8>,
    ) -> Result<RecordHead, Error> {
        payload.clear();
        let (record, _) = self.find(place).ok_or_else(|| missing(place))?;
        let mut head = [0; RECORD_HEAD];
        let len = (record.len as usize).saturating_sub(RECORD_HEAD);
        payload.resize(len, 0);
        let at = u64::from(record.offset);
        let read = self
            .data
            .read_exact_at(&mut head, at)
            .and_then(|()| self.data.read_exact_at(payload, at + RECORD_HEAD as u64));
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head), payload);
        let result = self
            .judge(place, read, record.sum == sum)
            .and_then(|()| RecordHead::decode(&head));
        if result.is_err() {
            payload.clear();
        }
        result
    }

    /// The head of the record at `place`.
    pub(super) fn head(&self, place: &RecordLocation) -> Result<[u8; RECORD_HEAD], Error> {
        let mut head = [0; RECORD_HEAD];
        let read = self.data.read_exact_at(&mut head, place.offset);
        read.map_err(|error| Error::io(self.doing("read"), error))?;
        Ok(head)
    }

    /// Compares the checksum of a record. Reads it in pieces: no memory of its size.
    pub(super) fn check(&self, place: &RecordLocation) -> Result<(), Error> {
        let (record, _) = self.find(place).ok_or_else(|| missing(place))?;
        let mut piece = vec![0; 64 << 10];
        let (mut at, end) = (place.offset, place.offset + u64::from(place.len));
        let mut sum = 0;
        let mut read = Ok(());
        while at < end && read.is_ok() {
            let len = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(piece.len());
            read = self.data.read_exact_at(&mut piece[..len], at);
            sum = crc32c::crc32c_append(sum, &piece[..len]);
            at += len as u64;
        }
        self.judge(place, read, record.sum == sum)
    }

    /// Notes a record as checked, or drops it when it is damaged: it is as if it had never been packed.
    fn judge(
        &self,
        place: &RecordLocation,
        read: io::Result<()>,
        is_same: bool,
    ) -> Result<(), Error> {
        match read {
            Err(error) if !is_damage(&error) => Err(Error::io(self.doing("read"), error)),
            Ok(()) if is_same => {
                let mut records = self.records();
                if let Some(at) = position(&records, place) {
                    records[at].is_verified = true;
                }
                Ok(())
            }
            _ => {
                self.drop_record(place);
                Err(self.damaged(place))
            }
        }
    }

    /// What is in the frame at `place`.
    pub(super) fn frame(&self, place: &RecordLocation) -> Result<PackedFrame, Error> {
        let (record, members) = self.entry(place)?;
        Ok(PackedFrame {
            place: *place,
            coding: record.coding,
            members,
        })
    }

    fn entry(&self, place: &RecordLocation) -> Result<(Record, Vec<ContentRange>), Error> {
        let (known, _) = self.find(place).ok_or_else(|| missing(place))?;
        let (at, len) = known.entry;
        let mut bytes = vec![0; len as usize];
        self.index
            .read_exact_at(&mut bytes, u64::from(at))
            .map_err(|error| Error::io(self.doing("read the index of"), error))?;
        match index::decode(self.number, at, &bytes) {
            Ok((record, members)) if record == known => Ok((record, members)),
            _ => {
                self.drop_record(place);
                Err(self.damaged(place))
            }
        }
    }

    fn drop_record(&self, place: &RecordLocation) {
        let mut records = self.records();
        if let Some(at) = position(&records, place) {
            records.remove(at);
        }
    }

    fn damaged(&self, place: &RecordLocation) -> Error {
        let why = format!(
            "the record at {} of {:08x} is damaged",
            place.offset, self.number
        );
        Error::malformed("pack", why)
    }

    pub(super) fn doing(&self, what: &str) -> String {
        format!("{what} pack {:08x}", self.number)
    }

    fn records(&self) -> MutexGuard<'_, Vec<VerifiedRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PackFile {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}

impl std::fmt::Debug for PackFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pack {:08x}", self.number)
    }
}

fn position(records: &[VerifiedRecord], place: &RecordLocation) -> Option<usize> {
    let offset = u32::try_from(place.offset).ok()?;
    let at = records
        .binary_search_by_key(&offset, |known| known.record.offset)
        .ok()?;
    (records[at].record.len == place.len).then_some(at)
}

/// Whether the bytes are lost, and not only out of reach for now.
fn is_damage(error: &io::Error) -> bool {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    error.kind() == io::ErrorKind::UnexpectedEof || error.raw_os_error() == Some(EIO)
}

pub(super) fn missing(place: &RecordLocation) -> Error {
    Error::Missing(format!(
        "the record at {} of pack {:08x}",
        place.offset, place.pack
    ))
}
