//! Remembers which chunks of which files this process verified recently, so that these chunks can
//! be sent by `sendfile` without another verification.
//!
//! An entry is valid for one version of one file: any write, truncation or replacement changes the
//! file's identity. An entry (the record of one file) expires after 10 minutes, because the disk
//! may return other bytes once pages leave the page cache. The memory of all entries is bounded. If
//! an entry is dropped to save memory, its chunks are verified once more.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use crate::tier::{CHUNK, Extent};

/// How long a verification stays valid. The verification of 1 GB takes about 0.2 CPU seconds, so
/// its repetition every 10 minutes costs nearly nothing.
const VERIFICATION_LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of files whose verified chunks are recorded.
const MAX_FILES: usize = 4096;
/// Maximum number of words of 64 bits that record the verified chunks of all files: 1 MiB, for 512
/// GiB of blobs.
const MAX_WORDS: usize = 128 << 10;

/// Identifies a version of a blob's content. Every change of the content changes the identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// The blob is in a file of its own.
    File {
        device: u64,
        inode: u64,
        size: i64,
        modified: (i64, u64),
        changed: (i64, u64),
    },
    /// The blob is in a file with other blobs, as the record with this number.
    Record(u64),
}

impl Identity {
    /// Returns the identity of the file that contains an extent, or `None` when the system call
    /// fails. Makes at most one system call, which does not wait for the disk.
    pub(crate) fn of(extent: &Extent<'_>) -> Option<Self> {
        if let Some(number) = extent.record {
            return Some(Self::Record(number));
        }
        let stat = rustix::fs::fstat(extent.file).ok()?;
        Some(Self::File {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        })
    }
}

/// The verified chunks of all files. The documentation of this module explains them.
#[derive(Default)]
pub(crate) struct VerifiedChunks {
    chunks: Mutex<ChunkMap>,
}

#[derive(Default)]
struct ChunkMap {
    files: HashMap<Key, Chunks>,
    /// Number of words of 64 bits that all entries use.
    words: usize,
}

/// A blob, and whether the entry describes a record in a file that blobs share. One blob may have
/// chunks in such a record and other chunks in a file of its own.
type Key = (Digest, bool);

fn key(digest: &Digest, identity: &Identity) -> Key {
    (*digest, matches!(identity, Identity::Record(_)))
}

struct Chunks {
    identity: Identity,
    /// Time at which the first chunk was verified. All chunks of the file expire together.
    since: Instant,
    /// One bit for each chunk, which is set if the chunk is verified.
    bits: Box<[u64]>,
}

impl Chunks {
    fn holds(&self, identity: &Identity, now: Instant) -> bool {
        self.identity == *identity
            && now.saturating_duration_since(self.since) < VERIFICATION_LIFETIME
    }
}

impl VerifiedChunks {
    /// Marks `chunks` of a content of `size` bytes as verified. The caller must have read
    /// `identity` before it read the content.
    pub(crate) fn add(
        &self,
        digest: &Digest,
        identity: Identity,
        size: u64,
        chunks: Range<u64>,
        now: Instant,
    ) {
        let words = usize::try_from(size.div_ceil(CHUNK as u64).div_ceil(64));
        let Some(words) = words.ok().filter(|words| *words <= MAX_WORDS) else {
            return;
        };
        let key = key(digest, &identity);
        let mut map = self.chunks.lock();
        if !map
            .files
            .get(&key)
            .is_some_and(|file| file.holds(&identity, now))
        {
            map.remove(&key);
            map.make_room(words, now);
            map.words += words;
            let file = Chunks {
                identity,
                since: now,
                bits: vec![0; words].into(),
            };
            map.files.insert(key, file);
        }
        let Some(file) = map.files.get_mut(&key) else {
            return;
        };
        for chunk in chunks {
            let word = usize::try_from(chunk / 64).ok();
            if let Some(word) = word.and_then(|word| file.bits.get_mut(word)) {
                *word |= 1 << (chunk % 64);
            }
        }
    }

    /// Returns the number of bytes from the start of `range` on that are in verified chunks.
    pub(crate) fn verified_len(
        &self,
        digest: &Digest,
        identity: &Identity,
        range: Range<u64>,
        now: Instant,
    ) -> u64 {
        let map = self.chunks.lock();
        let Some(file) = map
            .files
            .get(&key(digest, identity))
            .filter(|file| file.holds(identity, now))
        else {
            return 0;
        };
        let chunk = CHUNK as u64;
        let is_checked = |index: u64| {
            let word = usize::try_from(index / 64).ok();
            word.and_then(|word| file.bits.get(word))
                .is_some_and(|word| word >> (index % 64) & 1 == 1)
        };
        let mut end = range.start;
        while end < range.end && is_checked(end / chunk) {
            end = (end / chunk + 1) * chunk;
        }
        end.min(range.end) - range.start
    }
}

impl ChunkMap {
    fn remove(&mut self, key: &Key) {
        if let Some(file) = self.files.remove(key) {
            self.words -= file.bits.len();
        }
    }

    /// Drops expired entries until `words` more words and one more file fit. If that is not enough,
    /// drops all entries.
    fn make_room(&mut self, words: usize, now: Instant) {
        let fits = |map: &Self| map.files.len() < MAX_FILES && map.words + words <= MAX_WORDS;
        if fits(self) {
            return;
        }
        self.files
            .retain(|_, file| now.saturating_duration_since(file.since) < VERIFICATION_LIFETIME);
        self.words = self.files.values().map(|file| file.bits.len()).sum();
        if !fits(self) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(changed: i64) -> Identity {
        Identity::File {
            device: 1,
            inode: 2,
            size: 3,
            modified: (4, 5),
            changed: (changed, 6),
        }
    }

    fn digest(of: &str) -> Digest {
        Digest::of(pierhead_oci::Algorithm::Sha256, of.as_bytes())
    }

    const C: u64 = CHUNK as u64;

    #[test]
    fn only_verified_chunks_count_as_verified() {
        let (verified, now, of) = (VerifiedChunks::default(), Instant::now(), digest("a"));
        let size = 200 * C + 7;
        verified.add(&of, identity(0), size, 1..3, now);
        verified.add(&of, identity(0), size, 63..66, now);
        verified.add(&of, identity(0), size, 200..201, now);
        let verified_len = |range| verified.verified_len(&of, &identity(0), range, now);
        assert_eq!(verified_len(0..size), 0);
        assert_eq!(verified_len(C..size), 2 * C);
        assert_eq!(verified_len(C + 5..C + 9), 4);
        assert_eq!(verified_len(2 * C + 5..size), C - 5);
        assert_eq!(verified_len(63 * C..size), 3 * C);
        assert_eq!(verified_len(200 * C..size), 7);
        assert_eq!(
            verified.verified_len(&digest("b"), &identity(0), C..size, now),
            0
        );
    }

    #[test]
    fn a_changed_file_and_an_expired_verification_do_not_count() {
        let (verified, now, of) = (VerifiedChunks::default(), Instant::now(), digest("a"));
        verified.add(&of, identity(0), 2 * C, 0..2, now);
        let verified_len =
            |changed, at| verified.verified_len(&of, &identity(changed), 0..2 * C, at);
        assert_eq!((verified_len(0, now), verified_len(1, now)), (2 * C, 0));
        assert_eq!(verified_len(0, now + VERIFICATION_LIFETIME), 0);
        verified.add(&of, identity(1), 2 * C, 0..1, now);
        assert_eq!((verified_len(0, now), verified_len(1, now)), (0, C));
        verified.add(&of, identity(1), 2 * C, 1..2, now + VERIFICATION_LIFETIME);
        assert_eq!(
            verified_len(1, now + VERIFICATION_LIFETIME),
            0,
            "the first chunk was verified long ago"
        );
    }

    #[test]
    fn in_a_shared_file_the_record_number_counts_and_not_the_file_times() {
        let file = tempfile::tempfile().unwrap();
        let extent = |at, record| Extent {
            file: &file,
            at,
            len: 5,
            record,
        };
        let of = |at, record| Identity::of(&extent(at, record));
        let before = (of(0, Some(1)), of(0, None));
        file.set_len(7).unwrap();
        assert_eq!(before.0, of(64, Some(1)), "another was written beside it");
        assert_ne!(before.0, of(0, Some(2)), "another lies there now");
        assert_ne!(before.1, of(0, None));
    }

    #[test]
    fn the_memory_of_verified_chunks_is_bounded() {
        let (verified, now) = (VerifiedChunks::default(), Instant::now());
        let bounded = || {
            let map = verified.chunks.lock();
            let words: usize = map.files.values().map(|file| file.bits.len()).sum();
            assert_eq!(words, map.words);
            map.files.len() <= MAX_FILES && words <= MAX_WORDS
        };
        for nth in 0..2 * MAX_FILES {
            let of = digest(&nth.to_string());
            verified.add(&of, identity(0), 100 * C, 0..1, now);
            assert_eq!(verified.verified_len(&of, &identity(0), 0..C, now), C);
            assert!(bounded());
        }
        let most = MAX_WORDS as u64 * 64 * C;
        verified.add(&digest("large"), identity(0), most, 0..1, now);
        assert!(bounded());
        verified.add(&digest("too large"), identity(0), most + 1, 0..1, now);
        assert!(bounded());
        let verified_len = |of| verified.verified_len(&digest(of), &identity(0), 0..C, now);
        assert_eq!((verified_len("large"), verified_len("too large")), (C, 0));
    }
}
