//! Reads the bytes of a fill (the download of a blob into the cache) that may move from the fast
//! tier to the disk during the read.

use parking_lot::RwLock;
use std::io;
use std::sync::Arc;

use super::ReadAt;

/// Reads a fill from the medium on which the fill is at the moment.
pub(super) struct SwitchReader(RwLock<Arc<dyn ReadAt>>);

impl SwitchReader {
    pub(super) fn new(reader: Arc<dyn ReadAt>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(reader)))
    }

    pub(super) fn now(&self) -> Arc<dyn ReadAt> {
        self.0.read().clone()
    }

    pub(super) fn set(&self, reader: Arc<dyn ReadAt>) {
        *self.0.write() = reader;
    }
}

impl ReadAt for SwitchReader {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.now().read_at(offset, buf)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.now().try_read_at(offset, buf)
    }
}
