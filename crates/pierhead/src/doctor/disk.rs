//! Checks the disk of the data folder: file system, free space and speed.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use pierhead_oci::units::human_bytes;
use pierhead_pmem::TMPFS;
use rustix::fs::{Advice, fadvise, statfs, statvfs};

use super::report::Finding;
use crate::config::crate_configs;
use crate::config::{self, Config};

/// Number of bytes that the speed test writes.
const TEST_BYTES: u64 = 32 << 20;
/// Number of bytes of one write of the speed test.
const WRITE_BYTES: usize = 1 << 20;
/// Time limit of the writes and of the reads of the speed test. After this time, the test computes
/// the speed from the bytes so far.
const TEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Rate of the disk, in bytes per second, below which the check warns: this rate fills a link of 1
/// Gbit/s.
const MIN_BYTES_PER_SECOND: f64 = 125e6;
/// Time of one sync above which the check warns: longer syncs slow down every pull of small layers.
const MAX_SYNC_TIME: Duration = Duration::from_millis(50);

/// Runs all checks of the disk. `bytes_in_use` is the size of the running daemon's cache.
pub(crate) fn check(config: &Config, bytes_in_use: Option<u64>) -> Vec<Finding> {
    let data = &config.data;
    let mut findings = Vec::new();
    let existing = data.ancestors().find(|folder| folder.is_dir());
    let folder = existing.unwrap_or(Path::new("/"));
    findings.extend(check_file_system(folder));
    findings.extend(check_inodes(folder));
    let space = match crate_configs::file_system_space(data) {
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
    let own = bytes_in_use.unwrap_or_else(|| if data.is_dir() { blob_bytes(data) } else { 0 });
    let space = DataSpace {
        total: space.total,
        free: space.free,
        own,
    };
    findings.push(space.check(config));
    if space.free
        < config
            .cache
            .min_free
            .resolve(space.total, 0)
            .saturating_add(2 * TEST_BYTES)
    {
        // The speed test needs free space, so it is skipped on a full disk.
        return findings;
    }
    findings.push(match test_speed(folder) {
        Ok(speed) => speed.check(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Finding::warn(
            "disk",
            format!(
                "speed not measured: this user cannot write to {}",
                folder.display()
            ),
            "run doctor as the user of pierhead or as root",
        ),
        Err(error) => Finding::fail(
            "disk",
            format!("writing to {} fails: {error}", folder.display()),
            "see `dmesg` and `findmnt -T` of the folder",
        ),
    });
    findings
}

fn check_file_system(folder: &Path) -> Option<Finding> {
    let kind = statfs(folder).ok()?.f_type & 0xffff_ffff;
    let shown = folder.display();
    Some(match kind {
        TMPFS | 0x8584_58f6 => Finding::warn(
            "disk",
            format!(
                "{shown} is in memory: the cache takes memory from programs and is lost at a reboot"
            ),
            "set `data` to a folder on a disk",
        ),
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x517b | 0x6573_5546 | 0x0102_1997 | 0x00c3_6400 => {
            Finding::warn(
                "disk",
                format!("{shown} is on a network file system or FUSE: every cache hit crosses it"),
                "set `data` to a folder on a local disk",
            )
        }
        0x794c_7630 => Finding::warn(
            "disk",
            format!(
                "{shown} is the writable layer of a container: the cache is lost with the container"
            ),
            "mount a volume at this folder",
        ),
        0x4d44 | 0x5346_544e => Finding::fail(
            "disk",
            format!(
                "the file system of {shown} has no hard links or permissions, which the cache needs"
            ),
            "set `data` to a folder on ext4, xfs or btrfs",
        ),
        _ => return None,
    })
}

fn check_inodes(folder: &Path) -> Option<Finding> {
    let stat = statvfs(folder).ok()?;
    // A file system without a fixed number of inodes reports 0.
    if stat.f_files == 0 || stat.f_favail > stat.f_files / 20 {
        return None;
    }
    Some(Finding::warn(
        "disk",
        format!("{} of {} inodes are free", stat.f_favail, stat.f_files),
        "each blob needs one inode; `du --inodes -xd1` finds the folders that use them",
    ))
}

/// Bytes of all blobs in the data folder. The caller sets a time limit.
fn blob_bytes(data: &Path) -> u64 {
    let blobs = data.join("blobs");
    let folders = fs::read_dir(&blobs).into_iter().flatten().flatten();
    let inner =
        folders.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    let files = inner.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten().flatten());
    files
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// Space of the data folder's file system, in bytes.
struct DataSpace {
    total: u64,
    free: u64,
    /// Bytes that the cache itself uses.
    own: u64,
}

impl DataSpace {
    fn check(&self, config: &Config) -> Finding {
        let min_free = config.cache.min_free.resolve(self.total, 0);
        let available = self.free.saturating_add(self.own).saturating_sub(min_free);
        let wanted = config
            .cache
            .size
            .resolve(self.total, self.free.saturating_add(self.own));
        let free = human_bytes(self.free);
        if self.free.saturating_add(self.own) <= min_free {
            return Finding::fail(
                "disk",
                format!(
                    "{free} free, and cache.min_free reserves {}: the cache stores no new blobs",
                    human_bytes(min_free)
                ),
                format!(
                    "free more than {} (`df -h {}`), or lower `cache.min_free`",
                    human_bytes(min_free.saturating_sub(self.free.saturating_add(self.own))),
                    config.data.display()
                ),
            );
        }
        if let Some((problem, fix)) = config::size_above_disk(config, wanted, available) {
            return Finding::warn("disk", problem, fix);
        }
        if wanted < 10 << 30 {
            return Finding::warn(
                "disk",
                format!(
                    "the cache has at most {}, which a few large images fill",
                    human_bytes(wanted)
                ),
                "raise `cache.size`, or set `data` to a folder on a larger disk",
            );
        }
        Finding::ok(
            "disk",
            format!(
                "{free} free of {}, the cache has at most {}",
                human_bytes(self.total),
                human_bytes(wanted)
            ),
        )
    }
}

struct Speed {
    /// Write rate in bytes per second, including the time of the final sync.
    write: f64,
    /// Read rate in bytes per second.
    read: f64,
    /// Time of a sync of 4 KiB.
    sync: Duration,
}

impl Speed {
    fn check(&self) -> Finding {
        let mb = |rate: f64| format!("{:.0} MB/s", rate / 1e6);
        let what = format!(
            "writes {}, reads {}, a sync takes {:.1} ms",
            mb(self.write),
            mb(self.read),
            self.sync.as_secs_f64() * 1e3
        );
        if self.write < MIN_BYTES_PER_SECOND || self.read < MIN_BYTES_PER_SECOND {
            let fix =
                "the disk is slower than a 1 Gbit/s link: set `data` to a folder on a faster disk";
            return Finding::warn("disk", what, fix);
        }
        if self.sync > MAX_SYNC_TIME {
            let fix =
                "each layer needs one sync: set `data` to a folder on a disk with a write cache";
            return Finding::warn("disk", what, fix);
        }
        Finding::ok("disk", what)
    }
}

/// Measures the speed of a disk with a temporary file. The file is unlinked before the test writes
/// to it, so that no file remains after a crash.
fn test_speed(folder: &Path) -> io::Result<Speed> {
    let path = folder.join(format!(".pierhead-doctor-{}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    // Writes random data, so that no disk or file system can compress or deduplicate the data.
    let mut block = vec![0_u8; WRITE_BYTES];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut fill = |block: &mut [u8]| {
        for bytes in block.chunks_exact_mut(8) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            bytes.copy_from_slice(&seed.to_le_bytes());
        }
    };
    let mut written = 0_u64;
    let mut spent = Duration::ZERO;
    while written < TEST_BYTES && spent < TEST_TIMEOUT {
        fill(&mut block);
        let start = Instant::now();
        file.write_all(&block)?;
        spent += start.elapsed();
        written += block.len() as u64;
    }
    let start = Instant::now();
    file.sync_data()?;
    spent += start.elapsed();
    let write = rate(written, spent);

    let start = Instant::now();
    for _ in 0..3 {
        file.write_all(&block[..4096])?;
        file.sync_data()?;
    }
    let sync = start.elapsed() / 3;

    // Drops the file from the page cache, so that the reads come from the disk.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    file.rewind()?;
    let start = Instant::now();
    let mut read = 0_u64;
    while read < written && start.elapsed() < TEST_TIMEOUT {
        file.read_exact(&mut block)?;
        read += block.len() as u64;
    }
    Ok(Speed {
        write,
        read: rate(read, start.elapsed()),
        sync,
    })
}

fn rate(bytes: u64, time: Duration) -> f64 {
    // The number of bytes is about 10^7, which an f64 represents exactly.
    #[allow(clippy::cast_precision_loss)]
    let bytes = bytes as f64;
    bytes / time.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;
    use crate::doctor::report::Severity;

    fn config(size: Size) -> Config {
        let mut config = Config::with_data("/nowhere".into());
        config.cache.size = size;
        config.cache.min_free = Size::Bytes(1 << 30);
        config
    }

    #[test]
    fn a_cache_size_above_the_free_space_is_a_finding() {
        const GIB: u64 = 1 << 30;
        let space = |free, own| DataSpace {
            total: 500 * GIB,
            free: free * GIB,
            own: own * GIB,
        };
        let check = |size, space: DataSpace| {
            let finding = space.check(&config(size));
            (finding.level, finding.fix.unwrap_or_default())
        };
        assert_eq!(check(Size::Auto, space(100, 0)).0, Severity::Ok);
        assert_eq!(check(Size::Bytes(50 * GIB), space(20, 40)).0, Severity::Ok);
        let (level, fix) = check(Size::Bytes(50 * GIB), space(20, 0));
        assert_eq!(level, Severity::Warn);
        assert!(fix.contains("cache.size = \"19GiB\""), "{fix}");
        let (level, fix) = check(Size::Bytes(50 * GIB), space(1, 0));
        assert_eq!(level, Severity::Fail);
        assert!(fix.contains("cache.min_free"), "{fix}");
        let (_, fix) = check(Size::Bytes(50 * GIB), space(0, 0));
        assert!(fix.starts_with("free more than 1.0 GiB"), "{fix}");
        assert_eq!(check(Size::Bytes(GIB), space(100, 0)).0, Severity::Warn);
    }

    #[test]
    fn the_speed_test_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let speed = test_speed(folder.path()).expect("the test ran");
        assert!(speed.write > 0.0 && speed.read > 0.0);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_slow_disk_is_a_warning() {
        let speed = |write, sync| Speed {
            write,
            read: 1e9,
            sync: Duration::from_millis(sync),
        };
        assert_eq!(speed(1e9, 1).check().level, Severity::Ok);
        assert_eq!(speed(1e7, 1).check().level, Severity::Warn);
        assert_eq!(speed(1e9, 60).check().level, Severity::Warn);
    }
}
