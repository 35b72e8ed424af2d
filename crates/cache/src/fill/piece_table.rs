//! Who has which byte of a fill: bytes that are staged, bytes that somebody downloads, and gaps. No
//! I/O.
//!
//! Invariants:
//!
//! 1. A byte has at most one owner: it is staged, or the front stream has taken it, or one claim
//!    covers it.
//! 2. Only bytes that their owner has not taken yet change their owner: a new claim may cut the end
//!    off an older claim or off the front stream, never closer than the lead to its position.
//! 3. A position only grows. Thus no byte is taken twice, unless its owner gave it up.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::fill::range_set::RangeSet;

/// Alignment of the start and end of a claim in bytes: the block size of most file systems, so that
/// two pieces rarely share a block.
const ALIGNMENT: u64 = 4096;

/// Number of bytes ahead of the position of a download that a reader waits for, instead of claiming
/// them. These bytes are probably in flight already.
pub(crate) const CLAIM_DISTANCE: u64 = 128 * 1024;

/// Maximum number of separate pieces of a fill. The number is limited, because a client chooses the
/// ranges.
pub(crate) const MAX_PIECES: usize = 4096;

/// The pieces of one fill.
#[derive(Debug, Default)]
pub(crate) struct PieceTable {
    /// All bytes before this offset are staged and hashed.
    prefix: u64,
    /// Number of bytes of the prefix that an earlier fill staged. They may not be hashed yet.
    recovered: u64,
    /// The position of the front stream. The bytes from `prefix` to here are staged or queued.
    front: u64,
    /// Whether the front stream downloads nothing: it stands before a piece, or has not started.
    is_front_stopped: bool,
    size: Option<u64>,
    /// Staged bytes ahead of `prefix`.
    staged: RangeSet,
    /// Running claims by their start, which never changes.
    claims: BTreeMap<u64, Claim>,
    /// Whether claims are refused, because the upstream or the medium cannot do pieces.
    pub(crate) is_refused: bool,
    /// Whether the fill has ended or is about to end.
    is_ended: bool,
    /// Number of times that the fill restarted from byte 0.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The next byte that the holder of the claim will write.
    position: u64,
    end: u64,
}

/// A claim, as its holder knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClaimKey {
    start: u64,
    generation: u64,
}

impl ClaimKey {
    pub(crate) fn start(self) -> u64 {
        self.start
    }

    pub(crate) fn generation(self) -> u64 {
        self.generation
    }
}

/// What a reader finds at an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// The bytes up to this offset are staged.
    Staged(u64),
    /// The bytes up to this offset are queued, or a download is about to bring them.
    InFlight(u64),
    /// Nobody downloads these bytes, or their owner is far behind them.
    Gap { start: u64, end: u64 },
}

impl PieceTable {
    /// Starts with the bytes of an earlier fill. `prefix` bytes are staged, but not hashed yet.
    pub(crate) fn recover(&mut self, prefix: u64, ahead: impl IntoIterator<Item = Range<u64>>) {
        (self.recovered, self.front) = (prefix, prefix);
        self.staged = ahead.into_iter().collect();
    }

    /// Returns the end of the last byte that is staged or taken by the front stream.
    pub(crate) fn end(&self) -> u64 {
        self.front.max(self.staged.end())
    }

    /// Sets the size that the upstream announced, which is at least [`Self::end`]. Returns the number
    /// of staged bytes that this forgets.
    pub(crate) fn set_size(&mut self, size: Option<u64>) -> u64 {
        self.size = size;
        match size {
            Some(_) => 0,
            // Without a size, nobody can claim the gaps: the front stream fetches all bytes.
            None => std::mem::take(&mut self.staged).bytes(),
        }
    }

    /// Forgets everything, because the fill restarts from byte 0.
    pub(crate) fn restart(&mut self) {
        *self = Self {
            generation: self.generation + 1,
            is_ended: self.is_ended,
            ..Self::default()
        };
    }

    pub(crate) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Returns the bytes that the front stream may take: from its position to the first byte that
    /// is staged or claimed.
    pub(crate) fn front(&self) -> Range<u64> {
        if self.front < self.prefix {
            // The pieces at the position are hashed, and the front stream has not passed them yet.
            return self.front..self.front;
        }
        let size = self.size.unwrap_or(u64::MAX);
        self.front..self.next_owned(self.front).unwrap_or(size).min(size)
    }

    /// Returns [`Self::front`]. If it is not empty, the front stream downloads it from now on: the
    /// decision and the flag change under one lock, so that nobody can claim these bytes between.
    pub(crate) fn start_front(&mut self) -> Range<u64> {
        let front = self.front();
        if !front.is_empty() {
            self.is_front_stopped = false;
        }
        front
    }

    /// Takes up to `len` bytes for the front stream. Returns the number of taken bytes.
    ///
    /// # Errors
    /// The end of the bytes, when it is beyond the announced size.
    pub(crate) fn take_front(&mut self, len: u64) -> Result<u64, u64> {
        let front = self.front();
        let end = front.start.saturating_add(len);
        if self.size == Some(front.end) && end > front.end {
            return Err(end);
        }
        let taken = len.min(front.end - front.start);
        self.front += taken;
        self.is_front_stopped = self.front().is_empty();
        Ok(taken)
    }

    /// Moves the front stream behind the pieces at its position. Returns `false` while these pieces
    /// are not complete and hashed.
    pub(crate) fn pass_pieces(&mut self) -> bool {
        self.front = self.front.max(self.prefix);
        if self.front().is_empty() && self.size != Some(self.front) {
            return false;
        }
        self.is_front_stopped = false;
        true
    }

    /// Counts all bytes before `prefix` as hashed. Returns the end of the piece that starts there.
    pub(crate) fn advance(&mut self, prefix: u64) -> Option<u64> {
        self.prefix = prefix;
        self.staged.remove_before(prefix);
        self.staged.run_end(prefix)
    }

    /// Returns the start of the first staged or claimed byte from `offset` on.
    fn next_owned(&self, offset: u64) -> Option<u64> {
        if self.staged.run_end(offset).is_some() || self.claim_at(offset).is_some() {
            return Some(offset);
        }
        let claimed = self.claims.range(offset..).next().map(|(&start, _)| start);
        let staged = self.staged.start_after(offset);
        staged.into_iter().chain(claimed).min()
    }

    /// Returns the running claim that covers `offset`, with its start. The bytes before the
    /// position of a claim may be staged already.
    fn claim_at(&self, offset: u64) -> Option<(u64, Claim)> {
        let (&start, &claim) = self.claims.range(..=offset).next_back()?;
        (offset < claim.end).then_some((start, claim))
    }

    /// Returns the state of the byte at `offset`. Bytes that are less than `lead` ahead of the
    /// position of a download count as in flight.
    pub(crate) fn at(&self, offset: u64, lead: u64) -> At {
        self.at_with(offset, lead, lead)
    }

    /// As [`Self::at`], with one lead for the front stream and another for claims.
    fn at_with(&self, offset: u64, front_lead: u64, claim_lead: u64) -> At {
        if offset < self.prefix {
            return At::Staged(self.prefix);
        }
        if let Some(end) = self.staged.run_end(offset) {
            return At::Staged(end);
        }
        let owned_end = |from: u64, end: u64| self.staged.start_after(from).unwrap_or(end).min(end);
        if offset < self.front {
            return At::InFlight(owned_end(offset, self.front));
        }
        let owner = match self.claim_at(offset) {
            Some((_, claim)) => Some((claim.position, claim.end, claim_lead)),
            None => {
                let front = self.front();
                let streams = !self.is_front_stopped && offset < front.end;
                streams.then_some((front.start, front.end, front_lead))
            }
        };
        match owner {
            Some((position, end, lead)) => {
                let soon = position
                    .saturating_add(lead)
                    .checked_next_multiple_of(ALIGNMENT);
                match soon.unwrap_or(u64::MAX).min(end) {
                    soon if offset < soon => At::InFlight(owned_end(offset, soon)),
                    start => At::Gap { start, end },
                }
            }
            None => {
                let size = self.size.unwrap_or(u64::MAX);
                let claimed = self.claims.range(..=offset).next_back();
                let claimed = claimed.map_or(0, |(_, claim)| claim.end);
                let staged = self.staged.end_before(offset).unwrap_or(0);
                At::Gap {
                    start: claimed.max(staged).max(self.front).max(self.prefix),
                    end: self.next_owned(offset).unwrap_or(size).min(size),
                }
            }
        }
    }

    /// Refuses claims, because the fill ends.
    pub(crate) fn set_ended(&mut self) {
        self.is_ended = true;
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether pieces can be claimed at all.
    pub(crate) fn is_claimable(&self) -> bool {
        !self.is_refused
            && !self.is_ended
            && self.size.is_some()
            && self.staged.len() + self.claims.len() < MAX_PIECES
    }

    /// Claims bytes of `range`, if its first byte is a gap. A gap further on is no reason to claim:
    /// whoever brings the first byte probably brings these bytes, too.
    pub(crate) fn claim(&mut self, range: Range<u64>, lead: u64) -> Option<ClaimKey> {
        let size = self.size.filter(|_| self.is_claimable())?;
        let (offset, limit) = (range.start, range.end.min(size));
        match self.at(offset, lead) {
            At::Gap { start, end } if offset < limit => {
                Some(self.claim_gap(start..end, offset, limit))
            }
            _ => None,
        }
    }

    /// Lets the front stream stand still until [`Self::start_front`], and claims as
    /// [`Self::claim`].
    pub(crate) fn claim_before_front(&mut self, range: Range<u64>, lead: u64) -> Option<ClaimKey> {
        self.is_front_stopped = true;
        self.claim(range, lead)
    }

    /// Claims the lowest gap of the blob, but at most `max` bytes. Cuts the front stream, and no
    /// other claim: each cut wastes the bytes in transit.
    pub(crate) fn claim_next(&mut self, max: u64) -> Option<ClaimKey> {
        let size = self.size.filter(|_| self.is_claimable())?;
        let mut offset = 0;
        while offset < size {
            match self.at_with(offset, max.max(CLAIM_DISTANCE), u64::MAX) {
                At::Staged(end) | At::InFlight(end) => offset = end,
                At::Gap { start, end } => {
                    let limit = start.max(offset).saturating_add(max.max(1)).min(size);
                    return Some(self.claim_gap(start..end, offset, limit));
                }
            }
        }
        None
    }

    /// Claims the gap that contains `offset`, from the block of `offset` to the block of `limit`.
    fn claim_gap(&mut self, gap: Range<u64>, offset: u64, limit: u64) -> ClaimKey {
        let start = gap.start.max(offset / ALIGNMENT * ALIGNMENT);
        let aligned = limit.checked_next_multiple_of(ALIGNMENT);
        let end = gap.end.min(aligned.unwrap_or(u64::MAX));
        self.insert(start, end)
    }

    fn insert(&mut self, start: u64, end: u64) -> ClaimKey {
        if let Some((_, cut)) = self.claims.range_mut(..start).next_back() {
            cut.end = cut.end.min(start);
        }
        let position = start;
        self.claims.insert(start, Claim { position, end });
        ClaimKey {
            start,
            generation: self.generation,
        }
    }

    fn get(&self, key: ClaimKey) -> Option<&Claim> {
        let claim = self.claims.get(&key.start);
        claim.filter(|_| self.generation == key.generation)
    }

    /// Returns the bytes that the holder of a claim still has to write. `None` after a restart.
    pub(crate) fn range(&self, key: ClaimKey) -> Option<Range<u64>> {
        self.get(key).map(|claim| claim.position..claim.end)
    }

    /// Takes up to `len` bytes for a claim. Returns the taken bytes. `None` after a restart.
    pub(crate) fn take(&mut self, key: ClaimKey, len: u64) -> Option<Range<u64>> {
        let claim = self.get(key)?;
        let taken = claim.position..claim.end.min(claim.position.saturating_add(len));
        let claim = self.claims.get_mut(&key.start)?;
        claim.position = taken.end;
        Some(taken)
    }

    /// Counts bytes of a claim as staged. Returns whether the prefix can now grow.
    pub(crate) fn publish(&mut self, range: Range<u64>) -> bool {
        self.staged.insert(range);
        self.staged.run_end(self.prefix).is_some()
    }

    /// Ends a claim. The bytes that are not staged are a gap again.
    pub(crate) fn release(&mut self, key: ClaimKey) {
        if self.get(key).is_some() {
            self.claims.remove(&key.start);
        }
    }

    /// Whether a claim is running.
    pub(crate) fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the staged bytes ahead of the prefix.
    pub(crate) fn bytes_ahead(&self) -> u64 {
        self.staged.bytes()
    }

    /// Returns all staged bytes.
    pub(crate) fn present(&self) -> RangeSet {
        let mut all = self.staged.clone();
        all.insert(0..self.prefix.max(self.recovered));
        all
    }
}
