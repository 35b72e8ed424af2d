//! A file system that is new for each run, so that no run pays for what an earlier one deleted: ext4 does not use an
//! inode again for a while after its deletion, and looks at all of those at every file that it makes (`recently_deleted`
//! in `fs/ext4/ialloc.c`). On a disk where the last run's trees were just removed this took most of a pull's time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::checked;

/// Sparse: only what a run writes is taken.
const BYTES: u64 = 24 << 30;

/// What a file system can do for a tree beside a store.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// No shared blocks: a tree's files are copies.
    Ext4,
    /// Shared blocks.
    Xfs,
}

/// A file system of its own in a file below a folder; unmounted and deleted when dropped.
pub(crate) struct Volume {
    image: PathBuf,
    point: PathBuf,
}

impl Volume {
    /// Root only.
    pub(crate) fn new(below: &Path, kind: Kind) -> Result<Self> {
        let name = format!("bundle-bench-{}", std::process::id());
        let volume = Self {
            image: below.join(format!("{name}.image")),
            point: below.join(name),
        };
        File::create(&volume.image)?.set_len(BYTES)?;
        fs::create_dir_all(&volume.point)?;
        let (program, options) = match kind {
            Kind::Ext4 => ("mkfs.ext4", "loop,noinit_itable"),
            Kind::Xfs => ("mkfs.xfs", "loop"),
        };
        checked(Command::new(program).arg("-q").arg(&volume.image))?;
        checked(
            Command::new("mount")
                .args(["-o", options])
                .args([&volume.image, &volume.point]),
        )?;
        Ok(volume)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A daemon that was just ended may still hold it for a moment.
        for _ in 0..50 {
            if checked(Command::new("umount").arg(&self.point)).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ = fs::remove_dir(&self.point);
        let _ = fs::remove_file(&self.image);
    }
}
