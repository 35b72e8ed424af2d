//! One fill on its way to the disk: write, show, hash; in the end check and commit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Hasher, MediaType};

use crate::buffer::BUFFER;
use crate::flight::{Flight, Order, Work};
use crate::partials::Partial;
use crate::staging::TAIL;
use crate::state::blocks;
use crate::store::Store;
use crate::tier::{ReadAt, Staged, Sums, Trailer};
use crate::{Error, now};

/// Bytes of one write and one waking of the readers, unless one piece is larger.
const BATCH: usize = 256 * 1024;

/// After so many bytes the disk is set to work on them: the commit of a large blob then waits for the last few
/// only, and a fill that is faster than the disk does not fill the memory with what is to be written.
const EARLY_SYNC: u64 = 32 << 20;

/// The turn of one fill at [`Store::syncing`], given back by its drop.
struct SyncTurn(Arc<Store>);

impl Drop for SyncTurn {
    fn drop(&mut self) {
        self.0.syncing.store(false, Ordering::Relaxed);
    }
}

fn hasher(flight: &Flight) -> Hasher {
    Hasher::new(flight.digest.algorithm())
}

pub(crate) struct Ingest {
    staged: Box<dyn Staged>,
    reader: Arc<dyn ReadAt>,
    hasher: Hasher,
    sums: Sums,
    /// Bytes hashed; less than staged until what an earlier fill left has been read again.
    hashed: u64,
    /// Whether bytes of an earlier fill are among them.
    resumed: bool,
    /// Bytes since the last [`Staged::early_sync`].
    unsynced: u64,
}

impl Ingest {
    pub(crate) fn new(flight: &Flight, staged: Box<dyn Staged>) -> Self {
        Self {
            reader: staged.reader(),
            hasher: hasher(flight),
            sums: Sums::default(),
            hashed: 0,
            resumed: !staged.is_empty(),
            unsynced: 0,
            staged,
        }
    }

    /// Works until there is nothing to do (then it goes back to its place in the flight) or the fill ends.
    pub(crate) fn run(mut self: Box<Self>, flight: Arc<Flight>) {
        if let Err(error) = self.rehash(&flight) {
            return self.fail(&flight, error, false);
        }
        loop {
            let Some((ingest, work)) = flight.next(self) else {
                return;
            };
            self = ingest;
            match work {
                Work::Pieces(pieces) => {
                    if let Err(error) = self.take(&flight, pieces) {
                        return self.fail(&flight, error, false);
                    }
                }
                Work::Order(Order::Clear) => {
                    if let Err(error) = self.clear(&flight) {
                        return self.fail(&flight, error, false);
                    }
                }
                Work::Order(Order::Abandon { why, keep }) => return self.fail(&flight, why, keep),
                Work::Order(Order::Finish(media_type)) => return self.finish(flight, media_type),
            }
        }
    }

    /// Reads again what an earlier fill left, unless the leader does not want it.
    fn rehash(&mut self, flight: &Flight) -> Result<(), Error> {
        let len = self.staged.len();
        if self.hashed == len {
            return Ok(());
        }
        let mut buffer = flight.store.pool.take(BUFFER);
        while self.hashed < len && !flight.is_interrupted() {
            let now = usize::try_from(len - self.hashed)
                .unwrap_or(BUFFER)
                .min(BUFFER);
            let bytes = &mut buffer.as_mut()[..now];
            self.reader
                .read_at(self.hashed, bytes)
                .map_err(|error| flight.store.io("read again", &flight.digest, error))?;
            self.sums.update(self.hashed, bytes);
            self.hasher.update(bytes);
            self.hashed += now as u64;
            self.show(flight);
        }
        Ok(())
    }

    fn take(&mut self, flight: &Arc<Flight>, pieces: Vec<Bytes>) -> Result<(), Error> {
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().position(|piece| {
                bytes += piece.len();
                bytes >= BATCH
            });
            let (batch, later) = rest.split_at(count.map_or(rest.len(), |last| last + 1));
            rest = later;
            self.take_batch(flight, batch, bytes)?;
        }
        Ok(())
    }

    fn take_batch(
        &mut self,
        flight: &Arc<Flight>,
        batch: &[Bytes],
        bytes: usize,
    ) -> Result<(), Error> {
        let len = bytes as u64;
        let size = self.staged.len() + len;
        flight.store.admit(size, 0)?;
        flight.store.spend(flight, len)?;
        flight.make_room(Store::need(size, None))?;
        self.staged
            .write_all(batch)
            .map_err(|error| flight.store.io("write", &flight.digest, error))?;
        let mut position = self.hashed;
        self.hashed += len;
        // Readers go on with it, on other cores, while it is hashed here.
        self.show(flight);
        self.sync_early(flight, len);
        for piece in batch {
            self.sums.update(position, piece);
            self.hasher.update(piece);
            position += piece.len() as u64;
        }
        flight.store.metrics.written_bytes.inc_by(len);
        flight.done(bytes);
        Ok(())
    }

    /// One fill at a time: a disk that is slow must not get all threads to wait for it.
    fn sync_early(&mut self, flight: &Flight, len: u64) {
        self.unsynced += len;
        let enough = match flight.store.placing {
            // What goes to the disk then is to be stored before the last layer is here. Of a hard disk that costs a sixth of
            // its speed, for the flushes.
            Some(_) => TAIL,
            None => EARLY_SYNC,
        };
        if self.unsynced < enough {
            return;
        }
        if flight.store.syncing.swap(true, Ordering::Relaxed) {
            return;
        }
        // Given back also when the work panics or never runs.
        let turn = SyncTurn(flight.store.clone());
        self.unsynced = 0;
        if let Some(sync) = self.staged.early_sync() {
            let watch = flight
                .store
                .config
                .rest
                .panics()
                .watch(BackgroundTask::CacheFill);
            drop(flight.runtime.spawn_blocking(move || {
                let _watch = watch;
                sync();
                drop(turn);
            }));
        }
    }

    fn show(&self, flight: &Flight) {
        flight.staged.store(self.hashed, Ordering::Relaxed);
        flight
            .progress
            .send_modify(|progress| progress.landed = self.hashed);
    }

    fn clear(&mut self, flight: &Flight) -> Result<(), Error> {
        self.staged
            .clear()
            .map_err(|error| flight.store.io("empty", &flight.digest, error))?;
        (self.hasher, self.sums) = (hasher(flight), Sums::default());
        (self.hashed, self.resumed) = (0, false);
        flight.staged.store(0, Ordering::Relaxed);
        flight.progress.send_modify(|progress| {
            progress.generation += 1;
            progress.size = None;
            progress.landed = 0;
        });
        Ok(())
    }

    fn finish(mut self: Box<Self>, flight: Arc<Flight>, media_type: Option<MediaType>) {
        let actual = self.hasher.clone().finish();
        if actual != flight.digest {
            let error = Error::WrongDigest {
                expected: flight.digest,
                actual: Box::new(actual),
                resumed: self.resumed,
            };
            return self.fail(&flight, error, false);
        }
        let size = self.hashed;
        flight.progress.send_modify(|progress| {
            progress.size = Some(Some(size));
            progress.verified = true;
        });
        let trailer = Trailer::new(size, media_type, std::mem::take(&mut self.sums));
        // Of a fill whose length was not known: the trailer's last bytes.
        let need = Store::need(size, trailer.media_type());
        if let Err(error) = flight.make_room(need) {
            return self.fail(&flight, error, false);
        }
        let reserved = flight.reserved.load(Ordering::Relaxed);
        let outcome = flight.store.commit(&flight, self.staged, trailer, reserved);
        let outcome = outcome.map(|open| {
            // Nobody else sets it.
            let _ = flight.committed.set(open);
        });
        if let Err(error) = &outcome {
            tracing::warn!(digest = %flight.digest, %error, "a fill that was right could not be committed");
            end(&flight, None);
        }
        // Whoever is told finds the blob in no other hands than the readers'.
        let progress = flight.progress.clone();
        drop(flight);
        progress.send_modify(|progress| progress.outcome = Some(outcome));
    }

    fn fail(self: Box<Self>, flight: &Arc<Flight>, mut error: Error, keep: bool) {
        // A full disk: the partial file is the first thing that should go.
        flight.close();
        let len = self.staged.len();
        drop(self.staged);
        let keep = keep && len > 0;
        if !keep && let Err(source) = flight.store.tier.discard(&flight.digest) {
            tracing::warn!(digest = %flight.digest, error = %source, "cannot delete a failed fill");
            if !matches!(source.kind(), io::ErrorKind::NotFound) && !error.is_storage() {
                error = flight.store.io("delete", &flight.digest, source);
            }
        }
        let partial = keep.then(|| Partial {
            bytes: blocks(len),
            modified: now(),
            origin: flight.origin,
        });
        if !keep {
            flight.store.origins.clear(&flight.digest, flight.origin);
        }
        end(flight, partial);
        if !matches!(error, Error::NotAdmitted { .. }) {
            flight.store.metrics.failed_fills.inc();
        }
        flight
            .progress
            .send_modify(|progress| progress.outcome = Some(Err(error)));
    }
}

/// Takes the flight out, and turns what was reserved for it into what is left of it. Does nothing when it has
/// been taken out before: after a commit, its bytes are those of a blob.
pub(crate) fn end(flight: &Flight, partial: Option<Partial>) {
    let mut state = crate::lock(&flight.store.state);
    if !state.is_entered(flight) {
        return;
    }
    state.settle(flight);
    state.reserved -= flight.reserved.load(Ordering::Relaxed);
    if let Some(partial) = partial {
        state.reserved += partial.bytes;
        state.partials.insert(flight.digest, partial);
    }
    state.fills.remove(&flight.digest);
}
