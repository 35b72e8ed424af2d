//! Determines which device or memory is below a file, and whether the file's contents survive a
//! power cut.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Magic number of tmpfs in `statfs`.
pub const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
/// File systems whose contents do not survive a power cut or the end of the container, with the
/// reason. The numbers are from the kernel's `magic.h`.
const VOLATILE_FILE_SYSTEMS: &[(i64, &str)] = &[
    (TMPFS, "tmpfs is memory"),
    (RAMFS, "ramfs is memory"),
    (0x9584_58f6, "hugetlbfs is memory"),
    (
        0x794c_7630,
        "an overlay goes with its container, and may lie in memory",
    ),
];

/// Network file systems and shared folders of a virtual machine. Such file systems count as durable
/// as a disk, because the server flushes its data on request. The numbers are from the kernel's
/// `magic.h`.
const NETWORK_FILE_SYSTEMS: &[i64] = &[
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB
    0x0102_1997, // 9p
    0x00c3_6400, // Ceph
    0x0bd0_0bd0, // Lustre
    0x6573_5546, // FUSE, virtiofs
];
const BTRFS: i64 = 0x9123_683e;

/// Maximum number of stacked block devices that are followed. A loop device on a device mapper on a
/// partition is a stack of three.
const MAX_DEVICE_DEPTH: u32 = 8;

/// Whether a file at `path`, existing or not, is stored in memory that is charged to the cgroup of
/// the writer. If the path cannot be examined, the result is `false`.
pub fn is_memory(path: &Path) -> bool {
    let mut above = path.ancestors();
    let stat = above.find_map(|it| rustix::fs::statfs(it).ok());
    stat.is_some_and(|stat| [TMPFS, RAMFS].contains(&stat.f_type))
}

/// Returns the reason why a power cut loses the contents of `file`, as far as the kernel states it.
/// `None`: the contents survive.
pub(crate) fn volatile(file: &File) -> io::Result<Option<String>> {
    volatile_reason(file, Path::new("/sys"), MAX_DEVICE_DEPTH)
}

fn volatile_reason(file: &File, sys: &Path, depth: u32) -> io::Result<Option<String>> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    if let Some((_, why)) = VOLATILE_FILE_SYSTEMS
        .iter()
        .find(|(magic, _)| *magic == kind)
    {
        return Ok(Some((*why).to_owned()));
    }
    let device = file.metadata()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if major == 0 {
        return Ok(reason_without_device(kind, sys, depth));
    }
    Ok(device_reason(
        &sys.join(format!("dev/block/{major}:{minor}")),
        sys,
        depth,
    ))
}

/// Returns the same as [`volatile_reason`], for a file system without a device number of its own.
fn reason_without_device(kind: i64, sys: &Path, depth: u32) -> Option<String> {
    if NETWORK_FILE_SYSTEMS.contains(&kind) {
        return None;
    }
    if kind != BTRFS {
        return Some("the kernel does not tell on which disks its file system is".to_owned());
    }
    // sysfs does not tell which btrfs contains the file, so if one btrfs is on volatile memory,
    // every file on a btrfs counts as volatile.
    let all = fs::read_dir(sys.join("fs/btrfs")).ok()?;
    let devices = all.flatten();
    let devices = devices.filter_map(|one| fs::read_dir(one.path().join("devices")).ok());
    devices
        .flatten()
        .flatten()
        .find_map(|device| device_reason(&device.path(), sys, depth))
}

/// Returns the same as [`volatile_reason`], for a block device whose folder in sysfs is `folder`. A
/// device without such a folder counts as a disk.
fn device_reason(folder: &Path, sys: &Path, depth: u32) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let folder = fs::canonicalize(folder).ok()?;
    for part in folder.ancestors().take_while(|part| *part != sys) {
        let name = part.file_name().map(|name| name.to_string_lossy());
        let name = name.as_deref().unwrap_or_default();
        let numbered = |kind: &str| {
            name.strip_prefix(kind)
                .is_some_and(|number| number.parse::<u32>().is_ok())
        };
        if numbered("ram") || numbered("zram") {
            return Some(format!("{name} is a disk made of memory"));
        }
        if name == "e820_pmem" {
            return Some("the persistent memory is DRAM that memmap= has set aside".to_owned());
        }
        if numbered("region") && contains_text(&part.join("devtype"), "nd_volatile") {
            return Some(format!("the kernel says that {name} is volatile"));
        }
    }
    if let Ok(path) = fs::read_to_string(folder.join("loop/backing_file")) {
        let reason =
            File::open(path.trim_end()).and_then(|file| volatile_reason(&file, sys, depth));
        return reason.ok().flatten();
    }
    // A device mapper is as durable as the least durable device below it.
    fs::read_dir(folder.join("slaves"))
        .ok()?
        .flatten()
        .find_map(|slave| device_reason(&slave.path(), sys, depth))
}

fn contains_text(path: &Path, text: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|found| found.trim_end() == text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// In a test, creates a simulated sysfs with one device 8:1 at `path`, and with `files` below
    /// its root.
    fn sysfs(path: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a folder");
        let device = sys.path().join(path);
        fs::create_dir_all(&device).expect("a folder");
        fs::create_dir_all(sys.path().join("dev/block")).expect("a folder");
        symlink(&device, sys.path().join("dev/block/8:1")).expect("a link");
        for (path, text) in files {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, format!("{text}\n")).expect("a file");
        }
        sys
    }

    fn found(sys: &tempfile::TempDir) -> Option<String> {
        let sys = fs::canonicalize(sys.path()).expect("a folder");
        device_reason(&sys.join("dev/block/8:1"), &sys, MAX_DEVICE_DEPTH)
    }

    #[test]
    fn disks_in_memory_are_volatile() {
        for (path, volatile) in [
            ("devices/virtual/block/ram0", true),
            ("devices/virtual/block/zram12", true),
            ("devices/virtual/block/ram0/ram0p1", true),
            ("devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2", false),
            ("devices/virtual/block/ramses", false),
            (
                "devices/platform/e820_pmem/ndbus0/region0/namespace0.0/block/pmem0",
                true,
            ),
            (
                "devices/LNXSYSTM:00/ACPI0012:00/ndbus0/region0/namespace0.0/block/pmem0",
                false,
            ),
        ] {
            assert_eq!(found(&sysfs(path, &[])).is_some(), volatile, "{path}");
        }
    }

    #[test]
    fn the_device_type_of_a_region_tells_that_it_is_volatile() {
        let path = "devices/ndbus0/region1/namespace1.0/block/pmem1";
        for (devtype, volatile) in [("nd_volatile", true), ("nd_pmem", false)] {
            let sys = sysfs(path, &[("devices/ndbus0/region1/devtype", devtype)]);
            assert_eq!(found(&sys).is_some(), volatile, "{devtype}");
        }
    }

    #[test]
    fn a_device_mapper_is_as_volatile_as_its_parts() {
        let sys = sysfs("devices/virtual/block/dm-0", &[]);
        let slaves = sys.path().join("devices/virtual/block/dm-0/slaves");
        fs::create_dir_all(&slaves).expect("a folder");
        for (name, volatile) in [("sda1", false), ("zram0", true)] {
            let slave = sys.path().join("devices/virtual/block").join(name);
            fs::create_dir_all(&slave).expect("a folder");
            symlink(&slave, slaves.join(name)).expect("a link");
            assert_eq!(found(&sys).is_some(), volatile, "{name}");
        }
    }

    #[test]
    fn a_loop_device_is_as_volatile_as_its_file_and_a_cycle_ends() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in memory");
        let path = file.path().to_string_lossy().into_owned();
        let device = "devices/virtual/block/loop0";
        let of = format!("{device}/loop/backing_file");
        let sys = sysfs(device, &[(&of, &path)]);
        assert!(found(&sys).is_some_and(|why| why.contains("tmpfs")));

        let ring = sysfs("devices/virtual/block/dm-1", &[]);
        let own = ring.path().join("devices/virtual/block/dm-1");
        fs::create_dir_all(own.join("slaves")).expect("a folder");
        symlink(&own, own.join("slaves/dm-1")).expect("a link");
        assert_eq!(found(&ring), None);
    }

    #[test]
    fn a_file_system_without_a_device_is_as_volatile_as_its_disks() {
        let sys = sysfs("devices/virtual/block/ram0", &[]);
        let devices = sys.path().join("fs/btrfs/0123-4567/devices");
        fs::create_dir_all(&devices).expect("a folder");
        fs::create_dir_all(sys.path().join("fs/btrfs/features")).expect("a folder");
        let of = |kind| {
            reason_without_device(
                kind,
                &fs::canonicalize(sys.path()).expect("it"),
                MAX_DEVICE_DEPTH,
            )
        };
        for (name, volatile) in [("sda1", false), ("ram0", true)] {
            let device = sys.path().join("devices/virtual/block").join(name);
            fs::create_dir_all(&device).expect("a folder");
            symlink(&device, devices.join(name)).expect("a link");
            assert_eq!(of(BTRFS).is_some(), volatile, "{name}");
        }
        const ZFS: i64 = 0x2fc1_2fc1;
        const NFS: i64 = 0x6969;
        assert!(of(ZFS).is_some_and(|why| why.contains("does not tell")));
        assert_eq!(of(NFS), None);
    }

    #[test]
    fn an_unknown_device_counts_as_a_disk() {
        let sys = tempfile::tempdir().expect("a folder");
        assert_eq!(found(&sys), None);
    }
}
