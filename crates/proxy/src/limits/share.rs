//! Computes which part of a shared resource (connections, downloads, memory) is reserved for
//! clients that hold little of this resource.

/// Divisor of a shared resource: a share is the resource divided by this number. Each resource has
/// one share that is reserved for clients that hold less than a share.
pub(crate) const SHARE_DIVISOR: usize = 8;

/// Whether a client with `own` slots gets no further slot, because no slot is free or all free
/// slots are reserved.
pub(crate) fn leaves_no_share(own: usize, held: usize, all: usize) -> bool {
    leaves_no_room((own, held), 1, all, all / SHARE_DIVISOR)
}

/// Whether a client with `own` of the `held` units gets no `more` units, because too few units are
/// free or the free units are reserved. Of all units, the last `share` units are reserved for
/// clients that hold less than `share`.
pub(crate) fn leaves_no_room(
    (own, held): (usize, usize),
    more: usize,
    all: usize,
    share: usize,
) -> bool {
    let held = held.saturating_add(more);
    held > all || (own >= share && held > all - share)
}

/// The slots that are reserved for configured registries: one part in this number of all slots.
const CONFIGURED_DIVISOR: usize = 4;

/// Returns how many of `all` slots are reserved for configured registries. A single slot is not
/// reserved.
pub(crate) fn configured_reserve(all: usize) -> usize {
    (all / CONFIGURED_DIVISOR).max(usize::from(all > 1))
}
