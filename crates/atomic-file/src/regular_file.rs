//! Opens files only if they are regular files. Another program may have replaced a file by a pipe or
//! device, and opening or reading a pipe can block.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading. A file of another type is an error, because opening a pipe
/// without a writer would block forever.
///
/// # Errors
/// The error of the system, or an error of the kind `InvalidData` that names the type of a file that
/// is not regular.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_with(File::options().read(true), OFlags::empty(), path)
}

/// Opens a regular file like [`open_regular`], with other open options.
///
/// # Errors
/// As [`open_regular`]. An error about the type of the file has no `raw_os_error`.
pub fn open_regular_with(
    options: &mut OpenOptions,
    flags: OFlags,
    path: &Path,
) -> io::Result<File> {
    // Without `NONBLOCK`, opening a pipe blocks until another process opens its other end.
    let flags = i32::try_from((flags | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = options.custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(file),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ => "a device",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("this is {what}, not a regular file"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_pipes_do_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe] = ["file", "pipe"].map(|name| folder.path().join(name));
        std::fs::write(&file, "a").unwrap();
        assert!(open_regular(&file).is_ok());
        let here = rustix::fs::CWD;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(here, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, what) in [(pipe.as_path(), "a pipe"), (folder.path(), "a folder")] {
            let error = open_regular(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
