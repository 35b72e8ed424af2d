//! Which bytes of a file are in memory, so that reading them waits for no disk.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;

use pierhead_pmem::TMPFS;
use rustix::fs::{StatFs, fstatfs};
use rustix::io::{Errno, ReadWriteFlags};

/// How far apart pages are probed. The kernel reads ahead by at least so much, and drops by as little as
/// a page: what a probe misses costs one short read on an async thread.
const PROBE_INTERVAL: u64 = 128 << 10;

/// How many bytes of `range`, from its start, are in the page cache, as far as probes tell: one byte of each 128 KiB.
pub fn resident(file: &File, range: Range<u64>) -> u64 {
    let mut at = range.start;
    while at < range.end {
        let mut byte = [0];
        let buffer = &mut [IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(file, buffer, at, ReadWriteFlags::NOWAIT) {
            Ok(1..) => at = (at / PROBE_INTERVAL + 1) * PROBE_INTERVAL,
            // A file system that cannot tell: in memory all is there. Elsewhere nothing is known to be, and what
            // is read instead is read on another thread, and checked.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                let in_memory = fstatfs(file).is_ok_and(|stat| is_in_memory(&stat));
                return if in_memory {
                    range.end - range.start
                } else {
                    0
                };
            }
            // Not there, or the file ends before it should: whoever reads will see.
            _ => break,
        }
    }
    at.min(range.end).saturating_sub(range.start)
}

/// Whether what lies on this file system never waits for a disk.
pub(crate) fn is_in_memory(stat: &StatFs) -> bool {
    stat.f_type == TMPFS
}
