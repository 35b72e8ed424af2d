//! Memory for documents that are being read: manifests and lists are held whole until they are verified.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Error;
use crate::origin::Origin;

/// For all documents together, in KiB. The largest list fits, beside two of the largest manifests.
const TOTAL: usize = 24 << 10;

/// Documents up to so many bytes need none: nearly all are smaller, and no upstream that is slow with
/// a large one is to stand in their way.
const FREE: usize = 64 << 10;

/// Room for all documents.
pub(crate) fn all() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(TOTAL))
}

/// What one document (all pages of a list together) takes of it.
pub(crate) struct Room {
    /// Bytes that it may have.
    most: usize,
    read: usize,
    permit: Option<OwnedSemaphorePermit>,
    granted: bool,
}

impl Room {
    /// For a document of at most `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            read: 0,
            permit: None,
            granted: false,
        }
    }

    /// Bytes that may still come.
    pub(crate) fn left(&self) -> usize {
        self.most.saturating_sub(self.read)
    }

    /// Of another that has taken it all already.
    pub(crate) fn part(&self) -> Self {
        Self {
            most: self.left(),
            read: 0,
            permit: None,
            granted: true,
        }
    }

    /// For a list of several pages: all that it may become.
    pub(crate) async fn whole(origin: &Origin, most: usize) -> Result<Self, Error> {
        let mut room = Self::new(most);
        room.expect(origin, FREE + 1).await?;
        Ok(room)
    }

    /// Takes note of `more` bytes that have come.
    pub(crate) async fn take(&mut self, origin: &Origin, more: usize) -> Result<(), Error> {
        self.read += more;
        self.expect(origin, 0).await
    }

    /// Takes note of bytes that a [`part`](Self::part) has read.
    pub(crate) fn note(&mut self, more: usize) {
        self.read += more;
    }

    /// Before `more` bytes come. Once it is no small document, waits for room for all that it may
    /// become: whoever took it piece by piece could wait for others that wait for it.
    pub(crate) async fn expect(&mut self, origin: &Origin, more: usize) -> Result<(), Error> {
        if self.granted || self.read.saturating_add(more) <= FREE {
            return Ok(());
        }
        let most = u32::try_from(self.most.div_ceil(1 << 10).min(TOTAL)).unwrap_or(u32::MAX);
        let room = origin.shared.documents.clone();
        let permit = room.acquire_many_owned(most).await;
        self.permit = Some(permit.map_err(|_| origin.transport("the client is shut down"))?);
        self.granted = true;
        Ok(())
    }

    /// The document, which keeps as much of the room as it fills until nobody holds it.
    pub(crate) fn around(self, bytes: Bytes) -> Bytes {
        // Whoever keeps small documents in memory for good must not keep room with them.
        let Some(mut permit) = self.permit.filter(|_| bytes.len() > FREE) else {
            return bytes;
        };
        let needed = bytes.len().div_ceil(1 << 10);
        let spare = permit.num_permits().saturating_sub(needed);
        drop(permit.split(spare));
        Bytes::from_owner(Kept {
            bytes,
            _permit: permit,
        })
    }
}

struct Kept {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
