//! Appends records (compressed frames) to a pack. Only one writer at a time uses a pack, so that
//! the records of one writer are adjacent.

use std::sync::Arc;

use crate::Error;
use crate::pack::RecordLocation;
use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};

use super::ContentRange;
use super::file::{PackFile, index_path, on_disk, pack_path};
use super::index::{self, Record};
use super::packs::Packs;

/// A pack that has free room, with the lengths of its two files.
pub(super) struct Open {
    pub(super) file: Arc<PackFile>,
    pub(super) data: u64,
    pub(super) index: u64,
}

/// Appends to a pack that no other writer uses. Dropping the writer gives the pack back for the
/// next writer.
pub struct Writer<'a> {
    packs: &'a Packs,
    is_fast: bool,
    open: Option<Open>,
}

impl<'a> Writer<'a> {
    pub(super) const fn new(packs: &'a Packs, is_fast: bool) -> Self {
        Self {
            packs,
            is_fast,
            open: None,
        }
    }

    /// Appends a record. Afterwards, other threads can read the record. A killed process does not
    /// lose the record, but a power loss may. `members` are the ranges of contents that the decoded
    /// frame consists of, in order; for patches, the list may be empty. The call computes SHA-256
    /// and CRC-32C of the payload.
    ///
    /// # Errors
    /// [`Error::Io`], with `StorageFull` when packs in use take the whole budget; existing records
    /// are kept. [`Error::Malformed`] for a frame that exceeds a limit.
    pub fn append(
        &mut self,
        members: &[ContentRange],
        coding: Coding,
        payload: &[u8],
    ) -> Result<RecordLocation, Error> {
        let head = RecordHead::of(coding, payload)?.encode();
        let len = (RECORD_HEAD + payload.len()) as u64;
        self.leave_full_pack(len)?;
        let open = match self.open.take() {
            Some(open) => open,
            None => self.packs.take_open(len, self.is_fast)?,
        };
        let number = open.file.number();
        let (Ok(offset), Ok(len)) = (u32::try_from(open.data), u32::try_from(len)) else {
            return Err(Error::malformed("pack", "it is longer than 4 GiB"));
        };
        let record = Record {
            offset,
            len,
            sum: crc32c::crc32c_append(crc32c::crc32c(&head), payload),
            coding,
            entry: (0, 0),
        };
        let entry = match index::encode(number, &record, members) {
            Ok(entry) => entry,
            Err(error) => {
                self.open = Some(open);
                return Err(error);
            }
        };
        let after = (open.data + u64::from(len), open.index + entry.len() as u64);
        if let Err(error) = self
            .packs
            .reserve(&open, on_disk(after.0) + on_disk(after.1))
        {
            self.open = Some(open);
            return Err(error);
        }
        if let Err(error) = self.write(&open, &head, payload, &entry) {
            let doing = open.file.doing("write to");
            self.fix_tail(open);
            return Err(Error::io(doing, error));
        }
        let (Ok(at), Ok(entry_len)) = (u32::try_from(open.index), u32::try_from(entry.len()))
        else {
            return Err(Error::malformed("pack index", "it is longer than 4 GiB"));
        };
        open.file.push(Record {
            entry: (at, entry_len),
            ..record
        });
        self.packs.count_appended();
        self.open = Some(Open {
            file: open.file,
            data: after.0,
            index: after.1,
        });
        Ok(RecordLocation {
            pack: number,
            offset: u64::from(offset),
            len,
        })
    }

    /// Makes the appended records durable.
    ///
    /// # Errors
    /// [`Error::Io`] if a sync fails.
    pub fn sync(&mut self) -> Result<(), Error> {
        match &self.open {
            Some(open) => self.sync_open(open),
            None => Ok(()),
        }
    }

    /// If the current pack has no room for `len` more bytes, syncs this pack and stops writing to
    /// it.
    fn leave_full_pack(&mut self, len: u64) -> Result<(), Error> {
        if let Some(open) = self
            .open
            .take_if(|open| open.data + len > self.packs.config.most(self.is_fast))
        {
            self.sync_open(&open)?;
        }
        Ok(())
    }

    /// Writes the record and then its index entry, so that every entry has a record after a crash.
    fn write(&self, open: &Open, head: &[u8], payload: &[u8], entry: &[u8]) -> std::io::Result<()> {
        let (folder, disk) = (&self.packs.config.folder, &self.packs.disk);
        let number = open.file.number();
        let path = pack_path(folder, number);
        disk.write(&path, &open.file.data, open.data, head)?;
        let payload_at = open.data + head.len() as u64;
        disk.write(&path, &open.file.data, payload_at, payload)?;
        disk.write(
            &index_path(folder, number),
            &open.file.index,
            open.index,
            entry,
        )
    }

    /// After a failed append, cuts off the incomplete record. When this fails, too, no more records
    /// are appended to the pack until the next start of the server.
    fn fix_tail(&mut self, open: Open) {
        let (folder, disk) = (&self.packs.config.folder, &self.packs.disk);
        let number = open.file.number();
        let is_cut = disk
            .cut(&index_path(folder, number), &open.file.index, open.index)
            .and_then(|()| disk.cut(&pack_path(folder, number), &open.file.data, open.data));
        if is_cut.is_ok() {
            open.file
                .set_bytes(on_disk(open.data) + on_disk(open.index));
            self.open = Some(open);
        }
    }

    fn sync_open(&self, open: &Open) -> Result<(), Error> {
        let (folder, disk) = (&self.packs.config.folder, &self.packs.disk);
        let number = open.file.number();
        disk.sync(&pack_path(folder, number), &open.file.data)
            .and_then(|()| disk.sync(&index_path(folder, number), &open.file.index))
            .map_err(|error| Error::io(open.file.doing("sync"), error))
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.packs.give_back(open);
        }
    }
}
