//! Checks the files of a sled database before sled opens them: sled would wait for a pipe, and read
//! a huge file as a whole.

use std::fs;
use std::io;
use std::path::Path;

/// Maximum bytes of `db`, the log of a sled database. sled reads this log in segments of some KiB.
const MAX_LOG_BYTES: u64 = 4 << 30;
/// Maximum bytes of one value in the folder `blobs`. `snap.*` (the positions of all pages) may have
/// as many bytes, or as many as `db` if `db` is larger. sled reads such a file as a whole.
const MAX_WHOLE_BYTES: u64 = 64 << 20;
/// Maximum bytes of `conf`, a text file of a sled database. sled reads `conf` as a whole.
const MAX_CONF_BYTES: u64 = 64 << 10;

/// Checks the kind and the size of each file of the sled database in `folder`. A folder that does
/// not exist passes, and so does a file that another handle deletes meanwhile.
///
/// # Errors
/// `InvalidData` for a file that is too large, or of another kind: a pipe, a device or a symbolic
/// link. `InvalidData` also for a `folder` that is no folder. Only after `InvalidData` may the
/// caller replace the database. Other errors (EMFILE, EACCES, EIO) say nothing about the database.
pub fn check_database_files(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        entries => entries?,
    };
    // sled writes the position of a page to `snap.*` only after the page to `db`, and a page takes
    // more bytes than its position.
    let max_snapshot_bytes = match fs::symlink_metadata(folder.join("db")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => MAX_WHOLE_BYTES,
        about => about?.len().clamp(MAX_WHOLE_BYTES, MAX_LOG_BYTES),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // sled stores large values in the folder `blobs`.
        if name == "blobs" && entry.file_type()?.is_dir() {
            for value in fs::read_dir(entry.path())? {
                check_file(&value?, MAX_WHOLE_BYTES)?;
            }
            continue;
        }
        let max = match name.to_str() {
            Some("conf") => MAX_CONF_BYTES,
            Some("db") => MAX_LOG_BYTES,
            Some(name) if name.starts_with("snap.") => max_snapshot_bytes,
            _ => MAX_WHOLE_BYTES,
        };
        check_file(&entry, max)?;
    }
    Ok(())
}

fn check_file(entry: &fs::DirEntry, max: u64) -> io::Result<()> {
    // These metadata are those of a symbolic link itself.
    let about = match entry.metadata() {
        // Another handle to the database, which is being closed, has deleted the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        about => about?,
    };
    match about.is_file() && about.len() <= max {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} is no regular file of at most {max} bytes",
                entry.path().display()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir, remove_file};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_pass() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        create_dir(at("blobs")).unwrap();
        for name in ["conf", "db", "snap.0000000000000000", "blobs/17"] {
            File::create(at(name)).unwrap();
        }
        let check = || check_database_files(folder.path());
        check().unwrap();
        assert!(check_database_files(&at("none")).is_ok());
        let sizes = [
            ("conf", MAX_CONF_BYTES),
            ("db", MAX_LOG_BYTES),
            ("snap.0000000000000000", MAX_WHOLE_BYTES),
            ("blobs/17", MAX_WHOLE_BYTES),
        ];
        let fails = |what: &str, name: &str| {
            let error = check().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what} {name}");
            let path = at(name).display().to_string();
            assert!(error.to_string().starts_with(&path), "{what}: {error}");
        };
        for (name, max) in sizes {
            let file = File::options().write(true).open(at(name)).unwrap();
            file.set_len(max).unwrap();
            check().unwrap();
            file.set_len(max + 1).unwrap();
            fails("huge", name);
            remove_file(at(name)).unwrap();
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, at(name), mode).unwrap();
            fails("a pipe", name);
            remove_file(at(name)).unwrap();
            symlink("/dev/null", at(name)).unwrap();
            fails("a link to a device", name);
            remove_file(at(name)).unwrap();
            File::create(at("blobs/regular")).unwrap();
            symlink(at("blobs/regular"), at(name)).unwrap();
            fails("a link to a regular file", name);
            remove_file(at(name)).unwrap();
            create_dir(at(name)).unwrap();
            fails("a folder", name);
            std::fs::remove_dir(at(name)).unwrap();
            File::create(at(name)).unwrap();
            check().unwrap();
        }
        std::fs::remove_dir_all(at("blobs")).unwrap();
        File::create(at("blobs")).unwrap();
        check().unwrap();
    }

    #[test]
    fn a_snapshot_may_be_as_long_as_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let set_len = |name: &str, len| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(len).unwrap();
        };
        let check = || check_database_files(folder.path()).map_err(|error| error.kind());
        set_len("db", MAX_WHOLE_BYTES * 3);
        set_len("snap.0000000000000000", MAX_WHOLE_BYTES * 3);
        assert_eq!(check(), Ok(()));
        set_len("snap.0000000000000000", MAX_WHOLE_BYTES * 3 + 1);
        assert_eq!(check(), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_file_that_is_deleted_meanwhile_passes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snap.0000000000000000");
        File::create(&path).unwrap();
        let entry = fs::read_dir(folder.path()).unwrap().next().unwrap();
        let entry = entry.unwrap();
        remove_file(&path).unwrap();
        check_file(&entry, 0).unwrap();
    }

    #[test]
    fn only_a_damaged_database_gives_the_error_of_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("database");
        let check = || check_database_files(&path).map_err(|error| error.kind());
        File::create(&path).unwrap();
        assert_eq!(check(), Err(io::ErrorKind::InvalidData), "a file");
        remove_file(&path).unwrap();
        // A link to itself fails with ELOOP. This stands for EMFILE or EACCES.
        symlink(&path, &path).unwrap();
        assert!(check().is_err_and(|kind| kind != io::ErrorKind::InvalidData));
    }
}
