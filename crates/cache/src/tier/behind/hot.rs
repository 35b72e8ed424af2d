//! Hot contents: of a blob that the disk has, the chunks that a start touches stay on the fast tier, and no others.
//!
//! Such a copy is a value of the fast tier like any other, so that whatever is promised of those (what survives, what is counted, who leaves
//! first) holds for it, too. It lies under the complement of the blob's digest: whoever found a content
//! with such a digest would have found a collision.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pierhead_oci::{Digest, MediaType};

use super::room::Room;
use super::spans::{Place, Spans};
use super::{Shared, count};
use crate::lock;
use crate::tier::{Blob, Extent, Found, ReadAt, Sums, Trailer, is_damage};

/// Blobs whose hot ranges are remembered; of more the oldest are forgotten.
const MAX_KNOWN: usize = 4096;
/// A copy of more than this part of a blob saves too little: then it is as good to have all of it, or nothing.
const WORTH: (u64, u64) = (3, 4);
/// What says of a value of the fast tier that it is such a copy.
const MEDIA_TYPE: &str = "application/vnd.pierhead.hot-chunks";

/// What is known of starts, and what is to be made of it.
#[derive(Default)]
pub(super) struct Known {
    spans: HashMap<Digest, Wish>,
    /// Of `spans`, the oldest first.
    order: VecDeque<Digest>,
    /// Those to be looked at.
    todo: VecDeque<Digest>,
}

#[derive(Clone)]
struct Wish {
    spans: Arc<Spans>,
    priority: f64,
}

impl Known {
    fn learn(&mut self, digest: Digest, wish: Wish) {
        if self.spans.insert(digest, wish).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.spans.remove(&oldest);
        }
        self.look_at(&digest);
    }

    /// The disk has it now, or it is asked for.
    pub(super) fn look_at(&mut self, digest: &Digest) {
        if self.spans.contains_key(digest) && !self.todo.contains(digest) {
            self.todo.push_back(*digest);
        }
    }

    /// Not before it is said anew.
    pub(super) fn forget(&mut self, digest: &Digest) {
        self.spans.remove(digest);
        self.order.retain(|it| it != digest);
        self.take(digest);
    }

    pub(super) fn is_done(&self) -> bool {
        self.todo.is_empty()
    }

    /// What is looked at next, of those that may be.
    pub(super) fn next(&self, is_held: impl Fn(&Digest) -> bool) -> Option<Digest> {
        self.todo.iter().find(|digest| !is_held(digest)).copied()
    }

    /// It is being looked at.
    pub(super) fn take(&mut self, digest: &Digest) {
        self.todo.retain(|it| it != digest);
    }
}

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
            let mut ledger = lock(&self.ledger);
            ledger.known.learn(digest, Wish { spans, priority });
            ledger.rank(&key(&digest), priority);
        }
        self.told.notify_all();
    }

    /// In how many runs and bytes a start reads a blob, as far as that is known.
    pub(super) fn wanted(&self, digest: &Digest) -> Option<(usize, u64)> {
        let ledger = lock(&self.ledger);
        let wish = ledger.known.spans.get(digest)?;
        Some((wish.spans.runs(), wish.spans.bytes(u64::MAX)))
    }

    /// Ranks what is hot of a blob anew; what is worth more than something else on the fast tier is brought there.
    pub(super) fn rank_hot(&self, digest: &Digest, priority: f64) {
        let mut ledger = lock(&self.ledger);
        let Some(wish) = ledger.known.spans.get_mut(digest) else {
            return;
        };
        wish.priority = priority;
        let (key, bytes) = (key(digest), wish.spans.bytes(u64::MAX));
        if ledger.entries.contains_key(&key) {
            ledger.rank(&key, priority);
        } else if !ledger.entries.contains_key(digest) && ledger.floor(bytes) < priority {
            ledger.known.look_at(digest);
            drop(ledger);
            self.told.notify_all();
        }
    }

    /// Makes the copy of a blob that is known to be hot in parts, and lets go of the whole one. `digest` is being drained, as far as
    /// others are told.
    pub(super) fn keep_hot(&self, digest: &Digest) -> io::Result<()> {
        let (wish, whole) = {
            let ledger = lock(&self.ledger);
            let whole = ledger.entries.get(digest).map(|it| (it.drained, it.number));
            (ledger.known.spans.get(digest).cloned(), whole)
        };
        // What the disk has not yet is looked at when it has.
        let (Some(wish), None | Some((true, _))) = (wish, whole) else {
            return Ok(());
        };
        let slow = match self.slow.open(digest) {
            Err(error) if !is_damage(&error) => return Err(error),
            Ok(Some(slow)) => slow,
            // Whoever asks for it finds out.
            _ => return Ok(()),
        };
        let size = slow.trailer().size();
        let Some(spans) = wish.spans.within(size) else {
            return Ok(());
        };
        let bytes = spans.bytes(size);
        if bytes > size / WORTH.1 * WORTH.0 {
            return Ok(());
        }
        let spans = Arc::new(spans);
        let is_there = {
            let ledger = lock(&self.ledger);
            let there = ledger.entries.get(&key(digest));
            there.and_then(|it| it.hot.as_ref()) == Some(&spans)
        };
        if !is_there && !self.copy_hot(digest, &*slow, &spans, wish.priority)? {
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
            let ledger = lock(&self.ledger);
            let floor = ledger.floor(need);
            if floor > 0.0 && floor >= priority {
                return Ok(false);
            }
            Room::new(&ledger.accounts)
        };
        if !self.grow(&room, need) {
            return Ok(false);
        }
        // What a crash left of an earlier one.
        drop(lock(&self.ledger).resume(&key));
        let mut staged = self.fast.stage(&key)?;
        staged.clear()?;
        let mut sums = Sums::default();
        let mut written = 0_u64;
        let mut copied = || -> io::Result<bool> {
            let mut put = |bytes: &[u8]| {
                sums.update(written, bytes);
                written += bytes.len() as u64;
                staged.write(bytes)
            };
            put(&spans.encode(digest, size))?;
            for range in spans.ranges(size) {
                if !self.copy_from_disk(digest, slow, range, &mut put)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let copied = copied();
        if !matches!(copied, Ok(true)) {
            drop(staged);
            self.fast.discard(&key)?;
            return copied;
        }
        let _turn = self.turns.take(key);
        self.commit_copy(&key, staged, Trailer::new(content, media_type, sums))?;
        count(&self.counters.staged, content);
        let mut ledger = lock(&self.ledger);
        ledger.enter_hot(key, room, priority, spans.clone());
        Ok(true)
    }

    /// Takes the copy of the hot chunks away, if there is one: the disk has them.
    pub(super) fn drop_hot(&self, digest: &Digest) -> Option<bool> {
        let key = key(digest);
        let _turn = self.turns.take(key);
        self.drop_fast(&key)
    }

    /// The same of one that reads wrong: it is not made again at once, or a medium that is worn there would have it made for ever.
    pub(super) fn give_up_hot(&self, digest: &Digest) -> Option<bool> {
        lock(&self.ledger).known.forget(digest);
        self.drop_hot(digest)
    }

    /// The whole copy leaves, unless it is another one by now. Who reads it reads on.
    fn let_go_of_the_rest(&self, digest: &Digest, number: u64) {
        let _turn = self.turns.take(*digest);
        let is_same = {
            let ledger = lock(&self.ledger);
            let entry = ledger.entries.get(digest);
            entry.is_some_and(|entry| entry.number == number && entry.drained)
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

    /// The blob with what is hot of it read from the fast tier, if there is such a copy.
    pub(super) fn open_hot(
        self: &Arc<Self>,
        digest: &Digest,
        slow: Arc<dyn Blob>,
    ) -> io::Result<Arc<dyn Blob>> {
        let key = key(digest);
        let spans = {
            let ledger = lock(&self.ledger);
            ledger.entries.get(&key).and_then(|entry| entry.hot.clone())
        };
        let Some(spans) = spans else { return Ok(slow) };
        let size = slow.trailer().size();
        match self.open_fast(&key)? {
            Some(copy) if copy.trailer().size() == spans.header_len() + spans.bytes(size) => {
                count(&self.counters.hot_hits, 1);
                Ok(Arc::new(HotBlob {
                    slow,
                    copy,
                    spans,
                    failed: AtomicBool::new(false),
                }))
            }
            _ => {
                count(&self.counters.disk_hits, 1);
                Ok(slow)
            }
        }
    }
}

/// A blob of the disk, parts of which are read from the fast tier.
struct HotBlob {
    slow: Arc<dyn Blob>,
    copy: Arc<dyn Blob>,
    spans: Arc<Spans>,
    /// The copy could not be read: from then on all is the disk's, or what was checked would not be what is sent.
    failed: AtomicBool,
}

impl HotBlob {
    fn place(&self, offset: u64) -> Place {
        let size = self.slow.trailer().size();
        match self.failed.load(Ordering::Relaxed) {
            true => Place::Cold(size.saturating_sub(offset)),
            false => self.spans.place(offset, size),
        }
    }

    /// Calls `read` with each part of `offset..offset + len` in turn, as long as it gives all that is asked of it: which blob, where in it, which
    /// part of the buffer. Returns what was read.
    fn parts(
        &self,
        offset: u64,
        len: usize,
        mut read: impl FnMut(Part<'_>, Range<usize>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (from, left) = match self.place(at) {
                Place::Hot(inside, left) => {
                    let inside = self.spans.header_len() + inside;
                    (
                        Part {
                            copy: Some((&*self.copy, inside)),
                            at,
                        },
                        left,
                    )
                }
                // Behind the end it is the disk that says so.
                Place::Cold(0) => (Part { copy: None, at }, u64::MAX),
                Place::Cold(left) => (Part { copy: None, at }, left),
            };
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(len - done);
            let part = done..done + wanted;
            let came = read(from, part)?;
            done += came;
            if came < wanted {
                break;
            }
        }
        Ok(done)
    }
}

/// Where a part of a blob lies: on the disk at `at`, and maybe on the fast tier.
struct Part<'a> {
    copy: Option<(&'a dyn Blob, u64)>,
    at: u64,
}

impl ReadAt for HotBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let all = buf.len();
        let read = |from: Part<'_>, part: Range<usize>| {
            let (len, buf) = (part.len(), &mut buf[part]);
            if let Some((copy, at)) = from.copy {
                match copy.read_at(at, buf) {
                    Ok(()) => return Ok(len),
                    // The disk has it, too.
                    Err(_) => self.failed.store(true, Ordering::Relaxed),
                }
            }
            self.slow.read_at(from.at, buf).map(|()| len)
        };
        self.parts(offset, all, read).map(|_| ())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.parts(offset, buf.len(), |from, part| match from.copy {
            Some((copy, at)) => copy.try_read_at(at, &mut buf[part]),
            None => self.slow.try_read_at(from.at, &mut buf[part]),
        })
    }
}

impl Blob for HotBlob {
    fn trailer(&self) -> &Trailer {
        self.slow.trailer()
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        let (extent, left) = match self.place(offset) {
            Place::Hot(at, left) => (self.copy.extent(self.spans.header_len() + at)?, left),
            Place::Cold(left) => (self.slow.extent(offset)?, left),
        };
        Some(Extent {
            len: extent.len.min(left),
            ..extent
        })
    }
}
