//! `FileStamp`: detects by the metadata of a file that the file was replaced or written to.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Identity, size and modification time of a file. Every replacement changes the stamp. A write
/// changes the stamp, too, unless the previous change was within the resolution of the file
/// system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Modification time in seconds and nanoseconds since 1970.
    modified: (i64, i64),
}

impl FileStamp {
    /// Returns the stamp of the file at `path`. `None` if the file is missing or unreadable.
    /// Follows symbolic links, because the files of a Kubernetes Secret are symbolic links. Blocks.
    pub fn read(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "moves a file of the test")]
    fn a_replaced_or_extended_file_has_another_stamp() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert_eq!(FileStamp::read(&path), None);
        std::fs::write(&path, "one").expect("written");
        let first = FileStamp::read(&path);
        assert!(first.is_some());
        assert_eq!(FileStamp::read(&path), first);
        std::fs::write(&path, "longer").expect("written");
        let extended = FileStamp::read(&path);
        assert_ne!(extended, first);
        let new = folder.path().join("new");
        std::fs::write(&new, "longer").expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        assert_ne!(FileStamp::read(&path), extended);
    }
}
