//! One reader whose bytes may come to lie elsewhere.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use super::ReadAt;

/// What readers of a fill read from: where its bytes lie now.
pub(super) struct Switch(RwLock<Arc<dyn ReadAt>>);

impl Switch {
    pub(super) fn new(reader: Arc<dyn ReadAt>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(reader)))
    }

    pub(super) fn now(&self) -> Arc<dyn ReadAt> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set(&self, reader: Arc<dyn ReadAt>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = reader;
    }
}

impl ReadAt for Switch {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.now().read_at(offset, buf)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.now().try_read_at(offset, buf)
    }
}
