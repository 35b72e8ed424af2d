//! Hot contents: of a blob that the disk has, the chunks that a start touches stay on the fast tier, and no others.
//!
//! Such a copy is a value of the fast tier like any other, so that whatever is promised of those (what survives, what is counted, who leaves
//! first) holds for it, too. It lies under the complement of the blob's digest: whoever found a content
//! with such a digest would have found a collision.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use pierhead_oci::{Digest, MediaType};

use super::disk_idle::Patience;
use super::hot_ranges::HotRange;
use super::room::Room;
use super::spans::Spans;
use super::{Shared, count};
use crate::tier::{Blob, Found, Sums, Trailer, is_damage};

/// A copy of more than this part of a blob saves too little: then it is as good to have all of it.
const WORTH: (u64, u64) = (3, 4);
/// What says of a value of the fast tier that it is such a copy.
const MEDIA_TYPE: &str = "application/vnd.pierhead.hot-chunks";

/// Where the copy of a blob lies on the fast tier. The same the other way round.
pub(super) fn key(digest: &Digest) -> Digest {
    let bytes: Vec<u8> = digest.as_bytes().iter().map(|byte| !byte).collect();
    Digest::from_bytes(digest.algorithm(), &bytes).unwrap_or(*digest)
}

fn is_copy(trailer: &Trailer) -> bool {
    trailer
        .media_type()
        .is_some_and(|it| it.as_str() == MEDIA_TYPE)
}

impl Shared {
    /// A start reads these ranges of a blob, in bytes of it.
    pub(super) fn learn(&self, digest: Digest, ranges: &[Range<u64>], priority: f64) {
        let Some(spans) = Spans::of(ranges) else {
            return;
        };
        let spans = Arc::new(spans);
        {
            let mut tier_state = self.tier_state.lock();
            tier_state.known.learn(digest, HotRange { spans, priority });
            tier_state.rank(&key(&digest), priority);
        }
        self.changed.notify_all();
    }

    /// In how many runs and bytes a start reads a blob, as far as that is known.
    pub(super) fn wanted(&self, digest: &Digest) -> Option<(usize, u64)> {
        let tier_state = self.tier_state.lock();
        let hot_range = tier_state.known.get(digest)?;
        Some((hot_range.spans.runs(), hot_range.spans.bytes(u64::MAX)))
    }

    /// Ranks what is hot of a blob anew; what is worth more than something else on the fast tier is brought there.
    pub(super) fn rank_hot(&self, digest: &Digest, priority: f64) {
        let mut tier_state = self.tier_state.lock();
        let Some(hot_range) = tier_state.known.rank(digest, priority) else {
            return;
        };
        let (key, bytes) = (key(digest), hot_range.spans.bytes(u64::MAX));
        if tier_state.entries.contains_key(&key) {
            tier_state.rank(&key, priority);
        } else if !tier_state.entries.contains_key(digest) && tier_state.floor(bytes) < priority {
            tier_state.known.look_at(digest);
            drop(tier_state);
            self.changed.notify_all();
        }
    }

    /// Makes the copy of a blob that is known to be hot in parts, and lets go of the whole one. `digest` is being drained, as far as
    /// others are changed.
    pub(super) fn keep_hot(&self, digest: &Digest) -> io::Result<()> {
        if self.has_failed() {
            return Ok(());
        }
        let (hot_range, whole) = {
            let tier_state = self.tier_state.lock();
            let whole = tier_state
                .entries
                .get(digest)
                .map(|it| (it.is_clean, it.number));
            (tier_state.known.get(digest).cloned(), whole)
        };
        // What the disk has not yet is looked at when it has.
        let (Some(hot_range), None | Some((true, _))) = (hot_range, whole) else {
            return Ok(());
        };
        let slow = match self.slow.open(digest) {
            Err(error) if !is_damage(&error) => return Err(error),
            Ok(Some(slow)) => slow,
            // Whoever asks for it finds out.
            _ => return Ok(()),
        };
        let size = slow.trailer().size();
        let Some(spans) = hot_range.spans.within(size) else {
            return Ok(());
        };
        let bytes = spans.bytes(size);
        if bytes > size / WORTH.1 * WORTH.0 {
            return match whole {
                Some(_) => Ok(()),
                None => self.copy_whole(digest, hot_range.priority),
            };
        }
        let spans = Arc::new(spans);
        let is_there = {
            let tier_state = self.tier_state.lock();
            let there = tier_state.entries.get(&key(digest));
            there.and_then(|it| it.hot.as_ref()) == Some(&spans)
        };
        if !is_there && !self.copy_hot(digest, &*slow, &spans, hot_range.priority)? {
            return Ok(());
        }
        if let Some((_, number)) = whole {
            self.let_go_of_the_rest(digest, number);
        }
        Ok(())
    }

    /// `false` when there is no room for it, or somebody else needs its place.
    fn copy_hot(
        &self,
        digest: &Digest,
        slow: &dyn Blob,
        spans: &Arc<Spans>,
        priority: f64,
    ) -> io::Result<bool> {
        let (key, size) = (key(digest), slow.trailer().size());
        let content = spans.header_len() + spans.bytes(size);
        let media_type = MediaType::new(MEDIA_TYPE);
        let need = self.footprint(content, media_type.as_ref());
        let room = {
            let tier_state = self.tier_state.lock();
            let floor = tier_state.floor(need);
            if floor > 0.0 && floor >= priority {
                return Ok(false);
            }
            Room::new(&tier_state.accounts)
        };
        if !self.grow(&room, need) {
            return Ok(false);
        }
        // What a crash left of an earlier one.
        drop(self.tier_state.lock().resume(&key));
        let mut staged = self.fast.stage(&key)?;
        staged.clear()?;
        let mut sums = Sums::default();
        let (mut written, mut patience) = (0_u64, Patience::default());
        let mut copied = || -> io::Result<bool> {
            let mut put = |bytes: &[u8]| {
                sums.update(written, bytes);
                written += bytes.len() as u64;
                staged.write(bytes)
            };
            put(&spans.encode(digest, size))?;
            for range in spans.ranges(size) {
                if !self.copy_from_disk(digest, slow, range, &mut patience, &mut put)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let copied = copied();
        if !matches!(copied, Ok(true)) {
            drop(staged);
            self.fast.discard(&key)?;
            if self.should_rest() {
                // Once the machine has room again.
                self.tier_state.lock().known.look_at(digest);
            }
            return copied;
        }
        let _guard = self.digest_locks.lock(key);
        self.commit_copy(&key, staged, Trailer::new(content, media_type, sums))?;
        count(&self.counters.staged, content);
        let mut tier_state = self.tier_state.lock();
        tier_state.enter_hot(key, room, priority, spans.clone());
        Ok(true)
    }

    /// Takes the copy of the hot chunks away, if there is one: the disk has them.
    pub(super) fn drop_hot(&self, digest: &Digest) -> Option<bool> {
        let key = key(digest);
        let _guard = self.digest_locks.lock(key);
        self.drop_fast(&key)
    }

    /// The same of one that reads wrong: it is not made again at once, or a medium that is worn there would have it made for ever.
    pub(super) fn give_up_hot(&self, digest: &Digest) -> Option<bool> {
        self.tier_state.lock().known.forget(digest);
        self.drop_hot(digest)
    }

    /// The whole copy leaves, unless it is another one by now. Who reads it reads on.
    fn let_go_of_the_rest(&self, digest: &Digest, number: u64) {
        let _guard = self.digest_locks.lock(*digest);
        let is_same = {
            let tier_state = self.tier_state.lock();
            let entry = tier_state.entries.get(digest);
            entry.is_some_and(|entry| entry.number == number && entry.is_clean)
        };
        if is_same {
            self.drop_fast(digest);
        }
    }

    /// A value that an earlier process left under the key of a copy: `None` if it is none, else what is hot in it. What has
    /// lost its blob is not one to keep.
    pub(super) fn found_hot(&self, found: &Found) -> Option<Option<Arc<Spans>>> {
        let copy = self.fast.open(&found.digest).ok()??;
        if !is_copy(copy.trailer()) {
            return None;
        }
        let digest = key(&found.digest);
        let len = usize::try_from(copy.trailer().size()).unwrap_or(usize::MAX);
        let mut header = vec![0; len.min(Spans::MAX_HEADER)];
        let spans = match copy.read_at(0, &mut header) {
            Ok(()) => Spans::decode(&digest, &header),
            Err(_) => None,
        };
        let fits = |(spans, size): &(Spans, u64)| {
            copy.trailer().size() == spans.header_len() + spans.bytes(*size)
        };
        Some(spans.filter(fits).map(|(spans, _)| Arc::new(spans)))
    }
}
