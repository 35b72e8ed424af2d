//! The content-addressed cache: verified ingest, single flight, tiers, names, pins, reclaim.
//!
//! It is handed bytes and cannot fetch. What it shows is complete, verified and durable; what is
//! on its way is visible only to readers that tail the fill and know that they do.
//!
//! Layers, from the medium up: [`tier`] (bytes), `state` (what is there and what it weighs),
//! `store` and `reclaim` (tier and state kept in step: open, remove; reserve, evict), `ingest` and `flight`
//! (one fill and its readers), [`Cache`].

#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod buffer;
mod cache;
mod catalog;
mod checked;
mod clock;
mod config;
mod content;
mod door;
mod error;
mod fill;
mod flight;
mod folder;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod ingest;
mod load;
mod memory;
mod metrics;
mod names;
mod object;
mod origin;
mod partials;
mod pins;
mod placing;
mod ranking;
mod ranks;
mod reclaim;
mod record;
mod shares;
pub mod staging;
mod stat;
mod state;
mod store;
pub mod tier;
mod upkeep;

pub use cache::{Cache, Claim};
pub use checked::resident;
pub use config::Config;
pub use content::{Content, Readers, Tail};
pub use error::Error;
pub use fill::Fill;
pub use handle::Handle;
pub use names::{Name, Names, Record};
pub use object::{Object, Sound};
pub use origin::Origin;
/// What ranks go by, and what is assumed of a fetch before one was measured.
pub use pierhead_eviction::Access;
pub use placing::{FastTier, TierStat};
pub use ranking::{Eviction, Outcome, Recorder};
pub use stat::{Entry, EvictionStat, Stat};

/// A lock whose holder panicked is taken over: every critical section here leaves its data whole.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
