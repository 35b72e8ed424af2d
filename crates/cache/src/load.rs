//! The first look at a data folder: what the files say, with what the catalog remembers of them.

use std::collections::{HashMap, HashSet};
use std::io;

use pierhead_eviction::Access;
use pierhead_oci::{Digest, MediaType};

use crate::catalog::Catalog;
use crate::partials::Partial;
use crate::state::{Slot, State, blocks};
use crate::tier::{Found, Tier, Trailer, is_damage};

/// Enters everything that lies on the tier, in the order of access. A file that the catalog describes
/// (to the byte of its length) is not opened; the others tell it by their trailers, and rank by their age
/// behind those that the catalog knows.
pub(crate) fn blobs(state: &mut State, tier: &dyn Tier, catalog: &Catalog) -> io::Result<()> {
    let mut found = HashMap::new();
    tier.scan(&mut |blob| {
        found.insert(blob.digest, blob);
    })?;
    let mut known = Vec::new();
    let mut gone = Vec::new();
    let mut types = HashSet::new();
    catalog.blobs(|digest, mut slot| {
        let len = slot
            .size
            .saturating_add(Trailer::encoded_len(slot.size, slot.media_type.as_ref()));
        if found.get(&digest).is_some_and(|file| file.bytes == len) {
            found.remove(&digest);
            slot.media_type = slot
                .media_type
                .map(|media_type| shared(&mut types, media_type));
            known.push((digest, slot));
        } else {
            gone.push(digest);
        }
    });
    known.sort_unstable_by_key(|(_, slot)| slot.tick);
    for (digest, slot) in known {
        state.restore(digest, slot);
    }
    let mut unknown: Vec<Found> = found.into_values().collect();
    unknown.sort_unstable_by_key(|file| (file.modified, file.digest));
    for Found {
        digest, modified, ..
    } in unknown
    {
        match tier.open(&digest) {
            Ok(Some(blob)) => {
                let media_type = blob.trailer().media_type().cloned();
                let slot = Slot {
                    size: blob.trailer().size(),
                    tick: state.tick_after(),
                    media_type: media_type.map(|media_type| shared(&mut types, media_type)),
                    accessed: u32::try_from(modified).unwrap_or(u32::MAX),
                    cost: Access::<Digest>::prior(blob.trailer().size()),
                    shared: 1,
                    dirty: true,
                };
                state.restore(digest, slot);
                state.changed.push(digest);
            }
            Ok(None) => {}
            Err(error) if !is_damage(&error) => return Err(error),
            Err(error) => {
                tracing::error!(%digest, %error, "a stored blob is damaged: removed, it will be fetched again");
                tier.remove(&digest)?;
            }
        }
    }
    state.changed.extend(gone);
    state.reconcile();
    partials(state, tier)
}

/// Takes what is staged as partial fills.
fn partials(state: &mut State, tier: &dyn Tier) -> io::Result<()> {
    tier.leftovers(&mut |Found {
                             digest,
                             bytes,
                             modified,
                         }| {
        let bytes = blocks(bytes);
        state.reserved += bytes;
        state.partials.insert(digest, Partial { bytes, modified });
    })
}

/// Thousands of blobs share a few media types: one allocation each is enough.
fn shared(types: &mut HashSet<MediaType>, media_type: MediaType) -> MediaType {
    if let Some(known) = types.get(&media_type) {
        return known.clone();
    }
    types.insert(media_type.clone());
    media_type
}
