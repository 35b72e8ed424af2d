//! The cache as the library of layers sees it: blobs to be read, without a say in what is evicted.

use std::io;
use std::sync::Arc;

use pierhead_bundle::{Blob, Blobs};
use pierhead_cache::{Cache, Error, Handle};
use pierhead_oci::Digest;

/// See the head of this module.
pub(crate) struct CacheBlobs(pub(crate) Cache);

struct CacheBlob(Handle);

impl Blobs for CacheBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let failed = |error| match &error {
            // With the code of the system, which tells a lack of descriptors from a damaged file.
            Error::Io { source, .. } if let Some(code) = source.raw_os_error() => {
                io::Error::from_raw_os_error(code)
            }
            _ => io::Error::other(error),
        };
        let handle = self.0.open_quietly(digest).map_err(failed)?;
        Ok(handle.map(|handle| Arc::new(CacheBlob(handle)) as Arc<dyn Blob>))
    }
}

impl Blob for CacheBlob {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
}
