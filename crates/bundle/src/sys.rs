//! Files mapped into memory: the crate's one place with `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A whole file, read through the page cache without a copy.
///
/// Whoever maps a file promises that it is one of the crate's own immutable files: written beside, renamed,
/// and never opened for writing again. Removing it is fine: the pages stay until this is dropped.
#[derive(Debug)]
pub(crate) struct Map(memmap2::Mmap);

impl Map {
    /// Costs page faults later on, no reads now.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes may not change while they are mapped. The files of this crate are never written
        // to after their rename. Somebody else who writes to one changes plain bytes, every one of which is
        // range-checked by its reader; who truncates one kills this process by SIGBUS, as he could by a signal.
        unsafe { memmap2::Mmap::map(file) }.map(Self)
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
