//! The file of a table of contents (TOC), which consists of blocks. A reader loads each block by
//! `pread` and verifies its checksum before use.
//!
//! So if a sector of the disk is unreadable, only reads of this sector fail.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pierhead_atomic_file::open_regular;

use crate::FileBlob;
use crate::{Blob, Error, FileDigest};

use super::contents::Index;
use super::format::{FORMAT_NAME, MAX_TOC};
use super::layout::{DIGEST, HEAD, Layout, widen};

/// Number of bytes per checksum. The number is the size of a page, so a lookup reads no more bytes
/// than the kernel reads anyway.
pub(super) const BLOCK: usize = 4096;

/// The last bytes of every TOC file. The very last byte is the version of the format.
const MAGIC: [u8; 8] = *b"phtfile\x02";

/// Number of bytes of the trailer, which has the length of the body, a checksum over this length
/// and all block checksums, and the magic.
const TRAILER: usize = 8 + 4 + 8;

/// Number of bytes of one checksum.
const SUM: usize = 4;

/// Returns the bytes after the body of a TOC file: a checksum for each block of the body, and the
/// trailer.
pub(super) fn sums(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut sum, mut filled, mut len) = (0, 0, 0_u64);
    for part in parts {
        len += part.len() as u64;
        let mut rest = *part;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK - filled));
            sum = crc32c::crc32c_append(sum, now);
            filled += now.len();
            rest = later;
            if filled == BLOCK {
                out.extend(sum.to_le_bytes());
                (sum, filled) = (0, 0);
            }
        }
    }
    if filled > 0 {
        out.extend(sum.to_le_bytes());
    }
    let len = len.to_le_bytes();
    let check = crc32c::crc32c_append(crc32c::crc32c(&out), &len);
    out.extend(len);
    out.extend(check.to_le_bytes());
    out.extend(MAGIC);
    out
}

/// The blocks of a TOC file. The checksums are kept in memory, where they take 1 byte per KiB of
/// the file.
pub(super) struct Blocks {
    blob: Box<dyn Blob>,
    sums: Vec<u8>,
    /// Number of bytes of the body.
    len: u64,
    /// Name of the file, for error messages.
    name: String,
}

impl Blocks {
    /// Opens a TOC file and reads its trailer.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing(path.display().to_string()),
            io::ErrorKind::InvalidData => Error::malformed(FORMAT_NAME, error.to_string()),
            _ => Error::io(format!("open {}", path.display()), error),
        };
        let file = open_regular(path).map_err(failed)?;
        let blob = FileBlob::new(file).map_err(failed)?;
        Self::new(Box::new(blob), path.display().to_string())
    }

    pub(super) fn new(blob: Box<dyn Blob>, name: String) -> Result<Self, Error> {
        let wrong = |why: &str| Error::malformed(FORMAT_NAME, why);
        let mut blocks = Self {
            blob,
            sums: Vec::new(),
            len: 0,
            name,
        };
        let size = blocks.blob.size();
        let mut trailer = [0; TRAILER];
        let at = size.checked_sub(TRAILER as u64);
        let at = at.ok_or_else(|| wrong("it ends too early"))?;
        blocks.read_raw(at, &mut trailer)?;
        let (len, rest) = trailer.split_at(8);
        let (check, magic) = rest.split_at(4);
        if magic != MAGIC {
            return Err(wrong("not a TOC file, or of another version"));
        }
        let body = u64::from_le_bytes(len.try_into().map_err(|_| wrong("its trailer"))?);
        // The body has the canonical bytes of the TOC and derived data. The derived data is the
        // smaller part, so the body has at most twice the maximum size of a TOC.
        let most = 2 * MAX_TOC as u64;
        let list = body.div_ceil(BLOCK as u64).saturating_mul(SUM as u64);
        if body > most || body.checked_add(list) != Some(at) {
            return Err(wrong("a wrong length"));
        }
        blocks.sums = vec![0; usize::try_from(list).unwrap_or(0)];
        let mut sums = std::mem::take(&mut blocks.sums);
        blocks.read_raw(body, &mut sums)?;
        if crc32c::crc32c_append(crc32c::crc32c(&sums), len).to_le_bytes() != *check {
            return Err(wrong("the checksum of its checksums does not match"));
        }
        (blocks.sums, blocks.len) = (sums, body);
        Ok(blocks)
    }

    /// Returns the number of bytes of the body.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Reads and verifies the whole body.
    pub(super) fn all(&self) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        self.read_raw(0, &mut bytes)?;
        for (nth, block) in bytes.chunks(BLOCK).enumerate() {
            self.verify(nth, block)?;
        }
        Ok(bytes)
    }

    /// Reads and verifies one block of the body.
    fn block(&self, nth: usize) -> Result<Vec<u8>, Error> {
        let start = nth as u64 * BLOCK as u64;
        let len = self.len.saturating_sub(start).min(BLOCK as u64);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.read_raw(start, &mut bytes)?;
        self.verify(nth, &bytes)?;
        Ok(bytes)
    }

    /// Verifies the checksum of a block.
    fn verify(&self, nth: usize, block: &[u8]) -> Result<(), Error> {
        let sum = self.sums.get(nth * SUM..).and_then(<[u8]>::first_chunk);
        match sum {
            Some(sum) if crc32c::crc32c(block).to_le_bytes() == *sum => Ok(()),
            _ => Err(Error::malformed(
                FORMAT_NAME,
                format!("a checksum of {} does not match", self.name),
            )),
        }
    }

    /// Reads bytes of the file without verification.
    fn read_raw(&self, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let read = self.blob.read_at(at, out);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::malformed(FORMAT_NAME, "it ends too early"),
            _ => Error::io(format!("read {}", self.name), error),
        })
    }
}

/// A cache of verified blocks of many TOC files, which drops the least recently used blocks. All
/// clones share one cache.
#[derive(Clone)]
pub struct BlockCache(Arc<Mutex<Lru>>);

/// Key of a block: the identifier of its open file, and the number of the block.
type Key = (u64, usize);

struct Lru {
    blocks: HashMap<Key, (u64, Arc<[u8]>)>,
    /// The keys of the blocks, in the order of their last use.
    uses: BTreeMap<u64, Key>,
    clock: u64,
    next_id: u64,
    most: usize,
}

impl BlockCache {
    /// Creates a cache of at most `bytes` bytes, but with room for at least one block.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Lru {
            blocks: HashMap::new(),
            uses: BTreeMap::new(),
            clock: 0,
            next_id: 0,
            most: (bytes / BLOCK).max(1),
        })))
    }

    fn lru(&self) -> MutexGuard<'_, Lru> {
        self.0.lock()
    }

    /// Returns a new identifier, so that each opened file has its own blocks in the cache.
    fn next_id(&self) -> u64 {
        let mut lru = self.lru();
        lru.next_id += 1;
        lru.next_id
    }

    fn get(&self, key: Key) -> Option<Arc<[u8]>> {
        let mut lru = self.lru();
        let block = lru.blocks.get(&key)?.1.clone();
        lru.put(key, block.clone());
        Some(block)
    }

    fn put(&self, key: Key, block: Arc<[u8]>) {
        self.lru().put(key, block);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lru().blocks.len()
    }
}

impl Lru {
    fn put(&mut self, key: Key, block: Arc<[u8]>) {
        self.clock += 1;
        if let Some((used, _)) = self.blocks.insert(key, (self.clock, block)) {
            self.uses.remove(&used);
        }
        self.uses.insert(self.clock, key);
        while self.blocks.len() > self.most
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.blocks.remove(&oldest);
        }
    }
}

/// A TOC file that is opened for lookups of single contents. Each lookup reads and verifies only a
/// few blocks.
pub struct TocFile {
    id: u64,
    blocks: Blocks,
    layout: Layout,
    cache: BlockCache,
}

impl TocFile {
    /// Opens a file that [`super::ImageToc::save`] wrote. Reads the trailer, the checksums and the
    /// head of the file.
    ///
    /// # Errors
    /// `Missing` when the file does not exist, `Malformed` when the file is damaged, and `Io` for
    /// errors of the disk.
    pub fn open(path: &Path, cache: &BlockCache) -> Result<Self, Error> {
        Self::of(Blocks::open(path)?, cache)
    }

    pub(super) fn of(blocks: Blocks, cache: &BlockCache) -> Result<Self, Error> {
        let mut file = Self {
            id: cache.next_id(),
            blocks,
            layout: Layout::default(),
            cache: cache.clone(),
        };
        let mut head = [0; HEAD];
        file.read(0, &mut head)?;
        let len = usize::try_from(file.blocks.len()).unwrap_or(usize::MAX);
        file.layout = Layout::read(&head, len)?;
        match file.layout.end() + Index::len_of(file.layout.contents) == len {
            true => Ok(file),
            false => Err(Error::malformed(FORMAT_NAME, "a wrong length")),
        }
    }

    /// Finds the number and the size of a content by a binary search.
    ///
    /// # Errors
    /// `Malformed` when a block that the search reads is damaged, and `Io` for errors of the disk.
    pub fn find(&self, content: &FileDigest) -> Result<Option<(u32, u64)>, Error> {
        let sizes = self.layout.end();
        let order = sizes + widen(self.layout.contents) * 8;
        let digests = sizes - widen(self.layout.contents) * DIGEST;
        let (mut low, mut high) = (0, widen(self.layout.contents));
        while low < high {
            let middle = low + (high - low) / 2;
            let mut number = [0; 4];
            self.read(order + middle * 4, &mut number)?;
            let number = u32::from_le_bytes(number);
            if number >= self.layout.contents {
                return Err(Error::malformed(
                    FORMAT_NAME,
                    "a content number out of range",
                ));
            }
            let mut digest = [0; DIGEST];
            self.read(digests + widen(number) * DIGEST, &mut digest)?;
            match FileDigest::from_bytes(digest).cmp(content) {
                std::cmp::Ordering::Equal => {
                    let mut size = [0; 8];
                    self.read(sizes + widen(number) * 8, &mut size)?;
                    return Ok(Some((number, u64::from_le_bytes(size))));
                }
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// Fills `out` with bytes of the body, which are read block by block through the cache.
    fn read(&self, mut at: usize, mut out: &mut [u8]) -> Result<(), Error> {
        while !out.is_empty() {
            let (nth, from) = (at / BLOCK, at % BLOCK);
            let key = (self.id, nth);
            let block = match self.cache.get(key) {
                Some(block) => block,
                None => {
                    let block: Arc<[u8]> = self.blocks.block(nth)?.into();
                    self.cache.put(key, block.clone());
                    block
                }
            };
            let found = block.get(from..).filter(|found| !found.is_empty());
            let found = found.ok_or_else(|| Error::malformed(FORMAT_NAME, "it ends too early"))?;
            let len = found.len().min(out.len());
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&found[..len]);
            (at, out) = (at + len, later);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ImageToc;
    use crate::image_toc::LayerEntries;

    /// A fake file in memory with one unreadable byte, which counts the bytes that are read.
    #[derive(Default)]
    struct Disk {
        bytes: Vec<u8>,
        /// Offset of the byte whose read fails with `EIO`.
        bad: Option<usize>,
        read: Arc<AtomicUsize>,
    }

    impl Blob for Disk {
        fn size(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            let start = usize::try_from(offset).expect("small");
            let range = start..start + buf.len();
            if self.bad.is_some_and(|bad| range.contains(&bad)) {
                return Err(rustix::io::Errno::IO.into());
            }
            let found = self.bytes.get(range);
            buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            self.read.fetch_add(buf.len(), Ordering::Relaxed);
            Ok(())
        }
    }

    fn content(nth: u32) -> FileDigest {
        FileDigest::of(&nth.to_le_bytes())
    }

    /// Returns a TOC with this number of contents, and the bytes of its file.
    fn toc(contents: u32) -> (ImageToc, Vec<u8>) {
        let files = (0..contents).map(|nth| Ok((content(nth), u64::from(nth) + 1)));
        let toc = ImageToc::merge([LayerEntries {
            diff_id: FileDigest::of(b"diff").into(),
            skeleton: (FileDigest::of(b"skeleton"), 8),
            files,
            entries: std::iter::empty(),
        }]);
        let toc = toc.expect("sound");
        let mut file = Vec::new();
        toc.write(&mut file).expect("written");
        (toc, file)
    }

    fn open(disk: Disk, cache: &BlockCache) -> Result<TocFile, Error> {
        TocFile::of(Blocks::new(Box::new(disk), "disk".into())?, cache)
    }

    #[test]
    fn a_lookup_reads_few_blocks_of_a_large_toc() {
        let (toc, bytes) = toc(20_000);
        let len = bytes.len();
        let cache = BlockCache::new(16 * BLOCK);
        let disk = Disk {
            bytes,
            ..Disk::default()
        };
        let read = disk.read.clone();
        let file = open(disk, &cache).expect("sound");
        let found = file.find(&content(7)).expect("readable").expect("there");
        assert_eq!(found, (toc.find(&content(7)).expect("there"), 8));
        assert!(file.find(&content(20_000)).expect("readable").is_none());
        let read = read.load(Ordering::Relaxed);
        assert!(read < len / 4, "{read} of {len}");
        for nth in (0..20_000).step_by(997) {
            let found = file.find(&content(nth)).expect("readable");
            assert_eq!(found.expect("there").1, u64::from(nth) + 1);
        }
        assert!(cache.len() <= 16, "{} blocks", cache.len());
    }

    #[test]
    fn an_unreadable_sector_fails_only_lookups_that_need_it() {
        let (_, bytes) = toc(2000);
        let cache = BlockCache::new(1 << 20);
        let sound = Disk {
            bytes: bytes.clone(),
            ..Disk::default()
        };
        let sound = open(sound, &cache).expect("sound");
        let (mut failed, mut found) = (0, 0);
        for bad in (0..bytes.len()).step_by(BLOCK) {
            let disk = Disk {
                bytes: bytes.clone(),
                bad: Some(bad),
                ..Disk::default()
            };
            let looked = open(disk, &cache).and_then(|file| file.find(&content(7)));
            match looked {
                Ok(number) => {
                    assert!(number.is_some());
                    found += 1;
                }
                // An error of a read does not prove that the file is damaged, so the caller must
                // not delete the file.
                Err(error) => {
                    assert!(matches!(error, Error::Io { .. }) && !error.is_damage());
                    assert!(error.to_string().contains("disk"), "{error}");
                    failed += 1;
                }
            }
            // Reads of the other, undamaged file still succeed.
            assert!(sound.find(&content(7)).expect("readable").is_some());
        }
        assert!(failed > 0 && found > 0, "{failed} and {found}");
    }

    #[test]
    fn a_lookup_detects_damage_in_the_blocks_that_it_reads() {
        let (_, bytes) = toc(2000);
        let cache = BlockCache::new(1 << 20);
        let mut seen = 0;
        for at in (0..bytes.len()).step_by(BLOCK / 2) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            let disk = Disk {
                bytes,
                ..Disk::default()
            };
            match open(disk, &cache).and_then(|file| file.find(&content(7))) {
                Ok(found) => assert!(found.is_some(), "{at}"),
                Err(error) => {
                    assert!(error.is_damage(), "{error}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 0);
    }

    #[test]
    fn a_pipe_or_a_folder_in_place_of_a_file_counts_as_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("table");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("a pipe");
        for path in [&*pipe, folder.path()] {
            // Opening the pipe must not wait for a writer.
            let (sender, receiver) = std::sync::mpsc::channel();
            let path = path.to_owned();
            std::thread::spawn(move || {
                let toc = TocFile::open(&path, &BlockCache::new(BLOCK)).map(drop);
                let layer = crate::layer::LayerIndex::open(&path).map(drop);
                let _ = sender.send((toc, layer));
            });
            let opened = receiver.recv_timeout(std::time::Duration::from_secs(10));
            let (toc, layer) = opened.expect("no wait for a writer");
            for error in [toc, layer].map(|it| it.expect_err("no file")) {
                assert!(error.is_damage(), "{error}");
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_open_counts_as_damaged() {
        let (toc, _) = toc(2000);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("table");
        toc.save(&path).expect("saved");
        let file = TocFile::open(&path, &BlockCache::new(BLOCK)).expect("sound");
        let cut = std::fs::File::options()
            .write(true)
            .open(&path)
            .expect("there");
        cut.set_len(BLOCK as u64).expect("cut");
        let error = file.find(&content(7)).expect_err("it is not there");
        assert!(error.is_damage(), "{error}");
    }
}
