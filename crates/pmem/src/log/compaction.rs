//! Free segments from half-dead ones: what lives in the least live is copied out.

use std::sync::{Arc, PoisonError};

use super::space::Stream;
use super::{Log, Stored, Writer};
use crate::{Error, Medium};

/// Bytes copied at once.
const PIECE: usize = 64 * 1024;

impl<M: Medium> Log<M> {
    /// Empties one segment when free ones are short; `false` when there is none worth it. Copies
    /// less than a segment, and never what readers hold.
    pub(super) fn compact(&self) -> Result<bool, Error> {
        let _one = self
            .inner
            .compaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !self.inner.space.is_short() {
            return Ok(true);
        }
        let Some((victim, values)) = self.inner.space.victim() else {
            return Ok(false);
        };
        for stored in values {
            match self.relocate(&stored, victim) {
                Err(Error::NoRoom) => return Ok(false),
                done => done?,
            }
        }
        Ok(true)
    }

    /// Writes a value anew as far as it lies in `victim`; the rest of it stays where it is.
    fn relocate(&self, stored: &Arc<Stored>, victim: u32) -> Result<(), Error> {
        let _turn = self.turn(&stored.key);
        let current = self
            .index()
            .get(&stored.key)
            .is_some_and(|now| Arc::ptr_eq(now, stored));
        if !current {
            return Ok(());
        }
        let entry = match self.entry(Arc::clone(stored)) {
            Err(Error::Damaged { .. } | Error::Medium { .. }) => return self.forget(stored),
            entry => entry?,
        };
        let mut writer = Writer::new(self.clone(), &stored.key, Stream::Moved)?;
        let mut piece = vec![0; PIECE];
        for extent in entry.extents() {
            if self.inner.space.segment_of(extent.offset) != Some(victim) {
                writer.adopt(extent)?;
                continue;
            }
            let mut at = 0;
            while at < extent.len {
                let len = usize::try_from(extent.len - at).map_or(PIECE, |left| left.min(PIECE));
                if let Err(error) = self.read_at(&entry, extent.start + at, &mut piece[..len]) {
                    return match error {
                        // Of a medium that works nowhere any more nothing can be removed either.
                        Error::Medium { .. } => self.forget(stored),
                        error => Err(error),
                    };
                }
                writer.write(&piece[..len])?;
                at += len as u64;
            }
        }
        let moved = writer.prepare(entry.meta())?;
        self.publish(&moved)?;
        moved.hold.replaces(&stored.hold);
        Ok(())
    }
}
