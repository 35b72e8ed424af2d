//! Creates a new file system for each run of a benchmark, so that deletions of earlier runs do not
//! slow the run down. ext4 does not reuse a recently deleted inode: for each new file, it skips all
//! such inodes (`recently_deleted` in `fs/ext4/ialloc.c`). After the removal of a large tree, these
//! skips would take most of the time of a pull.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use pierhead_tests::process::run;

/// Size of the sparse file in bytes. The file takes disk space only for written bytes.
const BYTES: u64 = 24 << 30;

/// The type of a file system.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FileSystem {
    /// ext4, without shared blocks: files of a tree are copies or hard links.
    Ext4,
    /// XFS, with shared blocks (reflinks).
    Xfs,
}

/// A file system in a file. Dropping it unmounts and deletes it.
pub(crate) struct Volume {
    image: PathBuf,
    mount_point: PathBuf,
}

impl Volume {
    /// Creates and mounts the file system. Needs root.
    pub(crate) fn new(below: &Path, file_system: FileSystem) -> Result<Self> {
        let name = format!("bundle-bench-{}", std::process::id());
        let volume = Self {
            image: below.join(format!("{name}.image")),
            mount_point: below.join(name),
        };
        File::create(&volume.image)?.set_len(BYTES)?;
        fs::create_dir_all(&volume.mount_point)?;
        let (program, options) = match file_system {
            FileSystem::Ext4 => ("mkfs.ext4", "loop,noinit_itable"),
            FileSystem::Xfs => ("mkfs.xfs", "loop"),
        };
        run(Command::new(program).arg("-q").arg(&volume.image))?;
        run(Command::new("mount")
            .args(["-o", options])
            .args([&volume.image, &volume.mount_point]))?;
        Ok(volume)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mount_point
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A stopped daemon may keep the file system busy for a short time.
        for _ in 0..50 {
            if run(Command::new("umount").arg(&self.mount_point)).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ = fs::remove_dir(&self.mount_point);
        let _ = fs::remove_file(&self.image);
    }
}
