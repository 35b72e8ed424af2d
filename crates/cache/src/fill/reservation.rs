//! Reserves disk space for a fill: the first step when the fill begins, further steps as bytes
//! arrive. All functions of this module block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Error;
use crate::fill::shared_fill::{SharedFill, Terms, fill_ended};
use crate::store::Store;
use crate::store::blocks::blocks;

/// Checks whether a fill may be stored, and reserves its first step of disk space. `size` is the
/// length that the upstream announced; the announcement may be wrong.
pub(super) fn announce(
    store: &Store,
    shared_fill: &Arc<SharedFill>,
    size: Option<u64>,
    need: u64,
    terms: Terms,
) -> Result<(), Error> {
    shared_fill.set_terms(terms, size.map_or(u64::MAX, |_| need));
    let held = shared_fill.reserved.load(Ordering::Relaxed);
    store.admit_fill(shared_fill, size, need, terms)?;
    let more = need.saturating_sub(held);
    store
        .check_room(size.unwrap_or(0), more)
        .inspect_err(|_| store.record_bypass(shared_fill, need))?;
    extend(store, shared_fill, need.min(held.max(store.config.step)))
}

/// Extends the reservation to at least `need` bytes on disk. If there is room, rounds the
/// reservation up to a whole step.
pub(super) fn extend(store: &Store, shared_fill: &Arc<SharedFill>, need: u64) -> Result<(), Error> {
    let held = shared_fill.reserved.load(Ordering::Relaxed);
    if need <= held {
        return Ok(());
    }
    let lacking = blocks(need - held);
    let rest = shared_fill.expected().saturating_sub(held);
    let step = store.config.step.min(blocks(rest)).max(lacking);
    // Bytes that the fill needs after this step. If the length is unknown, one more step is
    // assumed.
    let rest = match shared_fill.expected() {
        u64::MAX => step,
        _ => blocks(rest),
    };
    match reserve(store, shared_fill, step, rest.saturating_sub(step)) {
        Err(Error::NoRoom { .. }) if step > lacking => {
            reserve(store, shared_fill, lacking, rest.saturating_sub(lacking))
        }
        other => other,
    }
}

/// Reserves `more` bytes for this fill through [`Store::reserve`].
fn reserve(
    store: &Store,
    shared_fill: &Arc<SharedFill>,
    more: u64,
    later: u64,
) -> Result<(), Error> {
    store.reserve(more, later)?;
    let mut state = store.state.lock();
    if state.is_running_fill(shared_fill) {
        shared_fill.reserved.fetch_add(more, Ordering::Relaxed);
        return Ok(());
    }
    // The fill ended during this call and has already released its reservation.
    state.reserved -= more;
    Err(fill_ended())
}
