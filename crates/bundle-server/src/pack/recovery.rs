//! Recovery of a pack (a file of compressed frames) at the start of the server: finds the intact
//! records of the pack, and cuts off the bytes after them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::disk::Disk;
use super::file::{index_path, on_disk, pack_path};
use super::index::{self, HEADER, INDEX_MAGIC, PACK_MAGIC, Record};

/// A pack after recovery: its open files, its records, and when it was last used.
pub(super) struct RecoveredPack {
    pub(super) number: u32,
    pub(super) files: (File, File),
    pub(super) records: Vec<Record>,
    /// Lengths of the two files after recovery.
    pub(super) lens: (u64, u64),
    /// Time of last use, from the modification time of the index: seconds and nanoseconds since
    /// 1970.
    pub(super) used: (i64, i64),
}

/// Returns the numbers of all packs that have at least one file, in order. Ignores files with other
/// names.
pub(super) fn numbers(folder: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_suffix(".pack").or(name.strip_suffix(".index")))
            .filter(|stem| stem.len() == 8)
            .and_then(|stem| u32::from_str_radix(stem, 16).ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Returns the bytes on disk of the files of a pack that cannot be opened.
pub(super) fn unopened_bytes(folder: &Path, number: u32) -> u64 {
    let bytes = |path: PathBuf| path.metadata().map_or(0, |it| it.len());
    on_disk(bytes(pack_path(folder, number))) + on_disk(bytes(index_path(folder, number)))
}

/// Opens a pack, and cuts off incomplete records. Deletes both files and returns `None` when no
/// record is intact. When a file cannot be opened, changes nothing and returns `None`.
pub(super) fn open(disk: &Disk, folder: &Path, number: u32) -> io::Result<Option<RecoveredPack>> {
    let paths = (pack_path(folder, number), index_path(folder, number));
    let opened = existing(&paths.0).and_then(|data| Ok((data, existing(&paths.1)?)));
    let files = match opened {
        Ok((Some(data), Some(index))) => (data, index),
        Ok(_) => return remove(disk, folder, number).map(|()| None),
        // A lack of file descriptors or memory does not mean that the pack is damaged.
        Err(error) if pierhead_toc::is_exhausted(&error) => return Err(error),
        // The server uses the other packs, and gives no new pack the number of the pack that cannot
        // be opened.
        Err(error) => {
            tracing::warn!(
                pack = %paths.0.display(),
                %error,
                "cannot open a pack; make its two files readable and writable for pierhead, or delete them, and restart"
            );
            return Ok(None);
        }
    };
    let (data_len, index_len) = (files.0.metadata()?.len(), files.1.metadata()?.len());
    let mut header = [0; HEADER];
    let mut is_ours = |file: &File, magic| {
        file.read_exact_at(&mut header, 0).is_ok() && header == index::header(magic, number)
    };
    if !is_ours(&files.0, PACK_MAGIC) || !is_ours(&files.1, INDEX_MAGIC) {
        return remove(disk, folder, number).map(|()| None);
    }
    let (records, lens) = walk(number, &files.1, index_len, data_len)?;
    if records.is_empty() {
        return remove(disk, folder, number).map(|()| None);
    }
    // The index is cut first, since every record in the index must exist in the pack.
    if lens.1 != index_len {
        disk.cut(&paths.1, &files.1, lens.1)?;
    }
    if lens.0 != data_len {
        disk.cut(&paths.0, &files.0, lens.0)?;
    }
    let stat = rustix::fs::fstat(&files.1)?;
    let used = (
        stat.st_mtime,
        i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
    );
    Ok(Some(RecoveredPack {
        number,
        files,
        records,
        lens,
        used,
    }))
}

/// Reads the entries of an index. Stops at the first entry that is damaged or unreadable, leaves a
/// gap between records, or points to bytes that the pack lacks.
fn walk(
    number: u32,
    file: &File,
    index_len: u64,
    data_len: u64,
) -> io::Result<(Vec<Record>, (u64, u64))> {
    let mut records = Vec::new();
    let (mut at, mut end) = (HEADER as u64, HEADER as u64);
    let mut bytes = Vec::new();
    while at + index::ENTRY as u64 <= index_len {
        let mut len = [0; 4];
        if !read(file, &mut len, at)? {
            break;
        }
        let Ok(len) = index::length(len) else { break };
        if at + len as u64 > index_len {
            break;
        }
        bytes.resize(len, 0);
        if !read(file, &mut bytes, at)? {
            break;
        }
        let Ok(location) = u32::try_from(at) else {
            break;
        };
        let Ok((record, _)) = index::decode(number, location, &bytes) else {
            break;
        };
        let after = u64::from(record.offset) + u64::from(record.len);
        if u64::from(record.offset) != end || after > data_len {
            break;
        }
        records.push(record);
        (at, end) = (at + len as u64, after);
    }
    Ok((records, (end, at)))
}

/// Fills `bytes` from the file. Returns `false` when a sector of the disk is unreadable (`EIO`).
fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Deletes both files of a pack, the index first. If a crash interrupts the deletion, the next
/// recovery deletes the pack, which then has no index.
pub(super) fn remove(disk: &Disk, folder: &Path, number: u32) -> io::Result<()> {
    disk.remove(&index_path(folder, number))?;
    disk.remove(&pack_path(folder, number))
}

/// Opens a file, or returns `None` if the file does not exist.
fn existing(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_sector_ends_a_pack() {
        // No memory is mapped at address 0, so reads from this file fail with EIO, as reads of a
        // bad sector do.
        let unreadable = File::open("/proc/self/mem").unwrap();
        let failed = unreadable.read_exact_at(&mut [0], HEADER as u64);
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(5));
        let (records, lens) = walk(0, &unreadable, 4096, 4096).unwrap();
        assert!(records.is_empty());
        assert_eq!(lens, (HEADER as u64, HEADER as u64));
    }
}
