//! A storage tier for tests, which forwards calls to another tier and injects faults.

use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_cache::tier::{Blob, FastMedium, ReadAt, Staged, Tier, TierEntry, Trailer};
use pierhead_oci::Digest;

/// The operations of a tier that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of the traits' methods")]
pub enum Op {
    Stage,
    Discard,
    Open,
    Remove,
    Write,
    Clear,
    Commit,
    Read,
    /// The read of bytes that are staged and not committed.
    ReadStaged,
    /// A sync before the commit. Only a tier with a hook ([`Faulty::on_call`]) counts this call.
    EarlySync,
}

/// Called before each call to the tier with the digest of its blob; an error is the result of the
/// call.
type Hook = dyn Fn(Op, &Digest) -> io::Result<()> + Send + Sync;

/// A storage tier that forwards all calls except calls in which a fault is injected. All clones
/// share the same faults, and so does the tier of hot copies.
#[derive(Clone)]
pub struct Faulty {
    medium: Arc<dyn FastMedium>,
    /// The tier of `medium` that this tier shows, and its kind.
    tier: Arc<dyn Tier>,
    kind: Kind,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    /// The injected faults. Each has the number of calls that succeed first, the number of calls
    /// that fail, and the `errno` of the failures.
    faults: Vec<Fault>,
    /// The number of the call from which on all calls fail.
    crash: Option<u64>,
    calls: u64,
    free: Option<u64>,
    /// The bytes that reads return corrupted: the blob and the offset of each byte.
    corrupt_bytes: Vec<(Kind, Digest, u64)>,
    hook: Option<Arc<Hook>>,
}

/// The copies that a tier shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Hot,
}

struct Fault {
    op: Op,
    pass: u64,
    fail: u64,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    Errno(i32),
    Panic,
}

impl Faulty {
    /// Creates a tier without faults.
    pub fn new(medium: Arc<dyn FastMedium>) -> Self {
        Self {
            tier: medium.clone(),
            medium,
            kind: Kind::Whole,
            plan: Arc::default(),
        }
    }

    /// Lets `pass` calls of `op` succeed, and makes the next `fail` calls fail with `errno`.
    pub fn fail(&self, op: Op, pass: u64, fail: u64, errno: i32) {
        let how = How::Errno(errno);
        self.plan().faults.push(Fault {
            op,
            pass,
            fail,
            how,
        });
    }

    /// Lets `pass` calls of `op` succeed, and panics in the next call.
    pub fn panic(&self, op: Op, pass: u64) {
        let (fail, how) = (1, How::Panic);
        self.plan().faults.push(Fault {
            op,
            pass,
            fail,
            how,
        });
    }

    /// Lets `calls` more calls of any kind succeed. All later calls fail, as if the medium had been
    /// removed.
    pub fn crash_after(&self, calls: u64) {
        let mut plan = self.plan();
        plan.crash = Some(plan.calls + calls);
    }

    /// Calls `hook` before each call to the tier. The hook may block, or return an error.
    pub fn on_call(&self, hook: impl Fn(Op, &Digest) -> io::Result<()> + Send + Sync + 'static) {
        self.plan().hook = Some(Arc::new(hook));
    }

    /// Returns the number of calls to the tier so far.
    pub fn calls(&self) -> u64 {
        self.plan().calls
    }

    /// Sets the result of [`Tier::free`].
    pub fn set_free(&self, free: u64) {
        self.plan().free = Some(free);
    }

    /// Corrupts byte `offset` of the blob `digest` in later reads.
    pub fn corrupt(&self, digest: Digest, offset: u64) {
        let corrupt_byte = (Kind::Whole, digest, offset);
        self.plan().corrupt_bytes.push(corrupt_byte);
    }

    /// Corrupts byte `offset` of the hot copy of the blob `digest` in later reads.
    pub fn corrupt_hot(&self, digest: Digest, offset: u64) {
        let corrupt_byte = (Kind::Hot, digest, offset);
        self.plan().corrupt_bytes.push(corrupt_byte);
    }

    /// Removes all faults and the hook.
    pub fn restore(&self) {
        let calls = self.plan().calls;
        *self.plan() = Plan {
            calls,
            ..Plan::default()
        };
    }

    fn plan(&self) -> parking_lot::MutexGuard<'_, Plan> {
        self.plan.lock()
    }

    fn step(&self, op: Op, digest: &Digest) -> io::Result<()> {
        let hook = self.plan().hook.clone();
        hook.map_or(Ok(()), |hook| hook(op, digest))?;
        let mut plan = self.plan();
        plan.calls += 1;
        if plan.crash.is_some_and(|crash| plan.calls > crash) {
            return Err(io::Error::other("the medium is gone"));
        }
        let mut how = None;
        for fault in plan
            .faults
            .iter_mut()
            .filter(|fault| fault.op == op && fault.fail > 0)
        {
            if fault.pass > 0 {
                fault.pass -= 1;
            } else {
                fault.fail -= 1;
                how = Some(fault.how);
                break;
            }
        }
        // Releases the lock on the plan of faults, so that the panic happens without this lock.
        drop(plan);
        match how {
            Some(How::Panic) => panic!("injected panic in {op:?}"),
            Some(How::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

impl Tier for Faulty {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        self.step(Op::Stage, digest)?;
        let staged = self.tier.stage(digest)?;
        Ok(Box::new(FaultyStaged {
            staged,
            digest: *digest,
            faults: self.clone(),
        }))
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.step(Op::Discard, digest)?;
        self.tier.discard(digest)
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        self.step(Op::Open, digest)?;
        let blob = self.tier.open(digest)?;
        Ok(blob.map(|blob| {
            Arc::new(FaultyBlob {
                blob,
                digest: *digest,
                faults: self.clone(),
            }) as Arc<dyn Blob>
        }))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.step(Op::Remove, digest)?;
        self.plan()
            .corrupt_bytes
            .retain(|(kind, of, _)| (*kind, of) != (self.kind, digest));
        self.tier.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.tier.scan(visit)
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.tier.scan_staged(visit)
    }

    fn free(&self) -> io::Result<u64> {
        let free = self.plan().free;
        free.map_or_else(|| self.tier.free(), Ok)
    }

    fn staged_file(&self, digest: &Digest) -> Option<PathBuf> {
        self.tier.staged_file(digest)
    }

    fn blob_file(&self, digest: &Digest) -> Option<PathBuf> {
        self.tier.blob_file(digest)
    }
}

impl FastMedium for Faulty {
    fn hot_copies(&self) -> io::Result<Arc<dyn Tier>> {
        Ok(Arc::new(Self {
            tier: self.medium.hot_copies()?,
            kind: Kind::Hot,
            ..self.clone()
        }))
    }
}

struct FaultyStaged {
    staged: Box<dyn Staged>,
    digest: Digest,
    faults: Faulty,
}

impl Staged for FaultyStaged {
    fn size(&self) -> u64 {
        self.staged.size()
    }

    /// The write of each piece counts as one call.
    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        for piece in pieces {
            if let Err(error) = self.faults.step(Op::Write, &self.digest) {
                // Like a full disk, writes only a part of the piece.
                self.staged.write(&[&piece[..piece.len() / 2]])?;
                return Err(error);
            }
            self.staged.write(&[piece])?;
        }
        Ok(())
    }

    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let sync = self.staged.early_sync();
        let hook = self.faults.plan().hook.clone();
        let Some(hook) = hook else {
            return sync;
        };
        let digest = self.digest;
        Some(Box::new(move || {
            if hook(Op::EarlySync, &digest).is_ok()
                && let Some(sync) = sync
            {
                sync();
            }
        }))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.faults.step(Op::Clear, &self.digest)?;
        self.staged.clear()
    }

    fn reader(&self) -> Arc<dyn ReadAt> {
        Arc::new(FaultyReader {
            reader: self.staged.reader(),
            digest: self.digest,
            faults: self.faults.clone(),
        })
    }

    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>> {
        self.faults.step(Op::Commit, &self.digest)?;
        let blob = self.staged.commit(trailer)?;
        Ok(Arc::new(FaultyBlob {
            blob,
            digest: self.digest,
            faults: self.faults,
        }))
    }
}

struct FaultyReader {
    reader: Arc<dyn ReadAt>,
    digest: Digest,
    faults: Faulty,
}

impl ReadAt for FaultyReader {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.faults.step(Op::ReadStaged, &self.digest)?;
        self.reader.read_at(offset, buf)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.faults.step(Op::ReadStaged, &self.digest)?;
        self.reader.try_read_at(offset, buf)
    }
}

struct FaultyBlob {
    blob: Arc<dyn Blob>,
    digest: Digest,
    faults: Faulty,
}

impl FaultyBlob {
    fn spoil(&self, offset: u64, buf: &mut [u8]) {
        for (kind, digest, at) in &self.faults.plan().corrupt_bytes {
            let inside = at
                .checked_sub(offset)
                .and_then(|at| usize::try_from(at).ok());
            if (*kind, *digest) == (self.faults.kind, self.digest)
                && let Some(byte) = inside.and_then(|inside| buf.get_mut(inside))
            {
                *byte ^= 1;
            }
        }
    }
}

impl ReadAt for FaultyBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.faults.step(Op::Read, &self.digest)?;
        self.blob.read_at(offset, buf)?;
        self.spoil(offset, buf);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.faults.step(Op::Read, &self.digest)?;
        let read = self.blob.try_read_at(offset, buf)?;
        self.spoil(offset, &mut buf[..read]);
        Ok(read)
    }
}

impl Blob for FaultyBlob {
    fn trailer(&self) -> &Trailer {
        self.blob.trailer()
    }
}
