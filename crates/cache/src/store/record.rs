//! Records: small durable files that contain one JSON value and a checksum. Tags and pins are
//! records, because they cannot be rebuilt from blobs.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use pierhead_atomic_file::{self as atomic_file, AtomicFile, Options};
use pierhead_oci::{Algorithm, Digest};
use serde::{Serialize, de::DeserializeOwned};

use crate::tier::{Step, is_proven_damage};

/// Maximum length of a record in bytes. A file that is longer counts as damaged.
const MAX_RECORD_LEN: u64 = 16 << 20;

/// Returns the file name of a record. The name is a hash of the record's key, because keys contain
/// `/` and may be long.
pub(crate) fn file_name(key: &str) -> String {
    Digest::of(Algorithm::Sha256, key.as_bytes()).hex()
}

/// Encodes a value as the file of a record.
pub(crate) fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    let sum = crc32c::crc32c(&text);
    writeln!(text, "\n{sum:08x}")?;
    // `load` would treat a record above this length as damaged.
    if text.len() as u64 > MAX_RECORD_LEN {
        let what = "a record of more than 16 MiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(text)
}

/// The result of reading one file in a folder of records.
pub(crate) enum LoadedRecord<T> {
    /// The record is intact. The number is the length of the record's file.
    Whole(u64, T),
    /// The file cannot be read now. The file may be intact, so it is not deleted.
    Unreadable(Unreadable),
}

/// A file that the operating system fails to read: missing permissions, too many open files, or a
/// failing disk.
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    /// Length of the file in bytes. 0 when the length cannot be read, too.
    pub(crate) len: u64,
    pub(crate) source: io::Error,
}

/// Writes a record durably and atomically. Replaces an older record with the same key.
pub(crate) fn store<T: Serialize>(folder: &Path, key: &str, value: &T) -> io::Result<()> {
    atomic_file::write(&folder.join(file_name(key)), &encode(value)?)
}

/// Deletes a record. A missing record is no error.
pub(crate) fn delete(folder: &Path, key: &str) -> io::Result<()> {
    match fs::remove_file(folder.join(file_name(key))) {
        Ok(()) => atomic_file::sync_folder(folder),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads all records of a folder. Creates the folder if it is missing. Logs and deletes each file
/// that was read completely and is damaged.
pub(crate) fn load<T: DeserializeOwned>(
    folder: &Path,
    mut visit: impl FnMut(LoadedRecord<T>),
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .as_os_str()
            .as_encoded_bytes()
            .ends_with(atomic_file::SUFFIX.as_bytes())
        {
            remove(&path)?;
            continue;
        }
        match read(&path) {
            Ok((len, value)) => visit(LoadedRecord::Whole(len, value)),
            Err(error) if is_proven_damage(&error) => {
                tracing::error!(file = %path.display(), %error, "deleting a damaged record");
                remove(&path)?;
            }
            Err(source) => {
                let len = fs::symlink_metadata(&path).map_or(0, |about| about.len());
                visit(LoadedRecord::Unreadable(Unreadable { path, len, source }));
            }
        }
    }
    Ok(())
}

/// Deletes a file, or a folder that has the name of a record: such a folder would make writing the
/// record impossible.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => fs::remove_dir_all(path),
        removed => removed,
    }
}

/// Reads the records of a folder until `visit` returns `false`. Skips damaged files and files that
/// are being written. Changes no file.
pub(crate) fn each<T: DeserializeOwned>(
    folder: &Path,
    mut visit: impl FnMut(T) -> bool,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        if let Ok((_, value)) = read(&entry?.path())
            && !visit(value)
        {
            break;
        }
    }
    Ok(())
}

/// Reads a record, with the length of its file.
///
/// # Errors
/// If the file is no valid record, an error that satisfies [`is_proven_damage`]. In all other
/// cases, the error of the system.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<(u64, T)> {
    let mut text = Vec::new();
    // One byte more than the limit is read, to detect a file that is too long.
    pierhead_atomic_file::open_regular(path)?
        .take(MAX_RECORD_LEN + 1)
        .read_to_end(&mut text)?;
    Ok((text.len() as u64, decode(&text)?))
}

/// Decodes the bytes of a record's file.
pub(crate) fn decode<T: DeserializeOwned>(text: &[u8]) -> io::Result<T> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "checksum does not match");
    // The end of the text is a newline, eight hexadecimal digits of the checksum, and a newline.
    let (json, sum) = text
        .split_at_checked(text.len().saturating_sub(10))
        .ok_or_else(damaged)?;
    if sum != format!("\n{:08x}\n", crc32c::crc32c(json)).as_bytes() {
        return Err(damaged());
    }
    Ok(serde_json::from_slice(json)?)
}

/// A change of one record: the new content of its file, or `None` to delete the file.
pub(crate) struct RecordChange {
    pub(crate) path: PathBuf,
    pub(crate) text: Option<Vec<u8>>,
}

/// Applies changes to several records of one folder. Each change is atomic, and one sync of the
/// folder makes all changes durable. Calls `step` before every change on the disk. For each change,
/// returns whether the change is durable.
pub(crate) fn change(
    folder: &Path,
    changes: &[RecordChange],
    step: impl Fn(Step<'_>) -> io::Result<()>,
) -> Vec<io::Result<()>> {
    // All files are written before the first sync, so that the file system can sync them together.
    let on_step = |it: atomic_file::Step<'_>| step(it.into());
    let created: Vec<_> = changes.iter().map(|it| create(it, &on_step)).collect();
    let mut done: Vec<io::Result<()>> = changes
        .iter()
        .zip(created)
        .map(|(it, created)| finish(it, created, &step))
        .collect();
    if done.iter().any(Result::is_ok) {
        let synced = step(Step::SyncFolder(folder)).and_then(|()| atomic_file::sync_folder(folder));
        if let Err(error) = synced {
            for done in done.iter_mut().filter(|done| done.is_ok()) {
                *done = Err(io::Error::new(error.kind(), error.to_string()));
            }
        }
    }
    done
}

fn create<'a>(
    change: &RecordChange,
    on_step: &'a dyn Fn(atomic_file::Step<'_>) -> io::Result<()>,
) -> io::Result<Option<AtomicFile<'a>>> {
    let Some(text) = &change.text else {
        return Ok(None);
    };
    let mut file = Options::new().on_step(on_step).create(&change.path)?;
    // After an error, such as a full disk, dropping the file object deletes the file.
    file.write_all(text)?;
    Ok(Some(file))
}

fn finish(
    change: &RecordChange,
    created: io::Result<Option<AtomicFile<'_>>>,
    step: impl Fn(Step<'_>) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(file) = created? {
        return file.commit_name().map(drop);
    }
    step(Step::Remove(&change.path))?;
    match fs::remove_file(&change.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_place_of_a_record_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["record", "another.partial"] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("file"), "x").unwrap();
        }
        load(folder.path(), |_: LoadedRecord<String>| {
            panic!("there is none")
        })
        .unwrap();
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}
