//! Opens a file of the data folder only if it is a regular file, because a pipe or device would
//! block the reader.

use std::fs::{File, Metadata};
use std::io;
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
