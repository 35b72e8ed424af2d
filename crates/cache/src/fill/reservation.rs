//! Room for a fill: asked for at its start, then taken in steps as bytes come. All of it blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Error;
use crate::fill::shared_fill::{SharedFill, Terms, over};
use crate::store::Store;
use crate::store::blocks::blocks;

/// Refuses a fill that cannot or must not be stored, and reserves its first step. The announced `size` may be wrong.
pub(super) fn announce(
    store: &Store,
    shared_fill: &Arc<SharedFill>,
    size: Option<u64>,
    need: u64,
    terms: Terms,
) -> Result<(), Error> {
    shared_fill.set_terms(terms, size.map_or(u64::MAX, |_| need));
    let held = shared_fill.reserved.load(Ordering::Relaxed);
    store.ask(shared_fill, size, need, terms)?;
    let more = need.saturating_sub(held);
    store
        .admit(size.unwrap_or(0), more)
        .inspect_err(|_| store.passed(shared_fill, need))?;
    extend(store, shared_fill, need.min(held.max(store.config.step)))
}

/// Reserves what is missing up to `need` bytes on disk, and the rest of a step.
pub(super) fn extend(store: &Store, shared_fill: &Arc<SharedFill>, need: u64) -> Result<(), Error> {
    let held = shared_fill.reserved.load(Ordering::Relaxed);
    if need <= held {
        return Ok(());
    }
    let lacking = blocks(need - held);
    let rest = shared_fill.expected().saturating_sub(held);
    let step = store.config.step.min(blocks(rest)).max(lacking);
    // Bytes that the fill needs afterwards. For an unknown length, assumes one step.
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

/// Reserves `more` bytes for this fill; see [`Store::reserve`].
fn reserve(
    store: &Store,
    shared_fill: &Arc<SharedFill>,
    more: u64,
    later: u64,
) -> Result<(), Error> {
    store.reserve(more, later)?;
    let mut state = store.state.lock();
    if state.is_entered(shared_fill) {
        shared_fill.reserved.fetch_add(more, Ordering::Relaxed);
        return Ok(());
    }
    // The fill has ended meanwhile, and what it held has been given back.
    state.reserved -= more;
    Err(over())
}
