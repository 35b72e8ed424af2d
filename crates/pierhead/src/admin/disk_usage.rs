//! Measures the disk usage of the data folder, by kind of file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::api::Disk;

/// Measures the disk usage of `data`. Takes the sizes of blobs, downloads and tags from the cache's
/// own counters, since a walk over all their files would be slow. The call blocks the thread.
pub(super) fn usage(data: &Path, cache: &pierhead_cache::Stat) -> Disk {
    let mut disk = Disk {
        blobs: cache.used,
        downloads: cache.reserved,
        tags: cache.names,
        ..Disk::default()
    };
    for entry in fs::read_dir(data).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let kind = match name.to_str().unwrap_or_default() {
            "blobs" | "staging" | "names" => continue,
            "pins" => &mut disk.pins,
            "packs" | "plans" | "index" | "directory" | "directory.damaged" => &mut disk.bundles,
            "catalog" | "catalog.damaged" | "ranks" => &mut disk.catalog,
            _ => &mut disk.other,
        };
        *kind += allocated(entry.path());
    }
    let Disk {
        blobs,
        downloads,
        tags,
        pins,
        bundles,
        catalog,
        other,
        ..
    } = disk;
    disk.total = blobs + downloads + tags + pins + bundles + catalog + other;
    disk
}

/// Allocated bytes of a file, or of all files below a folder. If a file has two hard links, each of
/// them counts as half of the file's bytes.
fn allocated(path: PathBuf) -> u64 {
    let (mut sum, mut next) = (0, vec![path]);
    while let Some(path) = next.pop() {
        // Another thread may have deleted the file since the folder was listed.
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            next.extend(entries.map(|entry| entry.path()));
        } else {
            sum += meta.blocks() * 512 / meta.nlink().max(1);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_counts_for_exactly_one_kind() {
        let data = tempfile::tempdir().expect("a folder");
        let write = |name: &str| {
            let path = data.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, [1; 5000]).expect("written");
        };
        for name in [
            "blobs/sha256/00/00",
            "names/1",
            "staging/x",
            "pins/1",
            "packs/1.pack",
            "plans/1",
            "index/tables/a",
            "directory/db",
            "catalog/db",
            "ranks",
            "another/programs/file",
        ] {
            write(name);
        }
        fs::hard_link(data.path().join("plans/1"), data.path().join("plans/2")).expect("linked");
        let cache = pierhead_cache::Stat {
            used: 7,
            reserved: 5,
            names: 3,
            ..pierhead_cache::Stat::default()
        };
        let disk = usage(data.path(), &cache);
        assert_eq!((disk.blobs, disk.downloads, disk.tags), (7, 5, 3));
        let one = disk.pins;
        assert!(one >= 5000, "{one}");
        assert_eq!(
            (disk.bundles, disk.catalog, disk.other),
            (4 * one, 2 * one, one)
        );
        assert_eq!(disk.total, 15 + 8 * one);
    }
}
