//! Compaction of the log: frees the segment with the fewest live bytes by copying these bytes (of
//! values that still exist) to another segment.

use std::sync::Arc;

use super::space::Stream;
use super::{IndexEntry, Log, Writer};
use crate::{Error, Medium};

/// Size of one copy step in bytes.
const COPY_STEP: usize = 64 * 1024;

impl<M: Medium> Log<M> {
    /// Frees one segment when few segments are free. Returns `false` when no segment is worth the
    /// copy. Copies less than one segment of bytes, and never copies a value that readers have
    /// open.
    pub(super) fn compact(&self) -> Result<bool, Error> {
        let _one = self.inner.compaction.lock();
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

    /// Rewrites the part of a value that is in the segment `victim`, to another segment. The other
    /// parts of the value stay in place.
    fn relocate(&self, stored: &Arc<IndexEntry>, victim: u32) -> Result<(), Error> {
        let _key_lock = self.lock_key(&stored.key);
        let current = self
            .index()
            .get(&stored.key)
            .is_some_and(|now| Arc::ptr_eq(now, stored));
        if !current {
            return Ok(());
        }
        let entry = match self.entry(Arc::clone(stored)) {
            Err(Error::Damaged { .. } | Error::Medium { .. }) => {
                return self.remove_unreadable(stored);
            }
            entry => entry?,
        };
        let mut writer = Writer::new(self.clone(), &stored.key, Stream::Compacted)?;
        let mut piece = vec![0; COPY_STEP];
        for extent in entry.extents() {
            if self.inner.space.segment_of(extent.offset) != Some(victim) {
                writer.adopt(extent)?;
                continue;
            }
            let mut at = 0;
            while at < extent.len {
                let len =
                    usize::try_from(extent.len - at).map_or(COPY_STEP, |left| left.min(COPY_STEP));
                if let Err(error) = self.read_at(&entry, extent.start + at, &mut piece[..len]) {
                    return match error {
                        // If the whole medium has failed, this removal also fails.
                        Error::Medium { .. } => self.remove_unreadable(stored),
                        error => Err(error),
                    };
                }
                writer.write(&piece[..len])?;
                at += len as u64;
            }
        }
        let moved = writer.prepare(entry.meta())?;
        self.publish(&moved)?;
        moved.allocation.replace_first(&stored.allocation);
        Ok(())
    }
}
