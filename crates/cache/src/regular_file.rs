//! Opens a file of the data folder only if it is a regular file, because a pipe or device would
//! block the reader.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file for reading. A file of any other kind, such as a pipe, is an error. The call never
/// blocks.
pub(crate) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = File::options()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no file"));
    }
    Ok((file, about))
}

/// Reads a whole file of at most `max` bytes. A longer file is an error.
pub(crate) fn read(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let (file, about) = open(path)?;
    if about.len() > max as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too long"));
    }
    let mut bytes = Vec::new();
    file.take(max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
