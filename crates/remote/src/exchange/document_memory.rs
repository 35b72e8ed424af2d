//! Limits the memory of documents (manifests and lists), which stay in memory until they are
//! verified.
//!
//! 1. A document reserves its maximum size before its bytes arrive. If documents reserved their
//!    memory in pieces, they could wait for each other forever (deadlock).
//! 2. Small documents reserve nothing, so that slow large documents never delay small documents.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum memory of all manifests and lists that are being received, in KiB. The limit is enough
/// for the largest list and two of the largest manifests.
const TOTAL_KIB: usize = 24 << 10;

/// Documents (manifests and lists) up to this number of bytes need no memory reservation. Nearly
/// all documents are smaller.
const UNRESERVED: usize = 64 << 10;

/// The memory limit of all documents. Clones share the limit.
#[derive(Clone)]
pub(crate) struct DocumentMemory(Arc<Semaphore>);

impl Default for DocumentMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(TOTAL_KIB)))
    }
}

impl DocumentMemory {
    /// Creates a reservation for a document of at most `most` bytes. The reservation is empty at
    /// first.
    pub(crate) fn reservation(&self, most: usize) -> DocumentReservation {
        DocumentReservation {
            memory: self.clone(),
            most,
            read: 0,
            permit: None,
            is_granted: false,
        }
    }
}

/// The reservation of one document, or of all pages of a list together.
pub(crate) struct DocumentReservation {
    memory: DocumentMemory,
    /// Maximum number of bytes that the document may have.
    most: usize,
    read: usize,
    permit: Option<OwnedSemaphorePermit>,
    is_granted: bool,
}

impl DocumentReservation {
    /// Number of bytes that the document may still receive.
    pub(crate) fn left(&self) -> usize {
        self.most.saturating_sub(self.read)
    }

    /// Returns a reservation for a further page of a list whose maximum size is already reserved.
    pub(crate) fn next_page(&self) -> Self {
        Self {
            memory: self.memory.clone(),
            most: self.left(),
            read: 0,
            permit: None,
            is_granted: true,
        }
    }

    /// Waits until the maximum size of a list of several pages is reserved.
    pub(crate) async fn reserve_all(mut self) -> Self {
        self.reserve(UNRESERVED + 1).await;
        self
    }

    /// Counts `more` bytes that were received, and waits until memory for them is reserved.
    pub(crate) async fn add(&mut self, more: usize) {
        self.read += more;
        self.reserve(0).await;
    }

    /// Counts bytes that were read through a [`next_page`](Self::next_page).
    pub(crate) fn count(&mut self, more: usize) {
        self.read += more;
    }

    /// Prepares for `more` bytes. The caller must call this function before the bytes arrive. Waits
    /// for the memory of the whole document, unless the document is small.
    pub(crate) async fn reserve(&mut self, more: usize) {
        if self.is_granted || self.read.saturating_add(more) <= UNRESERVED {
            return;
        }
        let most = u32::try_from(self.most.div_ceil(1 << 10).min(TOTAL_KIB)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory.0);
        // `acquire_many_owned` cannot fail, because the semaphore is never closed.
        self.permit = memory.acquire_many_owned(most).await.ok();
        self.is_granted = true;
    }

    /// Returns the complete document. The memory reservation shrinks to the size of the document
    /// and lasts until the bytes are dropped.
    pub(crate) fn attach_to(self, bytes: Bytes) -> Bytes {
        // A small document may stay in memory until shutdown, so it must not hold a reservation.
        let Some(mut permit) = self.permit.filter(|_| bytes.len() > UNRESERVED) else {
            return bytes;
        };
        let needed = bytes.len().div_ceil(1 << 10);
        let spare = permit.num_permits().saturating_sub(needed);
        drop(permit.split(spare));
        Bytes::from_owner(ReservedBytes {
            bytes,
            _permit: permit,
        })
    }
}

struct ReservedBytes {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn free(memory: &DocumentMemory) -> usize {
        memory.0.available_permits()
    }

    #[tokio::test]
    async fn small_documents_reserve_nothing_and_large_documents_their_maximum_size() {
        let memory = DocumentMemory::default();
        let mut small = memory.reservation(4 << 20);
        small.add(UNRESERVED).await;
        assert_eq!(free(&memory), TOTAL_KIB);
        small.add(1).await;
        assert_eq!(free(&memory), TOTAL_KIB - (4 << 10));
        assert_eq!(small.left(), (4 << 20) - UNRESERVED - 1);
    }

    #[tokio::test]
    async fn a_complete_document_holds_its_size_until_it_is_dropped() {
        let memory = DocumentMemory::default();
        let mut reservation = memory.reservation(4 << 20);
        reservation.reserve(1 << 20).await;
        let document = reservation.attach_to(vec![0; 1 << 20].into());
        assert_eq!(free(&memory), TOTAL_KIB - (1 << 10));
        let part = document.slice(..1);
        drop(document);
        assert_eq!(
            free(&memory),
            TOTAL_KIB - (1 << 10),
            "a slice holds the reservation too"
        );
        drop(part);
        assert_eq!(free(&memory), TOTAL_KIB);
    }

    #[tokio::test]
    async fn a_document_waits_for_memory_and_a_page_of_a_reserved_list_does_not() {
        let memory = DocumentMemory::default();
        let list = memory.reservation(TOTAL_KIB << 10).reserve_all().await;
        assert_eq!(free(&memory), 0);
        let mut page = list.next_page();
        assert!(page.reserve(1 << 20).now_or_never().is_some());
        let mut other = memory.reservation(1 << 20);
        assert!(other.reserve(1 << 20).now_or_never().is_none());
        drop((list, page));
        assert!(other.reserve(1 << 20).now_or_never().is_some());
    }
}
