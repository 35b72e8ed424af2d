//! `pierhead inspect` and `pierhead diff`: images as bundles see them.

mod diff;
mod inspect;
mod seen;

pub(crate) use diff::run as diff;
pub(crate) use inspect::run as inspect;
pub(super) use seen::Place;
