//! Makes the errors for extended attributes and symbolic links that are too large for the file
//! system. The error text states the size, the limit and the fix.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs as sys;
use rustix::io::Errno;

/// Maximum number of bytes of the target of a symbolic link on Linux: PATH_MAX without the zero at
/// the end.
const MAX_TARGET: usize = 4095;
/// The number of the file systems ext2, ext3 and ext4 in the result of `statfs`.
const EXT: u64 = 0xef53;

/// Makes the error for an extended attribute that could not be set. `file_system` is any descriptor
/// on the file system.
pub(super) fn attribute(
    file_system: BorrowedFd<'_>,
    name: &[u8],
    value: &[u8],
    error: Errno,
) -> io::Error {
    // A full disk and a full block of extended attributes have the same error number.
    let is_full = |statfs: &sys::StatFs| {
        let block = u64::try_from(statfs.f_bsize).unwrap_or(1).max(1);
        statfs.f_bavail <= (value.len() as u64).div_ceil(block)
    };
    let statfs = sys::fstatfs(file_system).ok();
    match (error, &statfs) {
        (Errno::NOSPC, Some(statfs)) if is_full(statfs) => return error.into(),
        (Errno::NOSPC | Errno::TOOBIG | Errno::RANGE, _) => {}
        _ => return error.into(),
    }
    let limit = match &statfs {
        Some(statfs) if u64::try_from(statfs.f_type).is_ok_and(|it| it == EXT) => {
            let block = statfs.f_bsize;
            format!("ext4 has one block of {block} bytes for all attributes of a file")
        }
        _ => "the file system of the target has a lower limit".into(),
    };
    let (name, len) = (name.escape_ascii(), value.len());
    unsupported(format!(
        "its extended attribute {name} has {len} bytes, and {limit}: export into another file system (XFS takes 64 KiB \
         each), or as layers (--as oci-layout)"
    ))
}

/// Makes the error for a symbolic link to `target` that could not be created.
pub(super) fn target(target: &[u8], error: Errno) -> io::Error {
    let len = target.len();
    if error != Errno::NAMETOOLONG || len <= MAX_TARGET {
        return error.into();
    }
    unsupported(format!(
        "the target of this symbolic link has {len} bytes, and the maximum on Linux is {MAX_TARGET}: export as layers \
         (--as oci-layout)"
    ))
}

fn unsupported(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn the_error_of_a_large_attribute_names_size_and_fix() {
        let folder = tempfile::tempdir().unwrap();
        let file_system = File::open(folder.path()).unwrap();
        let failed = |error| attribute(file_system.as_fd(), b"user.\xff", &[7; 5000], error);
        for refused in [Errno::TOOBIG, Errno::RANGE] {
            let text = failed(refused).to_string();
            for part in [r"user.\xff", "5000 bytes", "XFS", "--as oci-layout"] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
        assert_eq!(
            failed(Errno::IO).raw_os_error(),
            Some(Errno::IO.raw_os_error())
        );
    }

    #[test]
    fn the_error_of_a_long_link_target_names_size_and_limit() {
        let text = target(&[b'x'; 4096], Errno::NAMETOOLONG).to_string();
        assert!(
            text.contains("4096 bytes") && text.contains("4095"),
            "{text}"
        );
        // If the name of the symbolic link is too long, and not its target, the error does not
        // change.
        let short = target(b"x", Errno::NAMETOOLONG).raw_os_error();
        assert_eq!(short, Some(Errno::NAMETOOLONG.raw_os_error()));
    }
}
