//! Shares of a resource that are reserved for clients that hold less than their share.

/// This fraction (1/n) of each shared resource is reserved for clients that hold less than it.
pub(crate) const SHARE_DIVISOR: usize = 8;

/// Whether a client with `own` slots gets no further one: none is free, or all free ones are reserved.
pub(crate) fn leaves_no_share(own: usize, held: usize, all: usize) -> bool {
    leaves_no_room((own, held), 1, all, all / SHARE_DIVISOR)
}

/// Whether a client with `own` of the `held` units gets no `more` units: too few are free, or they are reserved. The
/// last `share` of `all` units is reserved for clients that hold less than `share`.
pub(crate) fn leaves_no_room(
    (own, held): (usize, usize),
    more: usize,
    all: usize,
    share: usize,
) -> bool {
    let held = held.saturating_add(more);
    held > all || (own >= share && held > all - share)
}

/// This fraction (1/n) of all slots is reserved for configured registries.
const CONFIGURED_DIVISOR: usize = 4;

/// How many of `all` slots are reserved for configured registries. A single slot cannot be reserved.
pub(crate) fn configured_reserve(all: usize) -> usize {
    (all / CONFIGURED_DIVISOR).max(usize::from(all > 1))
}
