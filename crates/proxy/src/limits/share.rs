//! Computes which part of a shared resource (connections, downloads, memory) is reserved for
//! clients that hold little of it.

/// One part in this number of each shared resource is reserved for clients that hold less than that
/// part.
pub(crate) const SHARE_DIVISOR: usize = 8;

/// Whether a client with `own` slots gets no further slot, because no slot is free or all free
/// slots are reserved.
pub(crate) fn leaves_no_share(own: usize, held: usize, all: usize) -> bool {
    leaves_no_room((own, held), 1, all, all / SHARE_DIVISOR)
}

/// Whether a client with `own` of the `held` units gets no `more` units, because too few are free
/// or the free units are reserved. The last `share` of `all` units is reserved for clients that
/// hold less than `share`.
pub(crate) fn leaves_no_room(
    (own, held): (usize, usize),
    more: usize,
    all: usize,
    share: usize,
) -> bool {
    let held = held.saturating_add(more);
    held > all || (own >= share && held > all - share)
}

/// One part in this number of all slots is reserved for configured registries.
const CONFIGURED_DIVISOR: usize = 4;

/// Returns how many of `all` slots are reserved for configured registries. If there is only one
/// slot, it is not reserved.
pub(crate) fn configured_reserve(all: usize) -> usize {
    (all / CONFIGURED_DIVISOR).max(usize::from(all > 1))
}
