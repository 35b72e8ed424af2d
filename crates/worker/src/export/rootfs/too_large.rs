//! Errors for attributes and links that are too large for a file system. They name the size, the limit and the fix.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs as sys;
use rustix::io::Errno;

/// Of Linux, for the target of a symbolic link: PATH_MAX without the zero behind it.
const MAX_TARGET: usize = 4095;
/// ext2, ext3 and ext4 in what statfs calls the type.
const EXT: u64 = 0xef53;

/// Why that extended attribute could not be set on what lies in `place`'s file system.
pub(super) fn attribute(
    place: BorrowedFd<'_>,
    name: &[u8],
    value: &[u8],
    error: Errno,
) -> io::Error {
    // A full disk gives the same number as a full block of attributes.
    let is_full = |room: &sys::StatFs| {
        let block = u64::try_from(room.f_bsize).unwrap_or(1).max(1);
        room.f_bavail <= (value.len() as u64).div_ceil(block)
    };
    let room = sys::fstatfs(place).ok();
    match (error, &room) {
        (Errno::NOSPC, Some(room)) if is_full(room) => return error.into(),
        (Errno::NOSPC | Errno::TOOBIG | Errno::RANGE, _) => {}
        _ => return error.into(),
    }
    let limit = match &room {
        Some(room) if u64::try_from(room.f_type).is_ok_and(|it| it == EXT) => {
            let block = room.f_bsize;
            format!("ext4 has one block of {block} bytes for all attributes of a file")
        }
        _ => "the file system here takes less".into(),
    };
    let (name, len) = (name.escape_ascii(), value.len());
    unsupported(format!(
        "its extended attribute {name} has {len} bytes, and {limit}: export into another file system (XFS takes 64 KiB \
         each), or as layers (--as oci-layout)"
    ))
}

/// Why a symbolic link to `target` could not be made.
pub(super) fn target(target: &[u8], error: Errno) -> io::Error {
    let len = target.len();
    if error != Errno::NAMETOOLONG || len <= MAX_TARGET {
        return error.into();
    }
    unsupported(format!(
        "the target of this symbolic link has {len} bytes, and Linux takes {MAX_TARGET} at most: export as layers \
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

    /// Which file system takes how much is not for a test to choose.
    #[test]
    fn an_attribute_that_is_refused_for_its_size_is_named_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let place = File::open(folder.path()).unwrap();
        let tell = |error| attribute(place.as_fd(), b"user.\xff", &[7; 5000], error);
        for refused in [Errno::TOOBIG, Errno::RANGE] {
            let text = tell(refused).to_string();
            for part in [r"user.\xff", "5000 bytes", "XFS", "--as oci-layout"] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
        assert_eq!(
            tell(Errno::IO).raw_os_error(),
            Some(Errno::IO.raw_os_error())
        );
    }

    #[test]
    fn a_link_that_is_too_long_is_told_and_other_trouble_is_as_it_was() {
        let text = target(&[b'x'; 4096], Errno::NAMETOOLONG).to_string();
        assert!(
            text.contains("4096 bytes") && text.contains("4095"),
            "{text}"
        );
        // Its name may be what is too long.
        let short = target(b"x", Errno::NAMETOOLONG).raw_os_error();
        assert_eq!(short, Some(Errno::NAMETOOLONG.raw_os_error()));
    }
}
