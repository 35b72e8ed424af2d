//! Blobs of the fast tier, opened: counted there for as long as somebody has them.

use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::room::Room;
use super::{Shared, count};
use crate::lock;
use crate::tier::{Blob, Extent, ReadAt, Trailer, is_damage};

impl Shared {
    /// The fast copy, if it is there and whole as far as its trailer tells; a damaged one is taken away.
    pub(super) fn open_fast(
        self: &Arc<Self>,
        digest: &Digest,
    ) -> io::Result<Option<Arc<dyn Blob>>> {
        let turn = self.turns.take(*digest);
        let Some(room) = ({
            let ledger = lock(&self.ledger);
            let entry = ledger.entries.get(digest);
            entry.map(|entry| entry.room.clone())
        }) else {
            return Ok(None);
        };
        match self.fast.open(digest) {
            Ok(Some(blob)) => Ok(Some(Arc::new(FastBlob::new(self, blob, room)))),
            Err(error) if !is_damage(&error) => Err(error),
            damaged => {
                if let Err(error) = damaged {
                    tracing::warn!(%digest, %error, "damaged on the fast tier: read from the disk");
                }
                drop(turn);
                // Not while the disk's copy is being made, which then is damaged as well.
                let _hold = self.hold(digest);
                let _turn = self.turns.take(*digest);
                count(&self.counters.damaged, 1);
                self.drop_fast(digest);
                Ok(None)
            }
        }
    }
}

/// A blob on the fast tier; its bytes count for as long as somebody has it.
pub(super) struct FastBlob {
    blob: Arc<dyn Blob>,
    /// Dropped behind the blob, so that room is free only when the medium's is.
    _held: Held,
}

struct Held {
    room: Option<Arc<Room>>,
    shared: Arc<Shared>,
}

impl FastBlob {
    pub(super) fn new(shared: &Arc<Shared>, blob: Arc<dyn Blob>, room: Arc<Room>) -> Self {
        let held = Held {
            room: Some(room),
            shared: shared.clone(),
        };
        Self { blob, _held: held }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room = None;
        self.shared.let_go();
    }
}

impl ReadAt for FastBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.blob.read_at(offset, buf)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.blob.try_read_at(offset, buf)
    }
}

impl Blob for FastBlob {
    fn trailer(&self) -> &Trailer {
        self.blob.trailer()
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        self.blob.extent(offset)
    }
}
