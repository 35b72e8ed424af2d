//! Probes which bytes of a file are in the page cache and can be read without waiting for a disk.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;

use pierhead_pmem::TMPFS;
use rustix::fs::{StatFs, fstatfs};
use rustix::io::{Errno, ReadWriteFlags};

/// Distance between probed pages in bytes. The kernel reads ahead at least 128 KiB, but may drop
/// single pages. If a page between two probes is not in the page cache, an async thread waits for
/// one short disk read, which is acceptable.
const PROBE_INTERVAL: u64 = 128 << 10;

/// Returns the number of bytes from the start of `range` on that are in the page cache. Probes one
/// byte per 128 KiB.
pub fn resident(file: &File, range: Range<u64>) -> u64 {
    let mut at = range.start;
    while at < range.end {
        let mut byte = [0];
        let buffer = &mut [IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(file, buffer, at, ReadWriteFlags::NOWAIT) {
            Ok(1..) => at = (at / PROBE_INTERVAL + 1) * PROBE_INTERVAL,
            // This file system does not support the probe. A tmpfs is always in memory. For any
            // other file system, the result is 0, so the caller reads on a blocking thread and
            // verifies the bytes.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                let in_memory = fstatfs(file).is_ok_and(|stat| is_in_memory(&stat));
                return if in_memory {
                    range.end - range.start
                } else {
                    0
                };
            }
            // The page is not in the page cache, or the file is too short. If the file is too
            // short, the read itself fails later.
            _ => break,
        }
    }
    at.min(range.end).saturating_sub(range.start)
}

/// Whether reads from this file system never wait for a disk.
pub(crate) fn is_in_memory(stat: &StatFs) -> bool {
    stat.f_type == TMPFS
}
