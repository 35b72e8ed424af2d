//! One open pack (a file of compressed frames with its index): its two files, its records
//! (compressed frames), and which of these records were verified recently.

use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::pack::RecordLocation;
use pierhead_bundle::{RECORD_HEAD, RecordHead};

use super::index::{self, Record};
use super::{ContentRange, PackedFrame};

/// Returns the bytes on disk of a file of `len` bytes, in whole blocks of 4 KiB.
pub(super) const fn on_disk(len: u64) -> u64 {
    len.div_ceil(4096) * 4096
}

pub(super) fn pack_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{number:08x}.pack"))
}

pub(super) fn index_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{number:08x}.index"))
}

/// An open pack. A handle to an open pack stays readable after the eviction of the pack.
///
/// The bytes of an evicted pack count against the budget until the last handle is dropped.
pub struct PackFile {
    number: u32,
    pub(super) data: File,
    pub(super) index: File,
    records: Mutex<Vec<VerifiedRecord>>,
    /// Bytes on disk of both files of the pack.
    bytes: AtomicU64,
    /// Bytes on disk of all packs of the folder.
    total: Arc<AtomicU64>,
}

/// One record of the pack, and whether its checksum was verified since the last maintenance.
struct VerifiedRecord {
    record: Record,
    is_verified: bool,
}

impl PackFile {
    /// Creates the value for a pack. `bytes` is the size of both files on disk. The caller has
    /// already added `bytes` to `total`.
    pub(super) fn new(
        number: u32,
        (data, index): (File, File),
        records: Vec<Record>,
        bytes: u64,
        total: Arc<AtomicU64>,
    ) -> Self {
        let entry = |record| VerifiedRecord {
            record,
            is_verified: false,
        };
        Self {
            number,
            data,
            index,
            records: Mutex::new(records.into_iter().map(entry).collect()),
            bytes: AtomicU64::new(bytes),
            total,
        }
    }

    /// Returns the number of the pack.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the file of records. A record starts at [`RecordLocation::offset`]. Callers may send
    /// only records that [`super::Packs::check`] has verified.
    pub const fn file(&self) -> &File {
        &self.data
    }

    /// Sets the size on disk of both files. Only the writer of this pack may call this function.
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
        // A new record counts as unverified until the server has read it from the disk.
        self.records().push(VerifiedRecord {
            record,
            is_verified: false,
        });
    }

    /// Returns the record at `location`, and whether the record is verified. Returns `None` when
    /// there is no such record.
    pub(super) fn find(&self, location: &RecordLocation) -> Option<(Record, bool)> {
        let records = self.records();
        let at = position(&records, location)?;
        Some((records[at].record, records[at].is_verified))
    }

    /// Returns the locations of all records of the pack, in the order of the file.
    pub(super) fn locations(&self) -> Vec<RecordLocation> {
        let records = self.records();
        let location = |entry: &VerifiedRecord| RecordLocation {
            pack: self.number,
            offset: u64::from(entry.record.offset),
            len: entry.record.len,
        };
        records.iter().map(location).collect()
    }

    /// Marks all records of the pack as unverified.
    pub(super) fn forget_verified(&self) {
        for entry in self.records().iter_mut() {
            entry.is_verified = false;
        }
    }

    /// Reads a record into `payload`, and verifies its checksum. `payload` is empty after an error.
    pub(super) fn read(
        &self,
        location: &RecordLocation,
        payload: &mut Vec<u8>,
    ) -> Result<RecordHead, Error> {
        payload.clear();
        let (record, _) = self.find(location).ok_or_else(|| missing(location))?;
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
            .record_result(location, read, record.sum == sum)
            .and_then(|()| Ok(RecordHead::decode(&head)?));
        if result.is_err() {
            payload.clear();
        }
        result
    }

    /// Reads the head of the record at `location`.
    pub(super) fn head(&self, location: &RecordLocation) -> Result<[u8; RECORD_HEAD], Error> {
        let mut head = [0; RECORD_HEAD];
        let read = self.data.read_exact_at(&mut head, location.offset);
        read.map_err(|error| Error::io(self.doing("read"), error))?;
        Ok(head)
    }

    /// Verifies the checksum of a record. The record is read in pieces of 64 KiB.
    pub(super) fn check(&self, location: &RecordLocation) -> Result<(), Error> {
        let (record, _) = self.find(location).ok_or_else(|| missing(location))?;
        let mut piece = vec![0; 64 << 10];
        let (mut at, end) = (location.offset, location.offset + u64::from(location.len));
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
        self.record_result(location, read, record.sum == sum)
    }

    /// Marks a record as verified. If the record is damaged, removes it, as if it had never been
    /// packed.
    fn record_result(
        &self,
        location: &RecordLocation,
        read: io::Result<()>,
        is_same: bool,
    ) -> Result<(), Error> {
        match read {
            Err(error) if !is_damage(&error) => Err(Error::io(self.doing("read"), error)),
            Ok(()) if is_same => {
                let mut records = self.records();
                if let Some(at) = position(&records, location) {
                    records[at].is_verified = true;
                }
                Ok(())
            }
            _ => {
                self.drop_record(location);
                Err(self.damaged(location))
            }
        }
    }

    /// Reads from the index of the pack the frame whose record is at `location`.
    pub(super) fn frame(&self, location: &RecordLocation) -> Result<PackedFrame, Error> {
        let (record, members) = self.entry(location)?;
        Ok(PackedFrame {
            location: *location,
            coding: record.coding,
            members,
        })
    }

    fn entry(&self, location: &RecordLocation) -> Result<(Record, Vec<ContentRange>), Error> {
        let (entry, _) = self.find(location).ok_or_else(|| missing(location))?;
        let (at, len) = entry.entry;
        let mut bytes = vec![0; len as usize];
        self.index
            .read_exact_at(&mut bytes, u64::from(at))
            .map_err(|error| Error::io(self.doing("read the index of"), error))?;
        match index::decode(self.number, at, &bytes) {
            Ok((record, members)) if record == entry => Ok((record, members)),
            _ => {
                self.drop_record(location);
                Err(self.damaged(location))
            }
        }
    }

    fn drop_record(&self, location: &RecordLocation) {
        let mut records = self.records();
        if let Some(at) = position(&records, location) {
            records.remove(at);
        }
    }

    fn damaged(&self, location: &RecordLocation) -> Error {
        let why = format!(
            "the record at {} of {:08x} is damaged",
            location.offset, self.number
        );
        Error::malformed("pack", why)
    }

    pub(super) fn doing(&self, what: &str) -> String {
        format!("{what} pack {:08x}", self.number)
    }

    fn records(&self) -> MutexGuard<'_, Vec<VerifiedRecord>> {
        self.records.lock()
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

fn position(records: &[VerifiedRecord], location: &RecordLocation) -> Option<usize> {
    let offset = u32::try_from(location.offset).ok()?;
    let at = records
        .binary_search_by_key(&offset, |entry| entry.record.offset)
        .ok()?;
    (records[at].record.len == location.len).then_some(at)
}

/// Whether an error of a read means that the bytes of the file are permanently lost.
fn is_damage(error: &io::Error) -> bool {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    error.kind() == io::ErrorKind::UnexpectedEof || error.raw_os_error() == Some(EIO)
}

pub(super) fn missing(location: &RecordLocation) -> Error {
    Error::Missing(format!(
        "the record at {} of pack {:08x}",
        location.offset, location.pack
    ))
}
