//! A table as a file: canonical bytes, what follows from them, and a checksum, mapped into memory.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::sys::Map;
use crate::{Error, durable};

use super::contents::Index;
use super::layout::Layout;
use super::{Table, WHAT, attributes};

/// Where the bytes lie.
pub(super) enum Bytes {
    /// On the heap.
    Memory(Vec<u8>),
    /// In a file of ours.
    File(Map),
}

impl Bytes {
    pub(super) fn all(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(map) => map,
        }
    }
}

/// Bytes behind everything else: CRC-32C of all before.
const SUM: usize = 4;

impl Table {
    /// Writes it, durably, to where [`Table::open`] finds it. What was there is replaced.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        durable::write(path, |file| self.write(file))
    }

    /// What [`Table::open`] reads, all of it checked there.
    pub(crate) fn write(&self, file: &mut File) -> io::Result<()> {
        let [sizes, order] = self.index.raw(self.bytes.all());
        let mut sum = 0;
        for part in [self.bytes(), sizes, order] {
            sum = crc32c::crc32c_append(sum, part);
            file.write_all(part)?;
        }
        file.write_all(&sum.to_le_bytes())
    }

    /// Maps a file that [`Table::save`] wrote. Reads it once, for its checksum; 84 000 entries take about a millisecond.
    ///
    /// # Errors
    /// `Missing` when there is none, `Malformed` when it is damaged, `Io`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing(path.display().to_string()),
            _ => Error::io(format!("open {}", path.display()), error),
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(Error::malformed(WHAT, "a folder is in its place"));
        }
        let map = Map::of(&file).map_err(failed)?;
        let (body, sum) = map
            .split_last_chunk::<SUM>()
            .ok_or_else(|| Error::malformed(WHAT, "it ends too early"))?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(Error::malformed(WHAT, "its checksum does not match"));
        }
        let layout = Layout::read(body)?;
        if body.len() != layout.end() + Index::bytes(layout.contents) {
            return Err(Error::malformed(WHAT, "another length than it says"));
        }
        let attributes = attributes::starts(&layout, body)?;
        Ok(Self {
            index: Index::File {
                start: layout.end(),
                contents: layout.contents,
            },
            bytes: Bytes::File(map),
            layout,
            attributes,
        })
    }
}
