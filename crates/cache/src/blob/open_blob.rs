//! A committed blob that is open for reading, and the trait through which the blob calls the store
//! that opened it.

use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

use crate::blob::buffer::{Buffer, Pool};
use crate::blob::verified_chunks::{Identity, VerifiedChunks};
use crate::blocking::blocking;
use crate::error::Error;
use crate::tier::{Blob, CHUNK, is_damage};

/// The part of the store that open blobs and readers of fills use.
pub(crate) trait BlobOwner: Send + Sync {
    /// Returns the pool of read buffers.
    fn buffers(&self) -> &Pool;
    /// Returns the chunks that this process verified recently.
    fn verified_chunks(&self) -> &VerifiedChunks;
    /// Creates an [`Error::Io`] with the file of the blob.
    fn blob_error(&self, action: &'static str, digest: &Digest, source: io::Error) -> Error;
    /// Creates an [`Error::Io`] with the file of the staged bytes.
    fn staged_error(&self, action: &'static str, digest: &Digest, source: io::Error) -> Error;
    /// Deletes the damaged copy of a blob that was read through the open handle `handle`. `at` is
    /// the position of the damage in bytes, if known. Blocks.
    fn remove_damaged(&self, digest: &Digest, handle: u64, at: Option<u64>);
    /// Tells the store that the last reader of an open handle was dropped.
    fn closed(&self, digest: &Digest, handle: u64);
}

/// One open handle of a blob, which all readers of the blob share. After a blob is deleted, its
/// bytes count towards the capacity until its handle is dropped.
pub(crate) struct OpenBlob {
    pub(crate) digest: Digest,
    pub(crate) handle: u64,
    pub(crate) blob: Arc<dyn Blob>,
    pub(crate) owner: Arc<dyn BlobOwner>,
}

impl Drop for OpenBlob {
    fn drop(&mut self) {
        self.owner.closed(&self.digest, self.handle);
    }
}

impl OpenBlob {
    /// Returns the identity of the file that contains a chunk. If two calls return equal
    /// identities, the file has not changed between the calls.
    pub(crate) fn identity(&self, chunk: u64) -> Option<Identity> {
        let extent = self.blob.extent(chunk * CHUNK as u64);
        extent.as_ref().and_then(Identity::of)
    }

    /// Reads `len` bytes from `offset`, at most [`BUFFER`](super::buffer::BUFFER): directly if the
    /// bytes are in the page cache, otherwise on a blocking thread.
    pub(crate) async fn read(self: &Arc<Self>, offset: u64, len: usize) -> Result<Buffer, Error> {
        let mut buffer = self.owner.buffers().take(len);
        match self.blob.try_read_at(offset, buffer.as_mut()) {
            Ok(read) if read == len => return Ok(buffer),
            _ => {}
        }
        let blob = self.blob.clone();
        let read = blocking(move || blob.read_at(offset, buffer.as_mut()).map(|()| buffer)).await;
        match read {
            Ok(buffer) => Ok(buffer),
            Err(error) if is_damage(&error) => {
                tracing::warn!(digest = %self.digest, offset, %error, "a stored blob cannot be read");
                Err(self.corrupt(offset, false).await)
            }
            Err(error) => Err(self.owner.blob_error("read", &self.digest, error)),
        }
    }

    /// Deletes the damaged copy of the blob and returns the error for the reader. `is_exact` means
    /// that the damage is exactly at `offset`.
    pub(crate) async fn corrupt(self: &Arc<Self>, offset: u64, is_exact: bool) -> Error {
        let (open, at) = (self.clone(), is_exact.then_some(offset));
        blocking(move || open.report_damage(at)).await;
        Error::Corrupt {
            digest: self.digest,
            offset,
        }
    }

    /// Deletes the damaged copy of the blob. Blocks.
    pub(crate) fn report_damage(&self, at: Option<u64>) {
        self.owner.remove_damaged(&self.digest, self.handle, at);
    }
}
