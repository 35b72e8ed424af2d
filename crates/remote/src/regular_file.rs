//! Opens only regular files: other programs may replace a configured file by a pipe or device at any time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file, and only a file, for reading: a pipe that nobody writes to would be waited for in vain.
///
/// # Errors
/// What the system says, or what there is instead of a file.
pub fn open_file(path: &Path) -> io::Result<File> {
    open_file_with(File::options().read(true), OFlags::empty(), path)
}

/// The same for any way of opening.
///
/// # Errors
/// What the system says, or what there is instead of a file: then without a number of the system's.
pub fn open_file_with(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    // Else opening a pipe waits for somebody at its other end.
    let flags = i32::try_from((flags | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = options.custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(file),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ => "a device",
    };
    Err(io::Error::other(format!(
        "this is {what}, not a regular file"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_opened_and_pipes_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe] = ["file", "pipe"].map(|name| folder.path().join(name));
        std::fs::write(&file, "a").unwrap();
        assert!(open_file(&file).is_ok());
        let here = rustix::fs::CWD;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(here, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, what) in [(pipe.as_path(), "a pipe"), (folder.path(), "a folder")] {
            let error = open_file(path).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
