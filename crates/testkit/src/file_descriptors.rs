//! Occupies the file descriptors of the test process, for tests of `EMFILE` ("Too many open
//! files"). Such a test needs a test program of its own, because the limit of file descriptors
//! applies to a whole process.

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit of the number of file descriptors while descriptors are occupied. The limit is higher than
/// the number of files that a test has open.
pub const LIMIT: usize = 512;

/// All file descriptors of this process except for a given number. Dropping this value frees the
/// descriptors.
pub struct OccupiedDescriptors {
    before: Rlimit,
    _files: Vec<File>,
}

impl OccupiedDescriptors {
    /// Lowers the limit of file descriptors to [`LIMIT`], and leaves `free` descriptors unused.
    pub fn all_but(free: usize) -> Self {
        let before = getrlimit(Resource::Nofile);
        let current = Some(LIMIT as u64);
        setrlimit(Resource::Nofile, Rlimit { current, ..before }).expect("a lower limit");
        let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(files.len() > free);
        files.truncate(files.len() - free);
        Self {
            before,
            _files: files,
        }
    }
}

impl Drop for OccupiedDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).expect("the limit before");
    }
}
