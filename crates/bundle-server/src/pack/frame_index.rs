//! Where each content was packed: the part of the directory that packing reads and writes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::pack::RecordLocation;
use pierhead_toc::{Error, FileDigest};

/// Maps a file digest to the frames that hold it. It may be lost, and name places that are gone: [`super::Packs::contains`] decides.
pub trait FrameIndex: Send + Sync {
    /// The frames that together hold the whole content, in order of its bytes: one of a small content, ranges
    /// of a large one. Empty when nothing is known.
    ///
    /// # Errors
    /// Those of the medium.
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error>;

    /// Notes that, in place of what was known.
    ///
    /// # Errors
    /// Those of the medium.
    fn put(&self, content: &FileDigest, places: &[RecordLocation]) -> Result<(), Error>;
}

/// In memory: for tests, and for work on images that are not kept.
#[derive(Default)]
pub struct MemoryFrameIndex(Mutex<HashMap<FileDigest, Vec<RecordLocation>>>);

impl FrameIndex for MemoryFrameIndex {
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(map.get(content).cloned().unwrap_or_default())
    }

    fn put(&self, content: &FileDigest, places: &[RecordLocation]) -> Result<(), Error> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(*content, places.to_vec());
        Ok(())
    }
}
