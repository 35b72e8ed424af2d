//! The map from contents to the frames that contain them: the part of the image database that
//! packing reads and writes.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::Error;
use crate::pack::RecordLocation;
use pierhead_toc::FileDigest;

/// Maps a file digest to the locations of its frames. The index may be lost, and its locations may
/// be outdated: [`super::Packs::contains`] checks whether a location is valid.
pub trait FrameIndex: Send + Sync {
    /// Returns the locations of the frames that together contain the whole content, in the order of
    /// its bytes: one frame for a small content, and several for a large content. For an unknown
    /// content, the list is empty.
    ///
    /// # Errors
    /// Errors of the database.
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error>;

    /// Replaces the locations of a content.
    ///
    /// # Errors
    /// Errors of the database.
    fn put(&self, content: &FileDigest, locations: &[RecordLocation]) -> Result<(), Error>;
}

/// A [`FrameIndex`] in memory, for tests and examples.
#[derive(Default)]
pub struct MemoryFrameIndex(Mutex<HashMap<FileDigest, Vec<RecordLocation>>>);

impl FrameIndex for MemoryFrameIndex {
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error> {
        let map = self.0.lock();
        Ok(map.get(content).cloned().unwrap_or_default())
    }

    fn put(&self, content: &FileDigest, locations: &[RecordLocation]) -> Result<(), Error> {
        let mut map = self.0.lock();
        map.insert(*content, locations.to_vec());
        Ok(())
    }
}
