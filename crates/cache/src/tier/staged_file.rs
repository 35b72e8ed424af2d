//! The staged file of a fill on the disk tier, with the piece map beside it.
//!
//! Without a map, the bytes of the file are a prefix of the blob. Invariants of the map:
//!
//! 1. A map is durable before the first byte is written ahead of the prefix, so that no later fill
//!    takes a gap for staged bytes.
//! 2. A map names only bytes that were synced before the map was written. The first map names the
//!    part of the prefix that an early sync has synced, since a sync of the rest would delay the
//!    first piece.
//! 3. A fill writes its maps one after the other, so that no older map replaces a newer one.
//! 4. The staged file is deleted before its map. A map without a staged file is ignored, and
//!    deleted at the next start.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pierhead_atomic_file::{self as atomic_file, open_regular, open_regular_with};
use pierhead_oci::Digest;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::disk::{BlobFile, DiskTier, PlainFile, Step};
use super::{Blob, CHUNK, PieceMedium, ReadAt, Staged, Trailer, piece_map};

/// Maximum number of slices in one write. Linux accepts up to 1024 slices (`IOV_MAX`).
const MAX_SLICES: usize = 512;

/// The end of the name of a piece map.
pub(super) const MAP_SUFFIX: &str = ".pieces";

/// The staged bytes of a fill.
pub(super) struct StagedFile {
    pieces: Arc<PieceFile>,
    len: u64,
    ahead: Vec<Range<u64>>,
}

/// The staged file, as the writers of its pieces share it.
struct PieceFile {
    tier: DiskTier,
    digest: Digest,
    path: PathBuf,
    map: PathBuf,
    file: Arc<PlainFile>,
    has_map: AtomicBool,
    /// Number of bytes of the prefix that are synced. A new value after each truncation, so that a
    /// late sync does not count for later bytes.
    synced: Mutex<Arc<AtomicU64>>,
    /// Held during the write of a map.
    recording: Mutex<()>,
}

/// What an earlier fill has left.
#[derive(Default)]
struct Recovered {
    len: u64,
    ahead: Vec<Range<u64>>,
}

/// Returns the path of the piece map of a staged file.
pub(super) fn map_path(staged: &Path) -> PathBuf {
    let mut path = staged.as_os_str().to_owned();
    path.push(MAP_SUFFIX);
    path.into()
}

/// Returns the length of the prefix that a new fill resumes: whole chunks, and at least one byte
/// less than `len`, so that the new fill requests at least one byte.
fn resumed_len(len: u64) -> u64 {
    len.saturating_sub(1) / CHUNK as u64 * CHUNK as u64
}

impl StagedFile {
    pub(super) fn open(tier: &DiskTier, digest: &Digest) -> io::Result<Self> {
        let path = tier.staged_path(digest);
        let mut options = OpenOptions::new();
        (options.read(true).write(true))
            .create(true)
            .truncate(false);
        let file = open_regular_with(&mut options, OFlags::empty(), &path)?;
        let pieces = PieceFile {
            map: map_path(&path),
            file: tier.plain_file(file),
            tier: tier.clone(),
            digest: *digest,
            path,
            has_map: AtomicBool::new(false),
            synced: Mutex::default(),
            recording: Mutex::default(),
        };
        let Recovered { len, ahead } = pieces.recover()?;
        Ok(Self {
            pieces: Arc::new(pieces),
            len,
            ahead,
        })
    }
}

/// Reads a piece map. A longer file is read in part, and the decoder refuses it.
fn read_map(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = piece_map::MAX_LEN as u64 + 1;
    open_regular(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl PieceFile {
    /// Truncates the file to the bytes that a new fill may resume.
    fn recover(&self) -> io::Result<Recovered> {
        let found = self.file.0.metadata()?.len();
        let map = match read_map(&self.map) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read),
        };
        let Some(read) = map else {
            return self.recover_prefix(found);
        };
        self.has_map.store(true, Ordering::Relaxed);
        let ranges = match read.map(|bytes| piece_map::decode(&self.digest, &bytes)) {
            _ if found == 0 => None,
            Ok(Some(ranges)) => Some(ranges),
            damaged => {
                let error = damaged.err();
                tracing::warn!(map = %self.map.display(), ?error, "a piece map is damaged: the staged bytes are fetched again");
                None
            }
        };
        let Some(ranges) = ranges else {
            self.file.0.set_len(0)?;
            self.remove_map()?;
            return Ok(Recovered::default());
        };
        self.recover_pieces(found, &ranges)
    }

    fn recover_prefix(&self, found: u64) -> io::Result<Recovered> {
        let read = |offset, buf: &mut [u8]| self.file.0.read_exact_at(buf, offset);
        // A crash during the commit leaves a staging file with content and trailer. A new fill of
        // this blob reuses only the content.
        let content = match Trailer::decode(&self.digest, found, read) {
            Ok(trailer) => trailer.size(),
            Err(_) => found,
        };
        let len = resumed_len(content);
        if len != found {
            self.file.0.set_len(len)?;
        }
        Ok(Recovered {
            len,
            ahead: Vec::new(),
        })
    }

    fn recover_pieces(&self, found: u64, ranges: &[Range<u64>]) -> io::Result<Recovered> {
        let (mut len, mut end, mut ahead) = (0, 0, Vec::new());
        for range in ranges {
            let range = range.start..range.end.min(found);
            if range.is_empty() {
                break;
            }
            self.punch_hole(end..range.start);
            end = range.end;
            match range.start {
                0 => len = resumed_len(range.end),
                _ => ahead.push(range),
            }
        }
        let kept = ahead.last().map_or(len, |last| last.end);
        self.file.0.set_len(kept)?;
        if ahead.is_empty() {
            // From here on, the length of the file is the length of the prefix.
            self.remove_map()?;
        }
        Ok(Recovered { len, ahead })
    }

    /// Frees the space of bytes that no map names, since the capacity does not count them.
    fn punch_hole(&self, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&self.file.0, flags, gap.start, gap.end - gap.start);
        if let Err(error) = punched {
            // The fill overwrites these bytes later.
            tracing::debug!(file = %self.path.display(), %error, "cannot free the space of a gap");
        }
    }

    fn remove_map(&self) -> io::Result<()> {
        if self.has_map.swap(false, Ordering::Relaxed) {
            self.tier.remove_file(&self.map)?;
        }
        Ok(())
    }

    /// Replaces the map durably.
    fn write_map(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let on_step = |step: atomic_file::Step<'_>| self.tier.step(step.into());
        let map = piece_map::encode(&self.digest, ranges);
        let options = atomic_file::Options::new().on_step(&on_step);
        options.write(&self.map, &map)?;
        self.has_map.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, mut offset: u64, pieces: &[&[u8]]) -> io::Result<u64> {
        self.tier.step(Step::Write(&self.path))?;
        for pieces in pieces.chunks(MAX_SLICES) {
            let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut rest = &mut slices[..];
            while rest.iter().any(|slice| !slice.is_empty()) {
                match rustix::io::pwritev(&self.file.0, rest, offset) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        offset += written as u64;
                        IoSlice::advance_slices(&mut rest, written);
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(offset)
    }

    /// Opens the file once more, because Linux reports a failed write of dirty pages once per open
    /// file description. Without a second description, an early sync could consume the error that
    /// the commit needs.
    fn open_for_sync(&self) -> io::Result<File> {
        File::open(&self.path)
    }
}

impl PieceMedium for PieceFile {
    fn begin(&self, prefix: u64) -> io::Result<()> {
        let _recording = self.recording.lock();
        if self.has_map.load(Ordering::Relaxed) {
            return Ok(());
        }
        let synced = self.synced.lock().load(Ordering::Relaxed).min(prefix);
        let ranges = Some(0..synced).filter(|synced| !synced.is_empty());
        self.write_map(ranges.as_slice())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> io::Result<()> {
        self.write_at(offset, pieces).map(drop)
    }

    fn record(&self, present: &dyn Fn() -> Vec<Range<u64>>) -> io::Result<()> {
        let _recording = self.recording.lock();
        if !self.has_map.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ranges = present();
        let file = self.open_for_sync()?;
        self.tier.step(Step::Sync(&self.path))?;
        file.sync_data()?;
        self.write_map(&ranges)
    }
}

impl Staged for StagedFile {
    fn size(&self) -> u64 {
        self.len
    }

    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        self.len = self.pieces.write_at(self.len, pieces)?;
        Ok(())
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let file = self.pieces.open_for_sync().ok()?;
        let (synced, len) = (self.pieces.synced.lock().clone(), self.len);
        Some(Box::new(move || {
            if file.sync_data().is_ok() {
                synced.fetch_max(len, Ordering::Relaxed);
            }
        }))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.pieces.tier.step(Step::Write(&self.pieces.path))?;
        self.pieces.file.0.set_len(0)?;
        *self.pieces.synced.lock() = Arc::default();
        self.len = 0;
        self.ahead.clear();
        self.pieces.remove_map()
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        self.pieces.file.clone()
    }

    fn ahead(&self) -> &[Range<u64>] {
        &self.ahead
    }

    fn piece_medium(&self) -> Option<Arc<dyn PieceMedium>> {
        Some(self.pieces.clone())
    }

    fn advance(&mut self, bytes: u64) -> io::Result<()> {
        self.len += bytes;
        Ok(())
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        if trailer.size() != self.len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "trailer of another content",
            ));
        }
        let PieceFile {
            tier, path, file, ..
        } = &*self.pieces;
        tier.step(Step::Write(path))?;
        if self.pieces.has_map.load(Ordering::Relaxed) {
            // An earlier fill may have staged bytes beyond the end.
            file.0.set_len(self.len)?;
        }
        file.0
            .write_all_at(&trailer.encode(&self.pieces.digest), self.len)?;
        let target = tier.blob_path(&self.pieces.digest);
        let folder = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
        tier.make_folder(folder)?;
        let on_step = |step: atomic_file::Step<'_>| tier.step(step.into());
        atomic_file::Options::new()
            .on_step(&on_step)
            .publish(&file.0, path, &target)?;
        if let Err(error) = self.pieces.remove_map() {
            tracing::warn!(map = %self.pieces.map.display(), %error, "cannot delete a piece map");
        }
        Ok(Arc::new(BlobFile {
            file: file.clone(),
            trailer,
        }))
    }
}

/// Deletes the maps in `folder` that have no staged file, and the temporary files of killed writers
/// of maps. The owner of the folder calls this before the first fill.
pub(super) fn delete_stray_maps(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let Some(name) = path.to_str() else { continue };
        let is_stray = match name.strip_suffix(MAP_SUFFIX) {
            Some(staged) => !Path::new(staged).exists(),
            None => name.ends_with(atomic_file::SUFFIX),
        };
        if is_stray && let Err(error) = fs::remove_file(&path) {
            tracing::warn!(file = %path.display(), %error, "cannot delete");
        }
    }
}
