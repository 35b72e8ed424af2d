//! Reads small text files of the kernel below `/proc` and `/sys`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum number of bytes that are read from a file of the kernel. A mount table of hundreds of
/// mounts has a few dozen kilobytes.
const MAX_FILE: u64 = 1 << 20;

/// Reads a file of the kernel. `None` if the file cannot be read.
pub fn read_kernel_file(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the path below `root` that corresponds to the absolute path `path`.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the number in the line `NAME   123 kB` of `/proc/meminfo` or `/proc/self/status`.
/// Returns 0 if there is no such line.
pub fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kibibytes_of_a_named_line_are_parsed() {
        let status = "VmHWM:\t 7 kB\nVmRSS:\t  1234 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), 1234);
        assert_eq!(kibibytes("", "VmRSS:"), 0);
    }

    #[test]
    fn a_missing_file_is_none_and_paths_are_resolved_below_the_root() {
        assert_eq!(read_kernel_file(Path::new("/proc/none-such")), None);
        let root = Path::new("/image");
        assert_eq!(below(root, Path::new("/proc/self")), root.join("proc/self"));
        assert_eq!(below(root, Path::new("proc")), root.join("proc"));
    }
}
