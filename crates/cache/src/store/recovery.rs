//! Recovery at start: rebuilds the index from the blob files and the catalog. After the start, also
//! retries blobs that were unreadable.

use std::collections::{HashMap, HashSet};
use std::io;

use pierhead_eviction::Access;
use pierhead_oci::{Digest, MediaType};

use crate::clock::now;
use crate::store::Store;
use crate::store::blocks::blocks;
use crate::store::catalog::Catalog;
use crate::store::origins::Origins;
use crate::store::partials::Partial;
use crate::store::state::{Slot, State};
use crate::tier::{Tier, TierEntry, Trailer, is_proven_damage};

/// Restores all blobs of the tier, in the order of their last accesses. A file whose length matches
/// its catalog entry is not opened. Any other file is opened to read its trailer. A blob that is
/// not in the catalog is ranked by the modification time of its file, below all blobs that are in
/// the catalog. If a blob of the catalog has no file, the tier is asked to open the blob.
pub(crate) fn blobs(state: &mut State, tier: &dyn Tier, catalog: &Catalog) -> io::Result<()> {
    let mut found = HashMap::new();
    tier.scan(&mut |blob| {
        found.insert(blob.digest, blob);
    })?;
    let mut known = Vec::new();
    let mut gone = Vec::new();
    let mut types = HashSet::new();
    catalog.blobs(|digest, mut slot| {
        let media_type = slot.media_type.as_ref();
        let len = slot
            .size
            .saturating_add(Trailer::max_encoded_len(slot.size, media_type));
        let file = found.entry(digest).or_insert(TierEntry {
            digest,
            bytes: 0,
            modified: slot.accessed.into(),
        });
        // An entry without origins may be older than a file with an origin.
        let is_current = Trailer::has_origin_by_len(file.bytes, slot.size, media_type)
            .is_some_and(|has_origin| !has_origin || !slot.origins.is_empty());
        if is_current {
            found.remove(&digest);
            slot.media_type = slot
                .media_type
                .map(|media_type| intern(&mut types, media_type));
            known.push((digest, slot));
        } else {
            // The scan did not find the file: either the file is missing, or its folder cannot be
            // listed. Opening the blob shows which of the two is true. An unreadable file counts
            // with the length in the catalog.
            file.bytes = file.bytes.max(len);
        }
    });
    known.sort_unstable_by_key(|(_, slot)| slot.tick);
    for (digest, slot) in known {
        state.restore(digest, slot);
    }
    let mut unknown: Vec<TierEntry> = found.into_values().collect();
    unknown.sort_unstable_by_key(|file| (file.modified, file.digest));
    for found in unknown {
        let TierEntry { digest, bytes, .. } = found;
        match tier.open(&digest) {
            Ok(Some(blob)) => {
                let media_type = blob.trailer().media_type().cloned();
                let media_type = media_type.map(|media_type| intern(&mut types, media_type));
                restore_from_file(state, &found, blob.trailer(), media_type);
            }
            Ok(None) => gone.push(digest),
            Err(error) if is_proven_damage(&error) => {
                tracing::error!(%digest, %error, "a stored blob is damaged: removed, it will be fetched again");
                tier.remove(&digest)?;
                gone.push(digest);
            }
            // The blob keeps its entry in the catalog, because it may become readable again.
            Err(error) => {
                tracing::error!(%digest, %error, "cannot read a stored blob: keeping its file, retrying later");
                state.set_unreadable(digest, blocks(bytes));
            }
        }
    }
    state.changed.extend(gone);
    state.reconcile();
    Ok(())
}

/// Restores a blob that is not in the catalog, from its file.
fn restore_from_file(
    state: &mut State,
    found: &TierEntry,
    trailer: &Trailer,
    media_type: Option<MediaType>,
) {
    let size = trailer.size();
    let slot = Slot {
        size,
        tick: state.tick_after(),
        media_type,
        accessed: u32::try_from(found.modified).unwrap_or(u32::MAX),
        cost: Access::<Digest>::prior(size),
        shared: 1,
        origins: trailer.origin().into(),
        dirty: true,
    };
    state.restore(found.digest, slot);
    state.changed.push(found.digest);
}

/// Maximum number of unreadable blobs in one round of retries. The number is small, because a
/// failing disk may take seconds for each blob.
const RETRIES_PER_ROUND: usize = 16;

impl Store {
    /// Retries blobs that were unreadable at the start of pierhead. Blocks.
    pub(crate) fn retry_unreadable(&self) {
        let retried = self.state.lock().next_unreadable(RETRIES_PER_ROUND);
        for digest in retried {
            let _guard = self.digest_locks.lock(digest);
            {
                let state = self.state.lock();
                // A fill has replaced the unreadable file, or is about to replace it.
                if !state.is_unreadable(&digest) || state.fills.contains_key(&digest) {
                    continue;
                }
            }
            match self.tier.open(&digest) {
                Ok(Some(blob)) => {
                    let trailer = blob.trailer();
                    let found = TierEntry {
                        digest,
                        bytes: trailer.size(),
                        modified: now(),
                    };
                    let mut state = self.state.lock();
                    state.clear_unreadable(&digest);
                    let media_type = trailer.media_type().cloned();
                    restore_from_file(&mut state, &found, trailer, media_type);
                    tracing::info!(%digest, "a stored blob can be read again");
                }
                Ok(None) => self.state.lock().clear_unreadable(&digest),
                Err(error) if is_proven_damage(&error) => {
                    tracing::error!(%digest, %error, "a stored blob is damaged: removed, it will be fetched again");
                    match self.tier.remove(&digest) {
                        Ok(()) => self.state.lock().clear_unreadable(&digest),
                        Err(error) => {
                            tracing::warn!(%digest, %error, "cannot delete a damaged blob; its bytes stay reserved")
                        }
                    }
                }
                Err(_) => {}
            }
        }
    }
}

/// Restores staged bytes as partial fills. Deletes staged bytes if it is unknown or unproven which
/// registry sent them.
pub(crate) fn partials(state: &mut State, tier: &dyn Tier, origins: &Origins) -> io::Result<()> {
    let mut staged = HashMap::new();
    tier.scan_staged(&mut |found| {
        staged.insert(found.digest, found);
    })?;
    let are_proven = origins.are_proven();
    let known = origins.load(|digest| are_proven && staged.contains_key(digest))?;
    for (digest, found) in staged {
        let Some(origin) = known.get(&digest) else {
            tracing::debug!(%digest, "deleting staged bytes of an unknown registry");
            tier.discard(&digest)?;
            continue;
        };
        let partial = Partial {
            bytes: blocks(found.bytes),
            modified: found.modified,
            origin: *origin,
        };
        state.reserved += partial.bytes;
        state.partials.insert(digest, partial);
    }
    // Without this record, the next start deletes the bytes that this process stages, and their
    // blobs are downloaded from byte 0.
    if let Err(error) = origins.set_proven() {
        tracing::warn!(%error, "cannot write the file `boot`: the next start resumes no download");
    }
    Ok(())
}

/// Returns a shared copy of a media type: thousands of blobs have few distinct media types, so each
/// distinct media type is allocated only once.
fn intern(types: &mut HashSet<MediaType>, media_type: MediaType) -> MediaType {
    if let Some(known) = types.get(&media_type) {
        return known.clone();
    }
    types.insert(media_type.clone());
    media_type
}
