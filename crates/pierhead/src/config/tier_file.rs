//! Checks the path of `tier.path`: pierhead must create or overwrite no file that is not a tier.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

/// File systems of the kernel that store no data. The numbers are from the kernel's `magic.h`.
const KERNEL_FILE_SYSTEMS: &[(i64, &str)] = &[
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
];

/// Checks the file of the tier, without opening or creating it. `others` are the configuration file
/// and the files that it names, each with its key. Accepts a missing file, since pierhead creates
/// it, and a file that this user cannot examine.
pub(super) fn check_tier_file<'a>(
    file: &Path,
    others: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Result<(), String> {
    let shown = file.display();
    let mut above = file.ancestors();
    let kind = above.find_map(|it| Some(rustix::fs::statfs(it).ok()?.f_type));
    let kernel = KERNEL_FILE_SYSTEMS.iter().find(|it| Some(it.0) == kind);
    if let Some((_, name)) = kernel {
        return Err(format!(
            "{shown} is on the file system {name}, which stores no data: name a file on a disk, in memory (tmpfs) or on \
             persistent memory"
        ));
    }
    let Ok(found) = fs::metadata(file) else {
        return Ok(());
    };
    let kind = found.file_type();
    if kind.is_dir() {
        let example = file.join("pierhead.tier");
        return Err(format!(
            "{shown} is a folder: name a file in it, such as {}",
            example.display()
        ));
    }
    if kind.is_block_device() || kind.is_char_device() {
        return Err(format!(
            "{shown} is a device: create a file system on it, mount it, and name a file there"
        ));
    }
    if !kind.is_file() {
        return Err(format!(
            "{shown} is a pipe or a socket: name a file, or the path of a file that pierhead creates"
        ));
    }
    let is_same = |other: &Path| {
        let other = fs::metadata(other);
        other.is_ok_and(|it| (it.dev(), it.ino()) == (found.dev(), found.ino()))
    };
    match others.into_iter().find(|(_, path)| is_same(path)) {
        Some((name, _)) => Err(format!(
            "{shown} is also {name}: name the path of a file that pierhead creates"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_file_of_a_tier_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let [tier, other] = ["tier", "pierhead.toml"].map(|name| folder.path().join(name));
        fs::write(&tier, "").expect("a file");
        fs::write(&other, "").expect("a file");
        let others = || [("the configuration file", &*other)];
        for accepted in [&tier, &folder.path().join("new"), Path::new("/no/folder")] {
            assert_eq!(check_tier_file(accepted, others()), Ok(()));
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&other, &link).expect("a link");
        let pipe = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).expect("a pipe");
        for (refused, problem) in [
            (folder.path(), "is a folder"),
            (Path::new("/proc/self/mem"), "on the file system proc"),
            (Path::new("/proc/missing"), "on the file system proc"),
            (Path::new("/dev/null"), "is a device"),
            (&*pipe, "is a pipe"),
            (&*other, "is also the configuration file"),
            (&*link, "is also the configuration file"),
        ] {
            let message = check_tier_file(refused, others()).expect_err(problem);
            assert!(message.contains(problem), "{message}");
            assert!(message.contains(" name "), "no fix: {message}");
        }
    }
}
