//! The disk below the data folder: kind, room and speed.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use pierhead_oci::units::human_bytes;
use pierhead_pmem::TMPFS;
use rustix::fs::{Advice, fadvise, statfs, statvfs};

use super::report::Finding;
use crate::config::Config;
use crate::wiring;

/// How much is written, in pieces.
const TRIAL: u64 = 32 << 20;
const PIECE: usize = 1 << 20;
/// Writing stops after this, with whatever was written by then.
const PATIENCE: Duration = Duration::from_secs(4);
/// Below this, the disk and not a 1 Gbit/s link is what clients wait for.
const SLOW: f64 = 125e6;
/// A commit that takes longer is felt in every pull of small layers.
const SLOW_SYNC: Duration = Duration::from_millis(50);

/// Everything about it. `in_use` is what the running daemon holds there.
pub(crate) fn look(config: &Config, in_use: Option<u64>) -> Vec<Finding> {
    let data = &config.data;
    let mut findings = Vec::new();
    let existing = data.ancestors().find(|folder| folder.is_dir());
    let folder = existing.unwrap_or(Path::new("/"));
    findings.extend(kind(folder));
    findings.extend(inodes(folder));
    let space = match wiring::space(data) {
        Ok(space) => space,
        Err(error) => {
            findings.push(Finding::fail(
                "disk",
                format!("{}: {error}", data.display()),
                "set `data` to a folder on a disk",
            ));
            return findings;
        }
    };
    let own = in_use.unwrap_or_else(|| if data.is_dir() { held(data) } else { 0 });
    let room = Room {
        total: space.total,
        free: space.free,
        own,
    };
    findings.push(room.look(config));
    if room.free
        < config
            .cache
            .min_free
            .resolve(space.total, 0)
            .saturating_add(2 * TRIAL)
    {
        // A trial on a full disk measures that it is full.
        return findings;
    }
    findings.push(match trial(folder) {
        Ok(speed) => speed.look(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Finding::warn(
            "disk",
            format!(
                "speed unknown: this user may not write to {}",
                folder.display()
            ),
            "run this as the user that pierhead runs as, or as root",
        ),
        Err(error) => Finding::fail(
            "disk",
            format!("writing to {} fails: {error}", folder.display()),
            "see `dmesg` and `findmnt -T` of the folder",
        ),
    });
    findings
}

fn kind(folder: &Path) -> Option<Finding> {
    let kind = statfs(folder).ok()?.f_type & 0xffff_ffff;
    let shown = folder.display();
    Some(match kind {
        TMPFS | 0x8584_58f6 => Finding::warn(
            "disk",
            format!(
                "{shown} is in memory: the cache is lost at a restart and takes what programs need"
            ),
            "set `data` to a folder on a disk",
        ),
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x517b | 0x6573_5546 | 0x0102_1997 | 0x00c3_6400 => {
            Finding::warn(
                "disk",
                format!("{shown} is on a network or in user space: every hit goes there and back"),
                "set `data` to a folder on a local disk",
            )
        }
        0x794c_7630 => Finding::warn(
            "disk",
            format!("{shown} is a container's own layer: the cache goes with the container"),
            "mount a volume there",
        ),
        0x4d44 | 0x5346_544e => Finding::fail(
            "disk",
            format!("{shown} has a file system without the properties that a cache needs"),
            "set `data` to a folder on ext4, xfs or btrfs",
        ),
        _ => return None,
    })
}

fn inodes(folder: &Path) -> Option<Finding> {
    let stat = statvfs(folder).ok()?;
    // File systems without a table of them say 0.
    if stat.f_files == 0 || stat.f_favail > stat.f_files / 20 {
        return None;
    }
    Some(Finding::warn(
        "disk",
        format!("{} of {} inodes are free", stat.f_favail, stat.f_files),
        "`du --inodes -xd1` finds who has them; one is needed for each blob",
    ))
}

/// What the cache's files take, bounded by the patience of whoever waits.
fn held(data: &Path) -> u64 {
    let blobs = data.join("blobs");
    let folders = fs::read_dir(&blobs).into_iter().flatten().flatten();
    let inner =
        folders.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    let files = inner.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    files
        .filter_map(|entry| entry.metadata().ok())
        .map(|about| about.len())
        .sum()
}

struct Room {
    total: u64,
    free: u64,
    /// What the cache holds.
    own: u64,
}

impl Room {
    fn look(&self, config: &Config) -> Finding {
        let min_free = config.cache.min_free.resolve(self.total, 0);
        let can_have = self.free.saturating_add(self.own).saturating_sub(min_free);
        let wanted = config
            .cache
            .size
            .resolve(self.total, self.free.saturating_add(self.own));
        let free = human_bytes(self.free);
        if self.free.saturating_add(self.own) <= min_free {
            return Finding::fail(
                "disk",
                format!(
                    "{free} free, and cache.min_free keeps {}: nothing is stored",
                    human_bytes(min_free)
                ),
                format!(
                    "free more than {} (`df -h {}`), or set `cache.min_free` lower",
                    human_bytes(min_free.saturating_sub(self.free.saturating_add(self.own))),
                    config.data.display()
                ),
            );
        }
        if let Some((what, fix)) = wiring::size_above_disk(config, wanted, can_have) {
            return Finding::warn("disk", what, fix);
        }
        if wanted < 10 << 30 {
            return Finding::warn(
                "disk",
                format!(
                    "the cache may have {}, which a few large images fill",
                    human_bytes(wanted)
                ),
                "give it more: `cache.size`, or `data` on a larger disk",
            );
        }
        Finding::ok(
            "disk",
            format!(
                "{free} free of {}, the cache may have {}",
                human_bytes(self.total),
                human_bytes(wanted)
            ),
        )
    }
}

struct Speed {
    /// Bytes a second, the sync at the end included.
    write: f64,
    read: f64,
    /// Of a small file.
    sync: Duration,
}

impl Speed {
    fn look(&self) -> Finding {
        let mb = |rate: f64| format!("{:.0} MB/s", rate / 1e6);
        let what = format!(
            "writes {}, reads {}, a sync takes {:.1} ms",
            mb(self.write),
            mb(self.read),
            self.sync.as_secs_f64() * 1e3
        );
        if self.write < SLOW || self.read < SLOW {
            let fix =
                "clients of a fast link will wait for it: set `data` to a folder on a faster disk";
            return Finding::warn("disk", what, fix);
        }
        if self.sync > SLOW_SYNC {
            let fix =
                "each layer is synced once: set `data` to a folder on a disk with a write cache";
            return Finding::warn("disk", what, fix);
        }
        Finding::ok("disk", what)
    }
}

/// Writes, syncs and reads back a file that has no name by then, so that nothing can be left behind.
fn trial(folder: &Path) -> io::Result<Speed> {
    let path = folder.join(format!(".pierhead-doctor-{}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    // No disk or file system can compress or merge it.
    let mut piece = vec![0_u8; PIECE];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut fill = |piece: &mut [u8]| {
        for bytes in piece.chunks_exact_mut(8) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            bytes.copy_from_slice(&seed.to_le_bytes());
        }
    };
    let mut written = 0_u64;
    let mut spent = Duration::ZERO;
    while written < TRIAL && spent < PATIENCE {
        fill(&mut piece);
        let start = Instant::now();
        file.write_all(&piece)?;
        spent += start.elapsed();
        written += piece.len() as u64;
    }
    let start = Instant::now();
    file.sync_data()?;
    spent += start.elapsed();
    let write = rate(written, spent);

    let start = Instant::now();
    for _ in 0..3 {
        file.write_all(&piece[..4096])?;
        file.sync_data()?;
    }
    let sync = start.elapsed() / 3;

    // Else the page cache is measured.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    file.rewind()?;
    let start = Instant::now();
    let mut read = 0_u64;
    while read < written && start.elapsed() < PATIENCE {
        file.read_exact(&mut piece)?;
        read += piece.len() as u64;
    }
    Ok(Speed {
        write,
        read: rate(read, start.elapsed()),
        sync,
    })
}

fn rate(bytes: u64, time: Duration) -> f64 {
    // Some 10^7 bytes: exact.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    bytes / time.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;
    use crate::doctor::report::Level;

    fn config(size: Size) -> Config {
        let mut config = Config::with_data("/nowhere".into());
        config.cache.size = size;
        config.cache.min_free = Size::Bytes(1 << 30);
        config
    }

    #[test]
    fn room_against_the_bound() {
        const GIB: u64 = 1 << 30;
        let room = |free, own| Room {
            total: 500 * GIB,
            free: free * GIB,
            own: own * GIB,
        };
        let look = |size, room: Room| {
            let finding = room.look(&config(size));
            (finding.level, finding.fix.unwrap_or_default())
        };
        assert_eq!(look(Size::Auto, room(100, 0)).0, Level::Ok);
        assert_eq!(look(Size::Bytes(50 * GIB), room(20, 40)).0, Level::Ok);
        let (level, fix) = look(Size::Bytes(50 * GIB), room(20, 0));
        assert_eq!(level, Level::Warn);
        assert!(fix.contains("cache.size = \"19GiB\""), "{fix}");
        let (level, fix) = look(Size::Bytes(50 * GIB), room(1, 0));
        assert_eq!(level, Level::Fail);
        assert!(fix.contains("cache.min_free"), "{fix}");
        let (_, fix) = look(Size::Bytes(50 * GIB), room(0, 0));
        assert!(fix.starts_with("free more than 1.0 GiB"), "{fix}");
        assert_eq!(look(Size::Bytes(GIB), room(100, 0)).0, Level::Warn);
    }

    #[test]
    fn a_trial_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let speed = trial(folder.path()).expect("it is written");
        assert!(speed.write > 0.0 && speed.read > 0.0);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn slow_is_said() {
        let speed = |write, sync| Speed {
            write,
            read: 1e9,
            sync: Duration::from_millis(sync),
        };
        assert_eq!(speed(1e9, 1).look().level, Level::Ok);
        assert_eq!(speed(1e7, 1).look().level, Level::Warn);
        assert_eq!(speed(1e9, 60).look().level, Level::Warn);
    }
}
