//! Writes and reads the file of a table of contents (TOC): canonical bytes, derived data, and a
//! checksum for each block.

use std::io::{self, Write};
use std::path::Path;

use pierhead_atomic_file::Options;

use crate::Error;

use super::blocks::{self, Blocks};
use super::contents::Index;
use super::format::FORMAT_NAME;
use super::layout::Layout;
use super::{ImageToc, attributes};

impl ImageToc {
    /// Writes the TOC to a file, atomically and durably. Replaces an existing file.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let written = Options::new().write_with(path, |file| self.write(file));
        written.map_err(|error| Error::io(format!("write {}", path.display()), error))
    }

    /// Writes the bytes of a TOC file, which [`ImageToc::open`] reads and verifies.
    pub fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let parts = [&self.bytes[..], self.index.bytes()];
        let sums = blocks::sums(&parts);
        for part in parts {
            file.write_all(part)?;
        }
        file.write_all(&sums)
    }

    /// Reads a whole TOC file into memory, and verifies it.
    ///
    /// # Errors
    /// `Missing` when the file does not exist, `Malformed` when the file is damaged, and `Io` for
    /// errors of the disk.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut bytes = Blocks::open(path)?.all()?;
        let layout = Layout::read(&bytes, bytes.len())?;
        if bytes.len() != layout.end() + Index::len_of(layout.contents) {
            return Err(Error::malformed(FORMAT_NAME, "a wrong length"));
        }
        let index = Index::read(bytes.split_off(layout.end()));
        bytes.shrink_to_fit();
        let attributes = attributes::starts(&layout, &bytes)?;
        Ok(Self {
            bytes,
            layout,
            attributes,
            index,
        })
    }
}
