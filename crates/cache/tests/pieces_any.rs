//! Property test of pieces: any interleaving of the front stream, claims, readers, cancelled
//! claims, restarts of the process and wrong bytes gives each reader the right bytes or an error.
//! Each byte is fetched once, and nothing wrong is committed.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::ops::Range;

use bytes::Bytes;
use common::{blob, open};
use pierhead_cache::{Arrival, BlobReader, Cache, Claim, Error, Fill, PieceWriter, TailReader};
use pierhead_oci::Digest;
use pierhead_testkit::wait;
use proptest::prelude::*;

const SIZE: u64 = 1_500_000;

/// One action of a leader, a claim, a reader or an operator. Offsets and lengths are reduced to the
/// blob.
#[derive(Clone, Debug)]
enum Action {
    Stream {
        len: u64,
    },
    Pass,
    Claim {
        start: u64,
        len: u64,
    },
    ClaimNext {
        max: u64,
    },
    Write {
        claim: usize,
        len: u64,
    },
    Drop {
        claim: usize,
    },
    Read {
        start: u64,
        len: usize,
    },
    /// A reader of the whole blob reads on.
    Follow,
    Refuse,
    Refetch,
    Reopen,
    /// The leader is cancelled, and the next fill begins in this way.
    Abort {
        begin: Begin,
    },
    Kill,
    Wrong {
        at: u64,
    },
}

/// How a fill begins.
#[derive(Clone, Debug)]
enum Begin {
    Sized,
    Unsized,
    WithRange(Range<u64>),
}

fn action() -> impl Strategy<Value = Action> {
    let offset = || 0..SIZE;
    prop_oneof![
        6 => (1u64..200_000).prop_map(|len| Action::Stream { len }),
        3 => Just(Action::Pass),
        6 => (offset(), 1u64..400_000).prop_map(|(start, len)| Action::Claim { start, len }),
        3 => (1u64..300_000).prop_map(|max| Action::ClaimNext { max }),
        12 => (0usize..8, 1u64..300_000).prop_map(|(claim, len)| Action::Write { claim, len }),
        4 => (0usize..8).prop_map(|claim| Action::Drop { claim }),
        8 => (offset(), 1usize..200_000).prop_map(|(start, len)| Action::Read { start, len }),
        6 => Just(Action::Follow),
        1 => Just(Action::Refuse),
        1 => Just(Action::Refetch),
        1 => Just(Action::Reopen),
        1 => begin().prop_map(|begin| Action::Abort { begin }),
        1 => Just(Action::Kill),
        1 => offset().prop_map(|at| Action::Wrong { at }),
    ]
}

fn begin() -> impl Strategy<Value = Begin> {
    prop_oneof![
        3 => Just(Begin::Sized),
        1 => Just(Begin::Unsized),
        2 => (0..SIZE, 1u64..400_000).prop_map(|(start, len)| Begin::WithRange(start..start + len)),
    ]
}

/// A fill and everybody who takes part in it.
struct World {
    folder: tempfile::TempDir,
    cache: Cache,
    digest: Digest,
    content: Bytes,
    /// What the upstream sends, which may be wrong.
    upstream: Vec<u8>,
    /// The bytes that were fetched, and that the cache has not lost since.
    fetched: Vec<Option<u8>>,
    /// Whether the right byte and the wrong byte were ever fetched.
    ever: Vec<[bool; 2]>,
    fill: Option<Fill>,
    tail: TailReader,
    /// A reader of the whole blob, and the number of bytes that it has read.
    whole: (TailReader, u64),
    claims: Vec<PieceWriter>,
    /// The positions of dropped claims, whose bytes may still be in memory.
    dropped: Vec<u64>,
}

/// Leads a fill of the blob. Returns the claim with which the fill began.
async fn lead(
    cache: &Cache,
    digest: &Digest,
    begin: Begin,
) -> (Fill, TailReader, Option<PieceWriter>) {
    let claim = cache.claim(digest, common::origin()).await.unwrap();
    let Claim::Leader(mut fill, BlobReader::Tail(tail)) = claim else {
        panic!("nothing is stored, and nobody else fills")
    };
    let claim = match begin {
        Begin::Sized => fill.begin(Some(SIZE)).await.map(|()| None),
        Begin::Unsized => fill.begin(None).await.map(|()| None),
        Begin::WithRange(range) => fill.begin_with_range(SIZE, range).await,
    };
    (fill, tail, claim.unwrap())
}

/// Polls the future once, when all other tasks are idle.
async fn now<F: Future>(future: F) -> Option<F::Output> {
    tokio::select! { biased; done = future => Some(done), () = tokio::task::yield_now() => None }
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = open(folder.path());
        let (digest, content) = blob(1, usize::try_from(SIZE).unwrap());
        let (fill, tail, _) = lead(&cache, &digest, Begin::Sized).await;
        Self {
            folder,
            cache,
            digest,
            ever: vec![[false; 2]; usize::try_from(SIZE).unwrap()],
            upstream: content.to_vec(),
            content,
            fetched: vec![None; usize::try_from(SIZE).unwrap()],
            fill: Some(fill),
            whole: (tail.clone(), 0),
            tail,
            claims: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn index(range: &Range<u64>) -> Range<usize> {
        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
    }

    fn bytes(&self, range: &Range<u64>) -> Bytes {
        Bytes::copy_from_slice(&self.upstream[Self::index(range)])
    }

    fn count(&mut self, range: Range<u64>) {
        for at in Self::index(&range) {
            let before = self.fetched[at].replace(self.upstream[at]);
            assert!(before.is_none(), "byte {at} is fetched again");
            self.ever[at][usize::from(self.upstream[at] != self.content[at])] = true;
        }
    }

    fn forget(&mut self, range: Range<u64>) {
        self.fetched[Self::index(&range)].fill(None);
    }

    fn fill(&mut self) -> &mut Fill {
        self.fill.as_mut().unwrap()
    }

    async fn stream(&mut self, len: u64) {
        let front = self.fill().front();
        // The upstream sends bytes beyond the next piece, too.
        let sent = front.start..(front.start + len).min(SIZE);
        let bytes = self.bytes(&sent);
        self.fill().write(bytes).await.unwrap();
        let position = self.fill().front().start;
        assert!(position <= front.end);
        self.count(front.start..position);
    }

    async fn write(&mut self, claim: usize, len: u64) {
        if self.claims.is_empty() {
            return;
        }
        let claim = claim % self.claims.len();
        let start = self.claims[claim].position();
        let bytes = self.bytes(&(start..(start + len).min(SIZE)));
        self.claims[claim].write(bytes).await.unwrap();
        self.count(start..self.claims[claim].position());
    }

    /// Reads what can be read now. If nobody downloads the bytes, claims them.
    async fn read(&mut self, start: u64, len: usize) {
        let end = (start + len as u64).min(SIZE);
        let reader = self.tail.for_range(start..end);
        match now(reader.arrival(start)).await {
            Some(Ok(Arrival::Readable)) => {
                let read = reader.read_at(start, len).await.unwrap();
                assert!(!read.is_empty());
                let range = Self::index(&(start..start + read.len() as u64));
                let fetched = self.fetched[range].iter().copied();
                assert!(
                    fetched.eq(read.into_iter().map(Some)),
                    "other bytes at {start}"
                );
            }
            Some(Ok(Arrival::Missing)) => {
                let claim = self.tail.pieces().claim(start..end).unwrap();
                assert!(claim.position() <= start && start < claim.end());
                self.claims.push(claim);
            }
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }

    /// Leads the next fill, with a new reader of the whole blob.
    async fn lead(&mut self, begin: Begin) {
        let (fill, tail, claim) = lead(&self.cache, &self.digest, begin).await;
        self.whole = (tail.clone(), 0);
        (self.fill, self.tail) = (Some(fill), tail);
        self.claims.extend(claim);
    }

    /// Reads on as a client of the whole blob, which must not get wrong bytes to a clean end.
    async fn follow(&mut self) {
        let (reader, offset) = &mut self.whole;
        while let Some(read) = now(reader.read_at(*offset, 100_000)).await {
            let read = read.unwrap();
            let range = *offset..*offset + read.len() as u64;
            let fetched = self.fetched[Self::index(&range)].iter().copied();
            assert!(
                fetched.eq(read.into_iter().map(Some)),
                "other bytes in {range:?}"
            );
            assert!(
                range.end > range.start && range.end < SIZE,
                "before the digest"
            );
            *offset = range.end;
        }
    }

    /// Ends the fill without any wait. The next fill may have lost bytes, but has no other bytes.
    async fn abort(&mut self, begin: Begin, kills: bool) {
        let image = kills.then(|| self.copy_files());
        self.fill.take();
        let reader = self.tail.clone();
        assert!(reader.committed().await.is_err());
        (self.claims, self.dropped) = (Vec::new(), Vec::new());
        assert!(self.whole.0.read_at(self.whole.1, 1).await.is_err());
        if let Some(image) = image {
            self.cache.close().await;
            self.cache = open(image.path());
            self.folder = image;
        }
        let has_size = !matches!(begin, Begin::Unsized);
        self.lead(begin).await;
        let front = self.fill().offset();
        if !has_size {
            // The front stream fetches all bytes, and readers wait for more than the prefix.
            return self.forget(front..SIZE);
        }
        if let Some(last) = front.checked_sub(1) {
            // The worker reads the prefix again.
            let read = self.tail.for_range(last..front).read_at(last, 1).await;
            assert!(read.is_ok());
        }
        let mut offset = 0;
        while offset < SIZE {
            let reader = self.tail.for_range(offset..SIZE - 1);
            offset = match now(reader.arrival(offset)).await {
                Some(Ok(Arrival::Readable)) => {
                    let read = reader.read_at(offset, 100_000).await.unwrap();
                    let range = offset..offset + read.len() as u64;
                    // A kill can bring bytes back that were fetched before the last ones, and pieces
                    // that a fill of unknown size has forgotten.
                    for (at, byte) in Self::index(&range).zip(read) {
                        let is_wrong = usize::from(byte != self.content[at]);
                        assert!(self.ever[at][is_wrong], "byte {at} was not fetched");
                        assert!(byte ^ self.content[at] <= 1, "byte {at} is another one");
                        self.fetched[at] = Some(byte);
                    }
                    range.end
                }
                Some(Err(error)) => panic!("{error}"),
                _ => {
                    // A piece begins at a whole block, or at the end of another one.
                    let end = ((offset / 4096 + 1) * 4096).min(SIZE);
                    self.forget(offset..end);
                    end
                }
            };
        }
    }

    /// Copies the files as a kill leaves them. The copy takes some time, in which a running claim can
    /// write its first map and bytes: the copy counts only if the maps are the same before and after.
    fn copy_files(&self) -> tempfile::TempDir {
        loop {
            let image = tempfile::tempdir().unwrap();
            let before = self.maps();
            for (path, _) in common::walk(self.folder.path()) {
                let name = path.strip_prefix(self.folder.path()).unwrap();
                let copy = image.path().join(name);
                if !name.starts_with("catalog") {
                    std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
                    // A temporary file may be gone by now.
                    let _ = std::fs::copy(&path, copy);
                }
            }
            if before == self.maps() {
                return image;
            }
        }
    }

    /// Returns the contents of all piece maps.
    fn maps(&self) -> Vec<Vec<u8>> {
        let files = common::walk(&self.folder.path().join("staging"));
        let maps = files.into_iter().map(|(path, _)| path);
        let maps = maps.filter(|path| path.extension().is_some_and(|it| it == "pieces"));
        maps.filter_map(|path| std::fs::read(path).ok()).collect()
    }

    /// Ends the fill, and starts the next one in the same process or in a new one.
    async fn reopen(&mut self) {
        // Bytes of a claim that are still in memory are lost.
        for claim in std::mem::take(&mut self.claims) {
            claim.finish().await.unwrap();
        }
        for position in std::mem::take(&mut self.dropped) {
            let last = position.saturating_sub(1);
            if self.fetched[usize::try_from(last).unwrap()].is_some() {
                let arrival = self.tail.for_range(last..position).arrival(last).await;
                assert_eq!(arrival.unwrap(), Arrival::Readable);
            }
        }
        let front = self.fill().front().start;
        self.fill.take().unwrap().abandon("cut");
        let _ = self.tail.committed().await;
        self.cache.close().await;
        self.cache = open(self.folder.path());
        self.lead(Begin::Sized).await;
        // The last bytes of the prefix, less than a chunk and a byte, are lost.
        let offset = self.fill().offset();
        if offset < front {
            assert!(front - offset <= 65_536, "{offset} of {front} bytes");
        }
        let gap = self.fill().front();
        self.forget(offset..gap.end.min(offset + 65_536));
    }

    /// The upstream sends the blob again from byte 0.
    async fn refetch(&mut self) {
        self.fill().restart().await.unwrap();
        self.fill().begin(Some(SIZE)).await.unwrap();
        let claims = std::mem::take(&mut self.claims);
        for mut claim in claims {
            assert!(matches!(
                claim.write(Bytes::from_static(b"x")).await,
                Err(Error::Restarted)
            ));
        }
        if self.whole.1 > 0 {
            // It learns of the restart once the front stream reaches its position again.
            let read = now(self.whole.0.read_at(self.whole.1, 1)).await;
            assert!(matches!(read, None | Some(Err(Error::Restarted))));
        }
        self.whole = (self.tail.clone(), 0);
        self.upstream = self.content.to_vec();
        self.dropped.clear();
        self.forget(0..SIZE);
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Stream { len } => self.stream(len).await,
            Action::Pass => drop(now(self.fill().pass_pieces()).await),
            Action::Claim { start, len } => {
                let pieces = self.tail.pieces();
                self.claims.extend(pieces.claim(start..start + len));
            }
            Action::ClaimNext { max } => {
                let pieces = self.tail.pieces();
                self.claims
                    .extend(now(pieces.claim_next(max)).await.flatten());
            }
            Action::Write { claim, len } => self.write(claim, len).await,
            Action::Drop { claim } => {
                if !self.claims.is_empty() {
                    let claim = claim % self.claims.len();
                    self.dropped.push(self.claims.swap_remove(claim).position());
                }
            }
            Action::Read { start, len } => self.read(start, len).await,
            Action::Follow => self.follow().await,
            Action::Refuse => self.tail.pieces().refuse_claims(),
            Action::Refetch => self.refetch().await,
            Action::Reopen => self.reopen().await,
            Action::Abort { begin } => self.abort(begin, false).await,
            Action::Kill => self.abort(Begin::Sized, true).await,
            Action::Wrong { at } => self.upstream[usize::try_from(at).unwrap()] ^= 1,
        }
    }

    /// Fetches the rest, and checks the outcome.
    async fn complete(mut self) {
        self.claims.clear();
        while self.fill().front().start < SIZE {
            while self.fill().front().start < SIZE && !self.fill().front().is_empty() {
                self.stream(150_000).await;
            }
            self.fill().pass_pieces().await.unwrap();
        }
        let fetched: Vec<u8> = self.fetched.iter().copied().map(Option::unwrap).collect();
        let is_wrong = fetched != self.content;
        self.follow().await;
        let finished = self.fill.take().unwrap().finish().await;
        let (whole, mut offset) = self.whole;
        while finished.is_ok() && offset < SIZE {
            let read = whole.read_at(offset, 100_000).await.unwrap();
            let range = offset..offset + read.len() as u64;
            assert!(!read.is_empty() && read == self.content[Self::index(&range)]);
            offset = range.end;
        }
        let end = whole.read_at(offset, 1).await.map(|read| read.len());
        assert_eq!(end.ok(), finished.is_ok().then_some(0), "a clean end");
        match finished {
            Ok(stored) => {
                assert!(!is_wrong, "wrong bytes are committed");
                assert!(stored.read_all(1 << 30).await.unwrap() == self.content);
            }
            Err(error) => {
                assert!(is_wrong, "{error}");
                assert!(matches!(error, Error::WrongDigest { .. }), "{error}");
                assert_eq!(common::files_below(self.folder.path(), "staging"), 0);
            }
        }
        assert!(self.cache.verify(&self.digest).await.unwrap());
        assert_eq!(self.cache.stat().reserved, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_fetches_each_byte_once_and_commits_nothing_wrong(
        actions in proptest::collection::vec(action(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for action in actions {
                let done = tokio::time::timeout(wait::TIME_LIMIT, world.act(action.clone()));
                assert!(done.await.is_ok(), "{action:?} takes too long");
            }
            world.complete().await;
        });
    }
}
