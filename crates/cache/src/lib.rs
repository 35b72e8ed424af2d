//! The content-addressed cache of blobs: verified downloads (fills), single flight, storage tiers,
//! tags, pins, eviction.
//!
//! The cache stores bytes that its callers write; it does not fetch anything itself. A blob becomes
//! visible once it is complete, verified and durable. Only readers that follow the fill of a blob
//! see its bytes earlier.
//!
//! The layers, from the medium to the public methods:
//!
//! - [`tier`]: bytes on a medium. `tier/write_back` combines a fast tier with the disk.
//!   [`tier::placement`] decides which blobs the fast tier stores.
//! - `store`: the index of stored blobs and their sizes; tags, pins, recovery, eviction,
//!   maintenance.
//! - `blob`: a committed blob, open for reading.
//! - `fill`: a blob that is being written, with its readers.
//! - [`Cache`]: the methods that other crates call.
//!
//! [`Cache`] is one type on purpose. [`Cache`] finds and claims blobs, and passes all other calls
//! to the index (`store`), the pins or the maintenance. Tags have a handle of their own
//! ([`Cache::tags`]). A reading handle and an administration handle would share the same state,
//! and the daemon would have to pass both handles to most of its components.

#![forbid(unsafe_code)]

mod blob;
mod blocking;
mod cache;
mod clock;
mod config;
mod error;
mod fill;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod origin;
mod page_cache;
mod store;
pub mod tier;

pub use blob::background_reader::BackgroundReader;
pub use blob::{StoredBlob, VerifiedRange};
pub use cache::{Cache, Claim};
pub use config::Config;
pub use error::{Error, SpaceLimit};
pub use fill::Fill;
pub use fill::blob_reader::{BlobReader, Readers, TailReader};
pub use origin::Origin;
pub use page_cache::resident;
/// One request for a blob, as eviction policies see requests. The request has an estimate of the
/// seconds that a fetch of the blob takes.
pub use pierhead_eviction::Access;
pub use store::ranking::{Eviction, Outcome, Recorder};
pub use store::stat::{BlobStat, EvictionStat, Stat};
pub use store::tag_store::{TagKey, TagRecord, TagStore};
pub use tier::placement::{FastTier, Placement, TierStat};
