//! Fills (downloads of blobs into the cache) in the write-back tier, which combines a fast tier
//! with the disk. A [`FastFill`] starts on the fast tier and may move to the disk; a [`DiskFill`]
//! is on the disk from its start.

use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::copy_pacer::PIECE;
use super::fast_copies::{FastCopies, WriteBackBlock};
use super::open::FastBlob;
use super::room::Room;
use super::slow_disk::SlowDisk;
use super::stat::count;
use super::tier_state::Hint;
use crate::tier::copy_key::CopyKey;
use crate::tier::switch_reader::SwitchReader;
use crate::tier::{Blob, ReadAt, Staged, Trailer};

/// Number of bytes that a fill of unknown length reserves on the fast tier in one step.
const ROOM_STEP: u64 = 4 << 20;

/// A fill on the fast tier. The fill moves to the disk when the fast tier has no room for it.
pub(super) struct FastFill {
    fast: Arc<FastCopies>,
    disk: Arc<SlowDisk>,
    digest: Digest,
    hint: Hint,
    state: FillState,
    /// Number of staged content bytes.
    len: u64,
    reader: Arc<SwitchReader>,
}

enum FillState {
    Fast {
        staged: Box<dyn Staged>,
        room: Arc<Room>,
    },
    Disk(DiskFill),
    /// The fill is committed, or the move to the disk failed and the bytes of the fill were lost.
    Ended,
}

impl FastFill {
    pub(super) fn new(
        (fast, disk): (Arc<FastCopies>, Arc<SlowDisk>),
        digest: Digest,
        hint: Hint,
        staged: Box<dyn Staged>,
        room: Arc<Room>,
    ) -> Self {
        let (len, reader) = (staged.size(), SwitchReader::new(staged.reader()));
        room.set_dirty(len);
        Self {
            fast,
            disk,
            digest,
            hint,
            state: FillState::Fast { staged, room },
            len,
            reader,
        }
    }

    /// Reserves space for `more` bytes and a trailer. Returns `false` when the fast tier has no
    /// room.
    fn fits(&self, room: &Room, more: u64) -> bool {
        let len = self.len.saturating_add(more);
        let need = self.fast.footprint(len, None);
        need <= room.bytes()
            || self.fast.grow(room, need.saturating_add(ROOM_STEP))
            || self.fast.grow(room, need)
    }

    /// Moves the fill to the disk, with the bytes that are staged so far.
    fn move_to_disk(&mut self) -> io::Result<&mut DiskFill> {
        if !matches!(self.state, FillState::Disk(_)) {
            let fast = std::mem::replace(&mut self.state, FillState::Ended);
            let copied = self.copy_to_disk();
            drop(fast);
            // The staged bytes on the fast tier are deleted even when the move failed: the tier
            // state has forgotten these bytes, so no other code would delete them.
            if let Err(error) = self.fast.medium.discard(&self.digest) {
                tracing::warn!(digest = %self.digest, %error, "cannot delete on the fast tier");
            }
            self.state = FillState::Disk(copied?);
            count(&self.fast.counters.moved, 1);
        }
        match &mut self.state {
            FillState::Disk(disk) => Ok(disk),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Copies the staged bytes to the disk. From then on, readers of the fill read from the disk.
    fn copy_to_disk(&self) -> io::Result<DiskFill> {
        let mut disk = DiskFill::new(&self.fast, &self.disk, self.digest)?;
        disk.staged.clear()?;
        copy(&*self.reader.now(), self.len, |bytes| {
            disk.staged.write(&[bytes])
        })?;
        self.reader.set(disk.staged.reader());
        Ok(disk)
    }

    /// Calls `write` to write `bytes` bytes: on the fast tier if they fit, otherwise on the disk.
    fn put(
        &mut self,
        bytes: u64,
        mut write: impl FnMut(&mut dyn Staged) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = std::mem::replace(&mut self.state, FillState::Ended);
        let done = match &mut state {
            FillState::Fast { staged, room } if self.fits(room, bytes) => {
                match write(&mut **staged) {
                    Ok(()) => {
                        room.set_dirty(self.len + bytes);
                        count(&self.fast.counters.staged, bytes);
                        true
                    }
                    Err(error) => {
                        tracing::warn!(digest = %self.digest, %error, "the fast tier failed: this fill continues on the disk");
                        self.fast.has_failed();
                        false
                    }
                }
            }
            _ => false,
        };
        self.state = state;
        if !done {
            write(&mut *self.move_to_disk()?.staged)?;
        }
        self.len += bytes;
        Ok(())
    }
}

/// Copies the first `len` staged bytes to `to`, piece by piece.
fn copy(
    from: &dyn ReadAt,
    len: u64,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(len).unwrap_or(PIECE).min(PIECE)];
    let mut offset = 0;
    while offset < len {
        let now = usize::try_from(len - offset).unwrap_or(PIECE).min(PIECE);
        let piece = &mut buffer[..now];
        from.read_at(offset, piece)?;
        to(piece)?;
        offset += now as u64;
    }
    Ok(())
}

impl Staged for FastFill {
    fn size(&self) -> u64 {
        self.len
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.put(bytes, |staged| staged.write(pieces))
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        match &self.state {
            FillState::Fast { staged, .. } => staged.early_sync(),
            FillState::Disk(disk) => disk.early_sync(),
            FillState::Ended => None,
        }
    }

    fn clear(&mut self) -> io::Result<()> {
        match &mut self.state {
            FillState::Fast { staged, room } => {
                staged.clear()?;
                room.set_dirty(0);
            }
            FillState::Disk(disk) => disk.clear()?,
            FillState::Ended => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        self.len = 0;
        Ok(())
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.reader.clone()
    }

    fn commit(mut self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        if trailer.size() != self.len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "trailer of another content",
            ));
        }
        let bytes = self.len + trailer.encoded_len();
        let taken = self.fast.footprint_with(&trailer);
        let key = CopyKey::whole(&self.digest);
        let state = std::mem::replace(&mut self.state, FillState::Ended);
        match state {
            FillState::Fast { staged, room } if self.fast.grow(&room, taken) => {
                let guard = self.fast.key_locks.lock(key);
                match staged.commit(trailer.clone()) {
                    Ok(blob) => {
                        room.resize(taken);
                        room.set_dirty(bytes);
                        let mut state = self.fast.state.lock();
                        state.insert(key, room.clone(), self.hint.priority, false);
                        drop(state);
                        self.fast.changed.notify_all();
                        return Ok(Arc::new(FastBlob::new(&self.fast, blob, room)));
                    }
                    // The bytes stay on the fast tier, because readers of this fill still read
                    // them.
                    Err(error) => {
                        tracing::warn!(digest = %self.digest, %error, "the fast tier failed: committed on the disk");
                        self.fast.has_failed();
                        let _ = self.fast.medium.remove(&self.digest);
                        drop(guard);
                    }
                }
            }
            other => self.state = other,
        }
        self.move_to_disk()?;
        match std::mem::replace(&mut self.state, FillState::Ended) {
            FillState::Disk(disk) => Box::new(disk).commit(trailer),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for FastFill {
    fn drop(&mut self) {
        if let FillState::Fast { staged, room } =
            std::mem::replace(&mut self.state, FillState::Ended)
        {
            drop(staged);
            room.resize(self.fast.medium.footprint(self.len));
            room.set_dirty(self.len);
            // The next fill of the digest resumes after these bytes, unless they are discarded or
            // evicted before that.
            self.fast
                .state
                .lock()
                .insert_partial(CopyKey::whole(&self.digest), room);
        }
    }
}

/// A fill on the disk. The fast tier may have an older copy of the same digest. While the fill
/// exists, the older copy is not written back, because both would write to the same file.
pub(super) struct DiskFill {
    pub(super) staged: Box<dyn Staged>,
    fast: Arc<FastCopies>,
    digest: Digest,
    _hold: WriteBackBlock,
}

impl DiskFill {
    pub(super) fn new(fast: &Arc<FastCopies>, disk: &SlowDisk, digest: Digest) -> io::Result<Self> {
        let hold = fast.block_write_back(&digest);
        let staged = disk.tier.stage(&digest)?;
        fast.state.lock().on_disk.insert(digest);
        Ok(Self {
            staged,
            fast: fast.clone(),
            digest,
            _hold: hold,
        })
    }
}

impl Staged for DiskFill {
    fn size(&self) -> u64 {
        self.staged.size()
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        self.staged.write(pieces)
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.staged.early_sync()
    }

    fn clear(&mut self) -> io::Result<()> {
        self.staged.clear()
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.staged.reader()
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        let Self {
            staged,
            fast,
            digest,
            _hold,
        } = *self;
        let blob = staged.commit(trailer)?;
        {
            let mut state = fast.state.lock();
            state.on_disk.remove(&digest);
            state.hot_ranges.queue_copy(&digest);
        }
        fast.changed.notify_all();
        // The fast tier may have an older copy with another media type.
        let key = CopyKey::whole(&digest);
        let _guard = fast.key_locks.lock(key);
        fast.remove(&key);
        Ok(blob)
    }
}
