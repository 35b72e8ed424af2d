//! Storage tiers: the media that store blobs. The module contains the disk tier, the
//! persistent-memory tier, and the write-back tier, which combines a fast tier with the disk.

mod copy_key;
mod disk;
pub mod placement;
mod pmem;
mod switch_reader;
mod trailer;
mod traits;
mod write_back;

pub use disk::{DiskTier, Step};
pub use pmem::PmemTier;
pub use trailer::{CHUNK, Sums, Trailer};
pub use traits::{Blob, Extent, FastMedium, MultiTier, ReadAt, Staged, Tier, TierEntry};
pub(crate) use traits::{is_damage, is_proven_damage};
pub use write_back::{Dirty, FastStat, Hint, Options, WriteBack};
